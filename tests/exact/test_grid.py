"""Every pair of laws on the three-token grid of quarters: 15 targets x 15 drafts."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from proto_v2.dyadic import Categorical
from proto_v2.rng import Domain, TicketSource
from spark_rank.verify import verify_chain
from specs import oracle
from tests.support.chains import dense_row, logits_of, sparse_row
from tests.support.enumerate_tickets import enumerate_runs

GRID = [counts for counts in product(range(5), repeat=3) if sum(counts) == 4]
PAIRS = list(product(GRID, GRID))
BITS = 2


def test_the_grid_has_225_pairs() -> None:
    assert len(GRID) == 15
    assert len(PAIRS) == 225


def test_oracle_puts_out_the_target_law_for_every_pair() -> None:
    for target, draft in PAIRS:
        p, q = oracle.from_counts(target), oracle.from_counts(draft)
        assert oracle.output_law(p, q) == p.probabilities, (target, draft)


def test_oracle_accepted_and_corrected_mass_are_the_target_by_id() -> None:
    for target, draft in PAIRS:
        p, q = oracle.from_counts(target), oracle.from_counts(draft)
        corrected = oracle.correction_mass(p, q)
        for token in range(3):
            kept = q[token] * oracle.acceptance(p, q, token) if q[token] else Fraction(0)
            assert kept == min(p[token], q[token])
            assert kept + corrected[token] == p[token]
        rejected = 1 - sum(min(a, b) for a, b in zip(p.probabilities, q.probabilities, strict=True))
        assert sum(corrected) == rejected


def product_law(row: Categorical, target: Sequence[int]) -> dict[tuple[int, bool], Fraction]:
    """The law of (committed token, was it the draft) through the product's functions."""
    logits = logits_of(target, BITS)[np.newaxis].repeat(2, axis=0)

    def run(tickets: TicketSource) -> tuple[int, bool]:
        token = row.token_at(tickets.ticket(BITS, Domain.PROPOSAL, 0, 0))
        verdict = verify_chain(
            position=0,
            round_=0,
            drafts=(token,),
            rows=(row,),
            logits=logits,
            tickets=tickets,
            stop_tokens=frozenset(),
            room=1,
            legal_size=3,
            target_bits=BITS,
        )
        return verdict.tokens[0], verdict.accepted == 1

    return enumerate_runs(run)


@pytest.mark.parametrize("make_row", [dense_row, sparse_row])
def test_product_puts_out_the_target_law_for_every_pair(
    make_row: Callable[[Sequence[int], int], Categorical],
) -> None:
    for target, draft in PAIRS:
        law = product_law(make_row(draft, BITS), target)
        p, q = oracle.from_counts(target), oracle.from_counts(draft)
        corrected = oracle.correction_mass(p, q)
        for token in range(3):
            assert law.get((token, True), 0) == min(p[token], q[token]), (target, draft)
            assert law.get((token, False), 0) == corrected[token], (target, draft)
