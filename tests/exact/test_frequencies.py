"""Frequencies of the product at full masses, under its own RNG.

A histogram proves no law; these tests connect the exact ones to the real
masses, keys and counters. The bound of every cell, six binomial standard
deviations plus one count, was fixed before the first run. The same bound must
tell the planted rules from the right one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from math import sqrt

import numpy as np
import pytest

from proto_v2 import limits
from proto_v2.dyadic import Categorical, full_support, top_k
from proto_v2.rng import Domain, KeyedTickets, Owner, derive_key
from spark_rank.verify import Verdict, verify_chain
from tests.support import wrong_rules
from tests.support.chains import VerifyChain
from tests.support.wrong_rules import as_verify_chain

P = np.array([0.5, 0.3, 0.2])
Q = np.array([0.2, 0.3, 0.5])
STALE_Q = np.array([0.6, 0.2, 0.2])
SEED = b"frequencies of the product tests"
CHAINS = 4000

assert len(SEED) == limits.SEED_BYTES

Rows = Callable[[int], Categorical]


def within(observed: int, trials: int, probability: float) -> bool:
    """Six binomial sigma plus one count."""
    spread = sqrt(trials * probability * (1 - probability))
    return abs(observed - trials * probability) <= 6 * spread + 1


def run_chains(
    count: int,
    draft_rows: Rows,
    target: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    depth: int,
    *,
    verify: VerifyChain = verify_chain,
    claimed: Categorical | None = None,
) -> list[Verdict]:
    """Independent chains of an order-1 model; row -1 of everything is the prompt's."""
    print(f"session seed {SEED!r}")
    worker = KeyedTickets(derive_key(SEED, bytes(16), 5, 1, Owner.WORKER))
    verifier = KeyedTickets(derive_key(SEED, bytes(16), 5, 1, Owner.VERIFIER))
    with np.errstate(divide="ignore"):
        logits = np.log(target).astype(np.float32)
    verdicts = []
    for round_ in range(count):
        tokens: list[int] = []
        rows = []
        for index in range(depth):
            row = draft_rows(tokens[-1] if tokens else -1)
            ticket = worker.ticket(limits.MASS_BITS, Domain.PROPOSAL, 20 + index, round_)
            tokens.append(row.token_at(ticket))
            rows.append(claimed or row)
        verdicts.append(
            verify(
                position=20,
                round_=round_,
                drafts=tokens,
                rows=rows,
                logits=logits[[-1, *tokens]],
                tickets=verifier,
                stop_tokens=frozenset(),
                room=depth + 1,
                legal_size=logits.shape[1],
            )
        )
    return verdicts


def first_tokens(verify: VerifyChain, claimed: Categorical | None = None) -> list[bool]:
    """Whether each token's frequency at depth 1 is within its bound of p."""
    row = full_support(Q)
    verdicts = run_chains(
        CHAINS, lambda _: row, np.stack([P] * 4), 1, verify=verify, claimed=claimed
    )
    seen = Counter(verdict.tokens[0] for verdict in verdicts)
    print(dict(sorted(seen.items())))
    return [within(seen[token], CHAINS, P[token]) for token in range(3)]


def test_the_product_puts_out_p() -> None:
    assert all(first_tokens(verify_chain))


@pytest.mark.parametrize(
    "rule",
    [wrong_rules.plain_resample, wrong_rules.only_q_of_x, wrong_rules.match_or_ratio],
    ids=["plain_resample", "only_q_of_x", "match_or_ratio"],
)
def test_the_bound_tells_a_wrong_rule(rule: wrong_rules.Rule) -> None:
    assert not all(first_tokens(as_verify_chain(rule)))


def test_the_bound_tells_a_stale_q() -> None:
    assert not all(first_tokens(verify_chain, claimed=full_support(STALE_Q)))


def test_acceptance_tells_a_lost_q() -> None:
    row = full_support(Q)
    accepted = {}
    for name, verify in (
        ("exact", verify_chain),
        ("one hot", as_verify_chain(wrong_rules.one_hot)),
    ):
        verdicts = run_chains(CHAINS, lambda _: row, np.stack([P] * 4), 1, verify=verify)
        accepted[name] = sum(verdict.accepted for verdict in verdicts)
    print(accepted)
    assert within(accepted["exact"], CHAINS, 0.70)
    assert within(accepted["one hot"], CHAINS, 0.29)
    assert not within(accepted["one hot"], CHAINS, 0.70)


TRANSITIONS = np.array([[0.1, 0.6, 0.3], [0.45, 0.1, 0.45], [0.0, 0.25, 0.75], [0.5, 0.3, 0.2]])
DRAFT_WEIGHTS: Sequence[Sequence[float]] = (
    (0.3, 0.4, 0.3),
    (0.5, 0.2, 0.3),
    (0.2, 0.3, 0.5),
    (0.4, 0.2, 0.4),
)


@pytest.mark.parametrize(("depth", "chains"), [(2, 3000), (5, 2000)])
@pytest.mark.parametrize("support", [0, 2])
def test_conditional_frequencies_of_whole_chains(depth: int, chains: int, support: int) -> None:
    """Each committed token, given the one before it and that its place was reached.

    Reaching place i is decided by the tokens and tickets before it, so the
    conditional law is the target's row whatever the acceptance was.
    """
    weights = [np.array(row) for row in DRAFT_WEIGHTS]
    rows = [top_k(w, support) if support else full_support(w) for w in weights]
    verdicts = run_chains(chains, lambda before: rows[before], TRANSITIONS, depth)
    for place in range(depth + 1):
        reached: Counter[int] = Counter()
        seen: Counter[tuple[int, int]] = Counter()
        for tokens in (v.tokens for v in verdicts if len(v.tokens) > place):
            before = tokens[place - 1] if place else -1
            reached[before] += 1
            seen[before, tokens[place]] += 1
        for before, trials in reached.items():
            for token in range(3):
                probability = float(TRANSITIONS[before, token])
                found = seen[before, token]
                assert within(found, trials, probability), (place, before, token, found, trials)
