"""Rejection sampling of one position.

A token x drawn from q is accepted with probability ``min(1, p(x)/q(x))``; a
rejected position is drawn again from ``max(p - q, 0)``, normalised. The mass
accepted at v is ``min(p(v), q(v))`` and all of the rejected mass equals
``sum max(p - q, 0)``, so both parts together are p.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction

from .categorical import Categorical, OracleError


def _same_size(p: Categorical, q: Categorical) -> None:
    if len(p) != len(q):
        raise OracleError(f"{len(p)} against {len(q)} tokens")


def acceptance(p: Categorical, q: Categorical, token: int) -> Fraction:
    """Probability of keeping a token that was drawn from q.

    A token that q cannot draw has none: the question itself is refused.
    """
    _same_size(p, q)
    if q[token] == 0:
        raise OracleError(f"q never draws token {token}")
    return min(Fraction(1), p[token] / q[token])


def correction_mass(p: Categorical, q: Categorical) -> tuple[Fraction, ...]:
    """``max(p - q, 0)`` of every id: what q leaves for the correction to supply."""
    _same_size(p, q)
    return tuple(
        max(a - b, Fraction(0)) for a, b in zip(p.probabilities, q.probabilities, strict=True)
    )


def residual(p: Categorical, q: Categorical) -> Categorical:
    """The law of the correction. Refused for p = q, where nothing is ever rejected."""
    return Categorical.dense(correction_mass(p, q))


def output_law(p: Categorical, q: Categorical) -> tuple[Fraction, ...]:
    """What one verified position puts out: accepted plus corrected mass, by id.

    Composed from ``acceptance`` and ``residual``, not from the identity that it
    is meant to show.
    """
    accepted = [
        q[token] * acceptance(p, q, token) if q[token] else Fraction(0) for token in range(len(q))
    ]
    rejected = 1 - sum(accepted)
    if rejected == 0:
        return tuple(accepted)
    correction = residual(p, q)
    return tuple(mass + rejected * correction[token] for token, mass in enumerate(accepted))


def total_variation(
    left: Sequence[Fraction] | Mapping[int, Fraction], right: Sequence[Fraction]
) -> Fraction:
    """Half the sum of absolute differences of two laws over the ids of ``right``."""
    values = left if isinstance(left, Mapping) else dict(enumerate(left))
    if not set(values) <= set(range(len(right))):
        raise OracleError("the laws are over different ids")
    return (
        sum(
            (abs(values.get(token, Fraction(0)) - mass) for token, mass in enumerate(right)),
            Fraction(0),
        )
        / 2
    )
