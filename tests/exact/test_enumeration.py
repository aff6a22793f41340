"""Every ticket of whole rounds through the product's functions, at small masses.

What generation puts out must be the quantised target's joint law, as
Fractions, whatever the draft: with dense and sparse rows, with chains deeper
than what is left to generate, and with rounds of different depths after one
another.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import full_support
from proto_v2.rng import Domain, KeyedTickets, Owner, TicketSource, derive_key
from spark_rank.residual import quantise_target
from spark_rank.verify import LastToken, Verdict, verify_chain
from specs import oracle
from tests.support.chains import Prefix, ToyModel, generate, propose, speculative_round
from tests.support.enumerate_tickets import enumerate_runs

# Target counts of eight and draft weights, by the last token; -1 is the prompt's.
TARGETS: dict[int, Sequence[int]] = {-1: (4, 2, 2), 0: (1, 6, 1), 1: (5, 0, 3), 2: (2, 1, 5)}
DRAFTS: dict[int, Sequence[float]] = {
    -1: (0.2, 0.3, 0.5),
    0: (0.5, 0.25, 0.25),
    1: (0.1, 0.8, 0.1),
    2: (0.0, 0.6, 0.4),
}


def last(prefix: Prefix) -> int:
    return prefix[-1] if prefix else -1


def model(
    mass_bits: int = 2, target_bits: int = 3, support: int = 0, draft_knows: bool = False
) -> ToyModel:
    """The chain above, its target counts scaled to ``target_bits``."""
    scale = 1 << (target_bits - 3)

    def target(prefix: Prefix) -> Sequence[int]:
        return [count * scale for count in TARGETS[last(prefix)]]

    def draft(prefix: Prefix) -> Sequence[float]:
        if draft_knows:
            return [count / 8 for count in TARGETS[last(prefix)]]
        return DRAFTS[last(prefix)]

    return ToyModel(target, draft, mass_bits, target_bits, support)


def generated_law(toy: ToyModel, length: int, depths: Sequence[int]) -> dict[Prefix, Fraction]:
    def run(tickets: TicketSource) -> Prefix:
        return generate(toy, length, depths, tickets)

    return enumerate_runs(run)


@pytest.mark.parametrize("support", [0, 1, 2])
@pytest.mark.parametrize(("mass_bits", "target_bits"), [(2, 3), (3, 5), (4, 4)])
def test_depth_1_gives_the_target_law(mass_bits: int, target_bits: int, support: int) -> None:
    toy = model(mass_bits, target_bits, support)
    assert generated_law(toy, 1, [1]) == toy.target_law(1)


@pytest.mark.parametrize("support", [0, 2])
@pytest.mark.parametrize("depths", [(2,), (1,), (1, 1), ()])
def test_two_tokens_have_the_joint_target_law(depths: Sequence[int], support: int) -> None:
    toy = model(support=support)
    assert generated_law(toy, 2, depths) == toy.target_law(2)


def test_two_tokens_at_a_finer_mass() -> None:
    toy = model(mass_bits=3, target_bits=4)
    assert generated_law(toy, 2, [2]) == toy.target_law(2)


@pytest.mark.parametrize("support", [0, 2])
@pytest.mark.parametrize("depths", [(3,), (2, 1)])
def test_three_tokens_have_the_joint_target_law(depths: Sequence[int], support: int) -> None:
    """Quarters on both sides keep this tree small."""
    targets = {-1: (1, 2, 1), 0: (3, 1, 0), 1: (1, 1, 2), 2: (0, 1, 3)}
    toy = ToyModel(
        target=lambda prefix: targets[last(prefix)],
        draft=lambda prefix: DRAFTS[last(prefix)],
        mass_bits=2,
        target_bits=2,
        support=support,
    )
    assert generated_law(toy, 3, depths) == toy.target_law(3)


def test_depth_5_with_a_draft_that_has_two_tokens_only() -> None:
    """A full-depth chain; one bit of mass and two of target keep the tree small."""
    toy = ToyModel(
        target=lambda prefix: (1, 3) if last(prefix) else (3, 1),
        draft=lambda _: (0.5, 0.5),
        mass_bits=1,
        target_bits=2,
    )
    assert generated_law(toy, 5, [5]) == toy.target_law(5)


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    toy = model(mass_bits=3, draft_knows=True)

    def run(tickets: TicketSource) -> Verdict:
        return speculative_round(toy, (), 2, tickets, room=3)

    assert {verdict.accepted for verdict in enumerate_runs(run)} == {2}


def test_committed_tokens_beyond_a_rejection_never_come_from_the_draft() -> None:
    """The chain ends at the first rejection; its accounting always adds up."""
    toy = model()

    def run(tickets: TicketSource) -> tuple[Prefix, Verdict]:
        drafts, _ = propose(toy, (), 2, tickets, round_=0)
        return drafts, speculative_round(toy, (), 2, tickets, room=3)

    for drafts, verdict in enumerate_runs(run, repeats=True):
        assert verdict.tokens[: verdict.accepted] == drafts[: verdict.accepted]
        assert verdict.accepted + verdict.rejected + verdict.unverified == 2
        assert (verdict.last is LastToken.CORRECTION) == (verdict.rejected == 1)
        assert (verdict.last is LastToken.BONUS) == (verdict.accepted == 2)


def oracle_rows(toy: ToyModel, prefix: Prefix) -> oracle.Categorical:
    return oracle.from_counts(toy.row(prefix).dense().tolist())


def oracle_verifier(toy: ToyModel, tickets: oracle.Tickets, room: int) -> oracle.Verifier:
    return oracle.Verifier(
        lambda prefix: oracle.from_counts(toy.target(prefix)),
        oracle.Identity("toy", 1, "toy"),
        (),
        tickets,
        room=room,
    )


@pytest.mark.parametrize("support", [0, 2])
def test_product_and_oracle_have_the_same_law_of_one_round(support: int) -> None:
    """Not the tokens alone: also what was accepted, rejected, left and added."""
    toy = model(support=support)

    def product_run(tickets: TicketSource) -> tuple[object, ...]:
        v = speculative_round(toy, (), 2, tickets, room=3)
        return v.tokens, v.accepted, v.rejected, v.unverified, v.last.name

    def oracle_run(tickets: oracle.Tickets) -> tuple[object, ...]:
        session = oracle_verifier(toy, tickets, room=3)
        proposal = oracle.propose(
            lambda prefix: oracle_rows(toy, prefix), session.identity, (), 2, tickets, 0
        )
        r = session.verify(proposal)
        return r.tokens, r.accepted, r.rejected, r.unverified, r.last.name

    assert enumerate_runs(product_run) == enumerate_runs(oracle_run)


class OracleTickets:
    """The product's keyed tickets, asked by the oracle."""

    def __init__(self, tickets: KeyedTickets) -> None:
        self._tickets = tickets

    def below(self, bound: int, domain: oracle.Domain, position: int, round_: int) -> int:
        return self._tickets.below(bound, Domain(domain), position, round_)


def both_verify(
    case: int, depth: int, weights: NDArray[np.float64], logits: NDArray[np.float32]
) -> tuple[Verdict, oracle.Round]:
    """One chain of random rows through the product and through the oracle."""
    worker = KeyedTickets(derive_key(bytes(32), bytes(16), case, 1, Owner.WORKER))
    verifier = KeyedTickets(derive_key(bytes(32), bytes(16), case, 1, Owner.VERIFIER))
    rows = [full_support(weights[i], limits.MASS_BITS) for i in range(depth)]
    drafts = tuple(
        row.token_at(worker.ticket(limits.MASS_BITS, Domain.PROPOSAL, i, case))
        for i, row in enumerate(rows)
    )
    outcome = verify_chain(
        position=0,
        round_=case,
        drafts=drafts,
        rows=rows,
        logits=logits[: depth + 1],
        tickets=verifier,
        stop_tokens=frozenset(),
        room=6,
        legal_size=12,
    )
    targets = [oracle.from_counts(quantise_target(row, legal_size=12).tolist()) for row in logits]
    identity = oracle.Identity("random", 1, "random")
    session = oracle.Verifier(
        lambda prefix: targets[len(prefix)], identity, (), OracleTickets(verifier), room=6
    )
    if depth == 0:
        return outcome, session.target_only(case)
    q = tuple(oracle.from_counts(row.counts.tolist()) for row in rows)
    proposal = oracle.Proposal(identity, oracle.Owner.WORKER, case, (), drafts, q)
    return outcome, session.verify(proposal)


def test_product_and_oracle_take_the_same_tokens_from_the_same_words() -> None:
    """At full masses, under the product's RNG, on random rows of 12 tokens.

    Lemire's reduction is proportional, so counts and reduced fractions read
    the same token from one 64-bit word but for a chance of about 2**-60 a draw.
    """
    seed = 20250801
    print(f"seed {seed}")
    generator = np.random.default_rng(seed)
    for case in range(150):
        depth = case % 6
        base = generator.dirichlet(np.full(12, 0.6), size=6)
        mixed = 0.5 * base + 0.5 * generator.dirichlet(np.full(12, 0.6), size=6)
        logits = np.log(base).astype(np.float32)
        outcome, reference = both_verify(case, depth, mixed, logits)
        assert outcome.tokens == reference.tokens, f"case {case}"
        assert (outcome.accepted, outcome.rejected, outcome.unverified) == (
            reference.accepted,
            reference.rejected,
            reference.unverified,
        )
