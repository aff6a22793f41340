"""The oracle itself: its numbers, its refusals, its poison."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from proto_v2.dyadic import allocate, full_support, top_k
from specs import oracle
from specs.oracle import Categorical, Domain, Identity, Last, OracleError, Owner, Refused
from tests.support.enumerate_tickets import enumerate_runs

F = Fraction
IDENTITY = Identity("request", 1, "target/none/stop")
SEED = 20250803


# --- categoricals ---


def test_dense_normalises_exactly_and_floats_mean_their_binary64_value() -> None:
    assert Categorical.dense([1, 2, 1]).probabilities == (F(1, 4), F(1, 2), F(1, 4))
    tenth = Categorical.dense([0.1, 0.9])[0]
    assert tenth == F(0.1) / (F(0.1) + F(0.9))
    assert tenth != F(1, 10)


@pytest.mark.parametrize(
    "weights",
    [[], [0, 0], [1, -1], [-0.5, 1.5], [float("nan"), 1.0], [float("inf"), 1.0]],
)
def test_unusable_weights_are_refused(weights: list[float]) -> None:
    with pytest.raises(OracleError):
        Categorical.dense(weights)


def test_sparse_topk_breaks_ties_by_the_lowest_id_and_zeroes_the_rest() -> None:
    q = Categorical.dense([1, 3, 2, 3, 2])
    assert q.sparse_topk(1).support == (1,)
    assert q.sparse_topk(2) == Categorical.dense([0, 1, 0, 1, 0])
    assert q.sparse_topk(3).support == (1, 2, 3)
    assert q.sparse_topk(9) == q
    with pytest.raises(OracleError):
        q.sparse_topk(0)


def test_token_at_gives_every_token_its_tickets() -> None:
    q = Categorical.dense([2, 0, 3])
    assert q.tickets == 5
    assert [q.token_at(ticket) for ticket in range(5)] == [0, 0, 2, 2, 2]
    for ticket in (-1, 5):
        with pytest.raises(OracleError):
            q.token_at(ticket)


def test_fp32_weights_round_underflow_and_refuse() -> None:
    assert oracle.fp32_weights([0.1]) == (F(float(np.float32(0.1))),)
    assert oracle.fp32_weights([1e-60, 1.0]) == (F(0), F(1))
    for weights in ([1e39], [1e-60], [float("nan")], [-1.0], []):
        with pytest.raises(OracleError):
            oracle.fp32_weights(weights)


def test_both_ends_of_fp32_weights_hold_one_distribution() -> None:
    weights = [0.1, 0.7, 0.2]
    sender = Categorical.dense(oracle.fp32_weights(weights))
    received = [float(value) for value in oracle.fp32_weights(weights)]
    assert Categorical.dense(received) == sender
    assert Categorical.dense(weights) != sender, "rounding after drawing would change q"


@pytest.mark.parametrize("mass_bits", [2, 8, 24])
def test_product_allocates_as_the_oracle(mass_bits: int) -> None:
    print(f"seed {SEED}")
    generator = np.random.default_rng(SEED)
    for size in (1, 2, 3, 40, 300):
        q = generator.dirichlet(np.full(size, 0.4))
        q[generator.random(size) < 0.3] = 0.0
        q = q / q.sum() if q.any() else np.full(size, 1 / size)
        assert tuple(allocate(q, mass_bits).tolist()) == oracle.dyadic_counts(q.tolist(), mass_bits)


def test_product_breaks_ties_of_remainders_as_the_oracle() -> None:
    q = np.full(6, 1 / 6)
    assert full_support(q, 3).counts.tolist() == [2, 2, 1, 1, 1, 1]
    assert oracle.dyadic_counts(q.tolist(), 3) == (2, 2, 1, 1, 1, 1)


def test_product_and_oracle_choose_the_same_support() -> None:
    print(f"seed {SEED}")
    generator = np.random.default_rng(SEED)
    for _ in range(50):
        weights = generator.integers(1, 6, size=12) / 64
        weights[11] = 1 - weights[:11].sum()
        row = top_k(weights, 4)
        wanted = Categorical.dense(weights.tolist()).sparse_topk(4)
        assert row.ids is not None
        assert tuple(row.ids.tolist()) == wanted.support
        for token in wanted.support:
            assert abs(F(row.count_of(token), 1 << 24) - wanted[token]) < F(1, 1 << 23)


def test_a_badly_normalised_row_is_refused() -> None:
    with pytest.raises(OracleError):
        oracle.dyadic_counts([F(1, 2), F(1, 4), 0], 2)
    with pytest.raises(OracleError):
        oracle.dyadic_counts([F(3, 4), F(3, 4)], 2)


def test_target_counts_give_the_deficit_to_the_lowest_of_the_most_probable() -> None:
    assert oracle.target_counts([F(1, 3), F(1, 3), F(1, 3)], 2) == (2, 1, 1)
    with pytest.raises(OracleError):
        oracle.target_counts([F(3, 4), F(3, 4)], 2)


# --- one position ---


def test_equal_laws_accept_always_and_have_no_residual() -> None:
    p = Categorical.dense([5, 3, 2])
    assert [oracle.acceptance(p, p, token) for token in range(3)] == [1, 1, 1]
    with pytest.raises(OracleError):
        oracle.residual(p, p)


def test_a_token_that_q_never_draws_has_no_acceptance() -> None:
    with pytest.raises(OracleError):
        oracle.acceptance(Categorical.dense([1, 1]), Categorical.dense([1, 0]), 1)
    with pytest.raises(OracleError):
        oracle.acceptance(Categorical.dense([1, 1]), Categorical.dense([1, 1, 1]), 1)


# --- sessions ---

THIRDS = Categorical.dense([1, 1, 1])


class CountedTickets:
    """Answers zero and counts; a refusal must not have drawn."""

    def __init__(self) -> None:
        self.drawn: list[Domain] = []

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        self.drawn.append(domain)
        return 0


def session(
    target: Callable[[tuple[int, ...]], Categorical] = lambda _: THIRDS,
    *,
    tickets: oracle.Tickets | None = None,
    processors: Sequence[Callable[[tuple[int, ...], Categorical], Categorical]] = (),
    room: int = 9,
) -> oracle.Verifier:
    return oracle.Verifier(
        target,
        IDENTITY,
        (0,),
        tickets or CountedTickets(),
        processors=processors,
        stop_tokens=frozenset({2}),
        room=room,
    )


PROPOSAL = oracle.Proposal(IDENTITY, Owner.WORKER, 1, (0,), (0, 1), (THIRDS, THIRDS))


@pytest.mark.parametrize(
    "bad",
    [
        replace(PROPOSAL, owner=Owner.VERIFIER),
        replace(PROPOSAL, identity=Identity("other", 1, IDENTITY.context)),
        replace(PROPOSAL, identity=Identity("request", 2, IDENTITY.context)),
        replace(PROPOSAL, identity=Identity("request", 1, "target/none/another stop")),
        replace(PROPOSAL, prefix=(0, 1)),
        replace(PROPOSAL, tokens=(), rows=()),
        replace(PROPOSAL, tokens=(0,) * 6, rows=(THIRDS,) * 6),
        replace(PROPOSAL, rows=(THIRDS,)),
        replace(PROPOSAL, rows=(THIRDS, Categorical.dense([1, 0, 1]))),
        replace(PROPOSAL, tokens=(0, 3)),
        replace(PROPOSAL, tokens=(0, -1)),
    ],
)
def test_a_proposal_for_another_state_is_refused_and_leaves_no_trace(bad: oracle.Proposal) -> None:
    tickets = CountedTickets()
    verifier = session(tickets=tickets)
    with pytest.raises(Refused):
        verifier.verify(bad)
    assert tickets.drawn == []
    assert (verifier.prefix, verifier.poisoned) == ((0,), False)
    assert verifier.verify(PROPOSAL).last is Last.BONUS, "its round was not used up"


def test_a_round_is_used_once() -> None:
    verifier = session()
    verifier.target_only(3)
    for used in (3, 2):
        with pytest.raises(Refused):
            verifier.target_only(used)
    verifier.target_only(4)


def test_a_failing_target_commits_nothing_and_poisons_until_rebuilt() -> None:
    """The second row fails, after the first one was drawn for."""

    def target(prefix: tuple[int, ...]) -> Categorical:
        if broken and len(prefix) == 2:
            raise RuntimeError("device lost")
        return THIRDS

    broken = True
    verifier = session(target)
    with pytest.raises(RuntimeError):
        verifier.verify(PROPOSAL)
    broken = False
    assert (verifier.prefix, verifier.poisoned) == ((0,), True)
    with pytest.raises(Refused):
        verifier.target_only(2)
    with pytest.raises(Refused):
        verifier.rebuild(1, CountedTickets())
    verifier.rebuild(2, CountedTickets())
    assert verifier.target_only(1).tokens == (0,), "rounds begin again in a new generation"
    assert verifier.prefix == (0, 0)
    with pytest.raises(Refused):
        verifier.verify(replace(PROPOSAL, prefix=(0, 0), round_=2))


def test_rows_after_an_accepted_stop_are_not_evaluated() -> None:
    seen: list[tuple[int, ...]] = []

    def target(prefix: tuple[int, ...]) -> Categorical:
        seen.append(prefix)
        return THIRDS

    tickets = CountedTickets()
    verifier = session(target, tickets=tickets)
    outcome = verifier.verify(replace(PROPOSAL, tokens=(2, 1)))
    assert outcome == oracle.Round((2,), 1, 0, 1, Last.NONE)
    assert seen == [(0,)]
    assert tickets.drawn == []
    assert verifier.finished
    with pytest.raises(Refused):
        verifier.target_only(2)


def test_the_length_ends_the_request() -> None:
    verifier = session(room=2)
    assert verifier.verify(PROPOSAL) == oracle.Round((0, 1), 2, 0, 0, Last.NONE)
    assert verifier.finished
    with pytest.raises(Refused):
        session(room=0)


def test_processors_see_the_drafted_prefix_and_forbid_drafts() -> None:
    """A grammar that never repeats a token: the second draft repeats the first."""

    def no_repeat(prefix: tuple[int, ...], p: Categorical) -> Categorical:
        return Categorical.dense(
            [0 if token == prefix[-1] else mass for token, mass in enumerate(p.probabilities)]
        )

    verifier = session(processors=(no_repeat,))
    outcome = verifier.verify(replace(PROPOSAL, tokens=(1, 1)))
    assert outcome.last is Last.CORRECTION
    assert (outcome.accepted, outcome.rejected) == (1, 1)
    assert outcome.tokens[1] != 1


@pytest.mark.parametrize("depth", [0, 6])
def test_a_proposal_has_a_depth_of_one_to_five(depth: int) -> None:
    with pytest.raises(Refused):
        oracle.propose(lambda _: THIRDS, IDENTITY, (0,), depth, CountedTickets(), 1)


def test_each_q_is_conditioned_on_the_tokens_drawn_before_it() -> None:
    seen: list[tuple[int, ...]] = []

    def draft(prefix: tuple[int, ...]) -> Categorical:
        seen.append(prefix)
        return Categorical.dense([1, len(prefix), 1])

    worker = oracle.Streams(b"seed", "request", 1, Owner.WORKER)
    drawn = oracle.propose(draft, IDENTITY, (0,), 5, worker, 1)
    assert seen == [(0, *drawn.tokens[:index]) for index in range(5)]
    assert drawn.rows == tuple(Categorical.dense([1, n, 1]) for n in range(1, 6))


def test_the_oracles_session_has_the_joint_target_law() -> None:
    """Depth 2, every ticket, with a processor that looks at the prefix."""

    def rising(prefix: tuple[int, ...], p: Categorical) -> Categorical:
        return Categorical.dense(
            [m * (1 + (t > prefix[-1])) for t, m in enumerate(p.probabilities)]
        )

    def run(tickets: oracle.Tickets) -> tuple[int, ...]:
        verifier = oracle.Verifier(
            lambda _: THIRDS, IDENTITY, (0,), tickets, processors=(rising,), room=2
        )
        drawn = oracle.propose(
            lambda _: Categorical.dense([2, 1, 1]), IDENTITY, (0,), 2, tickets, 1
        )
        verifier.verify(drawn)
        while not verifier.finished:
            verifier.target_only(2)
        return verifier.prefix[1:]

    law = enumerate_runs(run)
    for first in range(3):
        for second in range(3):
            p1 = rising((0,), THIRDS)[first]
            assert law[first, second] == p1 * rising((first,), THIRDS)[second]


# --- streams ---


def test_streams_are_functions_of_the_whole_question() -> None:
    base = (Owner.WORKER, b"s", "r", 1, Domain.PROPOSAL, 4, 7)

    def ask(owner: Owner, seed: bytes, request: str, generation: int, *question: object) -> int:
        domain, position, round_ = question
        assert isinstance(domain, Domain)
        assert isinstance(position, int)
        assert isinstance(round_, int)
        stream = oracle.Streams(seed, request, generation, owner)
        return stream.below(1 << 64, domain, position, round_)

    changes = (Owner.VERIFIER, b"t", "q", 2, Domain.RESIDUAL, 5, 8)
    answers = {ask(*base)}
    for place, change in enumerate(changes):
        changed = list(base)
        changed[place] = change
        answers.add(ask(*changed))  # type: ignore[arg-type]
    assert len(answers) == 8
    assert ask(*base) in answers


def test_streams_leave_the_global_random_state_alone() -> None:
    before = random.getstate()
    oracle.Streams(b"s", "r", 1, Owner.WORKER).below(10, Domain.BONUS, 0, 0)
    assert random.getstate() == before


def test_streams_reach_every_ticket_and_no_other() -> None:
    stream = oracle.Streams(b"s", "r", 1, Owner.WORKER)
    drawn = {stream.below(5, Domain.BONUS, position, 0) for position in range(200)}
    assert drawn == set(range(5))
    assert stream.below(1, Domain.BONUS, 0, 0) == 0
    assert stream.below(1 << 2000, Domain.BONUS, 0, 0) > 1 << 1900
    with pytest.raises(ValueError, match="below 0"):
        stream.below(0, Domain.BONUS, 0, 0)
