"""Seven ways to verify, six of them wrong, with the exact law that each puts out.

p = (.5, .3, .2) and q = (.2, .3, .5) in tenths. Each wrong rule differs from
the right one in one thing only, and each is told from it by an exact number.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from proto_v2.rng import Domain, TicketSource
from specs import oracle
from tests.support import wrong_rules
from tests.support.chains import Prefix, ToyModel, VerifyChain, generate, speculative_round
from tests.support.enumerate_tickets import ScriptedTickets, enumerate_runs
from tests.support.wrong_rules import Rule, as_verify_chain, one_position_law

P = (5, 3, 2)
Q = (2, 3, 5)
STALE_Q = (6, 2, 2)
P_LAW = (Fraction(1, 2), Fraction(3, 10), Fraction(1, 5))
PLAIN_LAW = (Fraction(35, 100), Fraction(39, 100), Fraction(26, 100))


def decimals(*values: str) -> tuple[Fraction, ...]:
    return tuple(Fraction(value) for value in values)


@pytest.mark.parametrize(
    ("rule", "law", "accepted", "variation"),
    [
        (wrong_rules.exact, P_LAW, ".70", "0"),
        (wrong_rules.one_hot, P_LAW, ".29", "0"),
        (wrong_rules.plain_resample, PLAIN_LAW, ".70", ".15"),
        (wrong_rules.only_q_of_x, decimals(".3875", ".4125", ".2"), ".70", ".1125"),
        (wrong_rules.match_or_ratio, PLAIN_LAW, ".76", ".15"),
    ],
)
def test_law_and_acceptance_of_each_rule(
    rule: Rule, law: tuple[Fraction, ...], accepted: str, variation: str
) -> None:
    found, rate = one_position_law(rule, P, Q)
    assert found == law
    assert rate == Fraction(accepted)
    assert oracle.total_variation(found, P_LAW) == Fraction(variation)


def test_law_of_a_stale_q() -> None:
    found, _ = one_position_law(wrong_rules.exact, P, Q, claimed=STALE_Q)
    assert found == (Fraction(1, 6), Fraction(1, 3), Fraction(1, 2))
    assert oracle.total_variation(found, P_LAW) == Fraction(1, 3)


@pytest.mark.parametrize(
    ("probability", "share"),
    [("1e-6", Fraction(404, 3125)), ("5e-6", Fraction(404, 625)), ("1e-5", Fraction(1))],
)
def test_law_of_a_certain_token_that_claims_a_uniform_q(probability: str, share: Fraction) -> None:
    """V = 129280; token 0 comes out .12928 / .6464 / 1 of the time instead of p(0).

    The accepting tickets are a lower set, so its end is found by bisection; and
    a rejection cannot put out token 0, whatever ticket corrects it.
    """
    size = 129_280
    uniform = 3125
    total = size * uniform
    target = np.full(size, uniform, dtype=np.int64)
    target[0] = int(Fraction(probability) * total)
    assert Fraction(int(target[0]), total) == Fraction(probability)
    target[1] += total - target.sum()
    claimed = np.full(size, uniform, dtype=np.int64)

    def accepts(ticket: int) -> bool:
        tickets = ScriptedTickets({Domain.ACCEPTANCE: ticket, Domain.RESIDUAL: 0})
        return wrong_rules.exact(target, claimed, 0, tickets, 0, 0).accepted

    low, high = 0, uniform
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if accepts(middle) else (low, middle)
    assert Fraction(low, uniform) == share
    assert low == uniform or target[0] <= claimed[0], "no residual at token 0"


def test_law_of_the_inclusive_comparison() -> None:
    """A token that the target forbids comes out once in d tickets."""
    found, _ = one_position_law(wrong_rules.inclusive, (8, 2, 0), (2, 3, 5))
    assert found[2] == Fraction(1, 10)


def test_law_of_a_correction_that_reuses_the_proposal_noise() -> None:
    """Rejections of token 2 saw large numbers only, so the correction leans to token 1."""
    p, q = (4, 4, 2), (2, 2, 6)
    found, rate = one_position_law(wrong_rules.shared_noise, p, q)
    right, right_rate = one_position_law(wrong_rules.exact, p, q)
    assert right == decimals(".4", ".4", ".2")
    assert rate == right_rate, "acceptance alone would not show it"
    assert found == (Fraction(4, 15), Fraction(8, 15), Fraction(1, 5))


# --- whole chains: what a drop-in replacement of verify_chain would do ---

TARGETS: dict[int, Sequence[int]] = {-1: (2, 1, 1), 0: (1, 3, 0), 1: (3, 0, 1), 2: (1, 2, 1)}
TOY = ToyModel(
    target=lambda prefix: TARGETS[prefix[-1] if prefix else -1],
    draft=lambda prefix: (0.25, 0.25, 0.5) if len(prefix) != 1 else (0.5, 0.25, 0.25),
    mass_bits=2,
    target_bits=2,
)


def joint_law(verify: VerifyChain) -> dict[Prefix, Fraction]:
    def run(tickets: TicketSource) -> Prefix:
        return generate(TOY, 2, [2], tickets, verify=verify)

    return enumerate_runs(run)


def test_the_drop_in_with_the_right_rule_is_the_product_ticket_for_ticket() -> None:
    replacement = as_verify_chain(wrong_rules.exact)

    def run(tickets: TicketSource) -> bool:
        stops = frozenset({1})
        product = speculative_round(TOY, (), 2, tickets, room=2, stop_tokens=stops)
        planted = speculative_round(
            TOY, (), 2, tickets, room=2, stop_tokens=stops, verify=replacement
        )
        return product == planted

    assert enumerate_runs(run, repeats=True) == {True: 1}


@pytest.mark.parametrize(
    "verify",
    [
        as_verify_chain(wrong_rules.plain_resample),
        as_verify_chain(wrong_rules.only_q_of_x),
        as_verify_chain(wrong_rules.match_or_ratio),
        as_verify_chain(wrong_rules.inclusive),
        wrong_rules.block_with_one_ticket,
    ],
    ids=["plain_resample", "only_q_of_x", "match_or_ratio", "inclusive", "block_with_one_ticket"],
)
def test_a_wrong_rule_in_a_chain_changes_the_joint_law(verify: VerifyChain) -> None:
    assert joint_law(verify) != TOY.target_law(2)


def test_a_lost_q_in_a_chain_keeps_the_law_and_loses_acceptance() -> None:
    replacement = as_verify_chain(wrong_rules.one_hot)
    assert joint_law(replacement) == TOY.target_law(2)

    def accepted(verify: VerifyChain | None) -> Fraction:
        def run(tickets: TicketSource) -> int:
            if verify is None:
                return speculative_round(TOY, (), 2, tickets, room=2).accepted
            return speculative_round(TOY, (), 2, tickets, room=2, verify=verify).accepted

        return sum((n * mass for n, mass in enumerate_runs(run).items()), Fraction(0))

    assert accepted(replacement) < accepted(None)


def test_rows_of_the_round_before_change_the_law_of_the_round_after() -> None:
    """Two rounds of depth 1; the second is judged with the first one's q."""

    def law(stale: bool) -> dict[Prefix, Fraction]:
        def run(tickets: TicketSource) -> Prefix:
            verify = wrong_rules.with_stale_rows() if stale else as_verify_chain(wrong_rules.exact)
            first = speculative_round(TOY, (), 1, tickets, room=1, verify=verify)
            second = speculative_round(
                TOY, first.tokens, 1, tickets, round_=1, room=1, verify=verify
            )
            return first.tokens + second.tokens

        return enumerate_runs(run)

    assert law(stale=False) == TOY.target_law(2)
    assert law(stale=True) != TOY.target_law(2)
