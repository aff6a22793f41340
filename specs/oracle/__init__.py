"""Exact reference for verified speculative sampling, in rational arithmetic.

Standard library only. Nothing here is fast and nothing here is product code:
product packages never import it; tests and vector makers compare against it.
A float given to it means its exact binary64 value.

    categorical   distributions, top-k, fp32 weights, integer counts
    rejection     acceptance, residual, the law that one position puts out
    streams       domain-separated integer tickets
    rounds        fixed-depth proposals and the verifying session

Source: seed 001 (the reference's contract); Leviathan et al. 2023, algorithm 1
and appendix A.1.
"""

from .categorical import (
    Categorical,
    OracleError,
    dyadic_counts,
    fp32_weights,
    from_counts,
    target_counts,
)
from .rejection import acceptance, correction_mass, output_law, residual, total_variation
from .rounds import Identity, Last, Proposal, Refused, Round, Verifier, propose
from .streams import Domain, Owner, Streams, Tickets

__all__ = [
    "Categorical",
    "Domain",
    "Identity",
    "Last",
    "OracleError",
    "Owner",
    "Proposal",
    "Refused",
    "Round",
    "Streams",
    "Tickets",
    "Verifier",
    "acceptance",
    "correction_mass",
    "dyadic_counts",
    "fp32_weights",
    "from_counts",
    "output_law",
    "propose",
    "residual",
    "target_counts",
    "total_variation",
]
