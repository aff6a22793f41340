"""Fault kinds H and C9, verifier's part: stops, length, grammar, accounting."""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from proto_v2.dyadic import Categorical, full_support
from proto_v2.rng import Domain, KeyedTickets, Owner, TicketSource, derive_key
from spark_rank.verify import Finish, LastToken, Verdict, verify_chain
from tests.support.chains import Prefix, ToyModel, generate, propose, speculative_round
from tests.support.enumerate_tickets import ScriptedTickets, enumerate_runs

SIZE = 32
STOP = 2


def certain(tokens: Sequence[int]) -> NDArray[np.float32]:
    """Target logits that allow one token a row."""
    logits = np.full((len(tokens), SIZE), -np.inf, dtype=np.float32)
    logits[np.arange(len(tokens)), list(tokens)] = 0.0
    return logits


def uniform_row() -> Categorical:
    return full_support(np.full(SIZE, 1 / SIZE))


def verify(
    drafts: Sequence[int],
    target: Sequence[int],
    *,
    room: int = 100,
    tickets: TicketSource | None = None,
) -> Verdict:
    """A chain whose target is certain of ``target``, one token for each row."""
    return verify_chain(
        position=0,
        round_=1,
        drafts=drafts,
        rows=[uniform_row()] * len(drafts),
        logits=certain(target),
        tickets=tickets
        or ScriptedTickets({Domain.ACCEPTANCE: 0, Domain.RESIDUAL: 0, Domain.BONUS: 0}),
        stop_tokens=frozenset({STOP}),
        room=room,
        legal_size=SIZE,
    )


@pytest.mark.parametrize("place", range(5))
def test_h01_an_accepted_stop_ends_the_chain_wherever_it_is(place: int) -> None:
    """H1: no bonus, later drafts unverified, and no draw for any of them."""
    chain = [10, 11, 12, 13, 14]
    chain[place] = STOP
    tickets = ScriptedTickets({})
    verdict = verify(chain, [*chain, 20], tickets=tickets)
    assert verdict.tokens == tuple(chain[: place + 1])
    assert verdict.last is LastToken.NONE
    assert verdict.finish is Finish.STOP
    assert (verdict.accepted, verdict.rejected, verdict.unverified) == (place + 1, 0, 4 - place)
    assert tickets.drawn == []


def test_h01_a_stop_as_the_bonus_ends_the_request() -> None:
    """H1: the last token counts like any other."""
    verdict = verify([10, 11, 12, 13, 14], [10, 11, 12, 13, 14, STOP])
    assert verdict.tokens == (10, 11, 12, 13, 14, STOP)
    assert (verdict.last, verdict.finish) == (LastToken.BONUS, Finish.STOP)


def test_h01_rows_after_an_accepted_stop_are_never_evaluated() -> None:
    """H1: logits that would be refused are not even looked at."""
    logits = certain([10, STOP, 12, 13])
    logits[2:] = np.nan
    verdict = verify_chain(
        position=0,
        round_=1,
        drafts=(10, STOP, 12),
        rows=[uniform_row()] * 3,
        logits=logits,
        tickets=ScriptedTickets({}),
        stop_tokens=frozenset({STOP}),
        room=9,
        legal_size=SIZE,
    )
    assert (verdict.accepted, verdict.unverified) == (2, 1)


@pytest.mark.parametrize(
    ("run", "room", "tokens", "finish"),
    [
        ([10, 11, STOP, 20, 21, 22], 5, [10, 11, STOP], Finish.STOP),
        ([10, 11, STOP, 20, 21, 22], 3, [10, 11, STOP], Finish.STOP),
        ([10, 11, STOP, 20, 21, 22], 2, [10, 11], Finish.LENGTH),
        ([10, 11, 12, 20, 21, STOP], 6, [10, 11, 12, 20, 21, STOP], Finish.STOP),
        ([10, 11, 12, 20, 21, STOP], 5, [10, 11, 12, 20, 21], Finish.LENGTH),
        ([10, 11, 12, 20, 21, 22], 6, [10, 11, 12, 20, 21, 22], Finish.LENGTH),
        ([10, 11, 12, 20, 21, 22], 7, [10, 11, 12, 20, 21, 22], Finish.NONE),
        ([10], 1, [10], Finish.LENGTH),
        ([STOP], 1, [STOP], Finish.STOP),
    ],
)
def test_h02_stop_and_length_are_judged_in_token_order(
    run: list[int], room: int, tokens: list[int], finish: Finish
) -> None:
    """H2: the public vector first; a stop beyond the room is a length finish."""
    answers = {Domain.BONUS: 0, Domain.TARGET_ONLY: 0}
    verdict = verify(run[:-1], run, room=room, tickets=ScriptedTickets(answers))
    assert verdict.tokens == tuple(tokens)
    assert verdict.finish is finish
    assert verdict.accepted + verdict.rejected + verdict.unverified == len(run) - 1


def test_h02_a_correction_in_the_last_place_of_the_room() -> None:
    """H2: the room also ends with a correction, and a stop there is a stop."""
    assert verify([10, 11, 12], [10, 20, 21, 22], room=2).finish is Finish.LENGTH
    assert verify([10, 11, 12], [10, STOP, 21, 22], room=2).finish is Finish.STOP


def test_h03_a_proposed_stop_that_is_rejected_ends_nothing() -> None:
    """H3, verifier's part: only a committed stop counts."""
    verdict = verify([10, STOP, 12], [10, 20, 21, 22])
    assert verdict.tokens == (10, 20)
    assert (verdict.last, verdict.finish) == (LastToken.CORRECTION, Finish.NONE)


def test_h05_a_draft_that_the_grammar_forbids_is_rejected_and_corrected_within_it() -> None:
    """H5: p(x3) = 0 rejects on every ticket; the correction is legal at that row."""
    for ticket in (0, (1 << 43) - 1):
        answers = {Domain.ACCEPTANCE: ticket, Domain.RESIDUAL: 0}
        verdict = verify([10, 11, 12, 13], [10, 11, 20, 21, 22], tickets=ScriptedTickets(answers))
        assert verdict.tokens == (10, 11, 20)
        assert (verdict.accepted, verdict.rejected, verdict.unverified) == (2, 1, 1)


def grammar_target(prefix: Prefix) -> Sequence[int]:
    """The grammar begins after the first 1: from then on tokens must alternate 2, 0."""
    if 1 not in prefix:
        return (1, 2, 1)
    return (0, 0, 4) if prefix[-1] != 2 else (4, 0, 0)


def test_h05_a_grammar_that_begins_in_mid_block_holds_on_the_drafted_prefix() -> None:
    """H5: p at row i is that of the prefix and x_1..x_(i-1); the joint law is the target's."""
    model = ToyModel(grammar_target, lambda _: (0.25, 0.5, 0.25), mass_bits=2, target_bits=2)

    def run(tickets: TicketSource) -> Prefix:
        return generate(model, 3, [3], tickets)

    law = enumerate_runs(run)
    assert law == model.target_law(3)
    for tokens in law:
        if 1 in tokens:
            rest = tokens[tokens.index(1) + 1 :]
            assert rest == (2, 0)[: len(rest)]


def test_h08_draws_of_later_rounds_do_not_depend_on_discarded_rows() -> None:
    """H8: tickets are keyed by place, so rows after a stop or rejection leave no trace."""
    print("session seed 32 zero bytes")
    tickets = KeyedTickets(derive_key(bytes(32), bytes(16), 1, 1, Owner.VERIFIER))
    generator = np.random.default_rng(11)
    target = generator.normal(size=(6, SIZE)).astype(np.float32)

    def two_rounds(tail: Sequence[int], depth: int) -> tuple[Verdict, Verdict]:
        logits = np.concatenate((certain([10, STOP]), target))[: depth + 1]
        first = verify_chain(
            position=50,
            round_=1,
            drafts=(10, STOP, *tail)[:depth],
            rows=[uniform_row()] * depth,
            logits=logits,
            tickets=tickets,
            stop_tokens=frozenset({STOP}),
            room=90,
            legal_size=SIZE,
        )
        second = verify_chain(
            position=52,
            round_=2,
            drafts=(3, 4, 5),
            rows=[uniform_row()] * 3,
            logits=target[:4],
            tickets=tickets,
            stop_tokens=frozenset(),
            room=90,
            legal_size=SIZE,
        )
        return first, second

    reference = two_rounds((20, 21, 22), 5)
    assert reference[0].tokens == (10, STOP)
    for tail, depth in (((30, 31, 1), 5), ((20,), 3), ((), 2)):
        first, second = two_rounds(tail, depth)
        assert first.tokens == reference[0].tokens
        assert second == reference[1]


def test_h09_a_penalty_on_earlier_tokens_counts_earlier_drafts_too() -> None:
    """H9: p is computed on the drafted prefix; the joint law is the sequential target's."""

    def penalised(prefix: Prefix) -> Sequence[int]:
        fresh = [token for token in range(3) if token not in prefix]
        if len(fresh) == 3:
            return (2, 1, 1)
        heavy = fresh[0] if fresh else 0
        return [2 if token == heavy else 1 for token in range(3)]

    model = ToyModel(penalised, lambda _: (0.5, 0.25, 0.25), mass_bits=2, target_bits=2)

    def run(tickets: TicketSource) -> Prefix:
        return generate(model, 3, [3], tickets)

    assert enumerate_runs(run) == model.target_law(3)


def test_h09_a_penalty_that_forgets_the_drafts_would_be_seen() -> None:
    """H9: the planted fault takes every row's p from the committed prefix alone."""
    honest = ToyModel(
        lambda prefix: (1, 2, 1) if not prefix else (3, 1, 0), lambda _: (0.5, 0.25, 0.25), 2, 2
    )
    frozen = ToyModel(lambda _: (1, 2, 1), honest.draft, 2, 2)

    def run(tickets: TicketSource) -> Prefix:
        return generate(frozen, 2, [2], tickets)

    assert enumerate_runs(run) != honest.target_law(2)


def test_c09_zero_accepted_and_a_stop_as_the_correction_add_up() -> None:
    """C9: the rejected draft is counted, and the rest as unverified."""
    verdict = verify([10, 11, 12, 13, 14], [STOP, 20, 21, 22, 23, 24])
    assert verdict.tokens == (STOP,)
    assert (verdict.accepted, verdict.rejected, verdict.unverified) == (0, 1, 4)
    assert (verdict.last, verdict.finish) == (LastToken.CORRECTION, Finish.STOP)


def test_c09_the_accounting_adds_up_on_every_ticket() -> None:
    """C9: accepted + rejected + unverified is the depth, and something is committed."""
    model = ToyModel(lambda _: (2, 1, 1), lambda _: (0.25, 0.25, 0.5), mass_bits=2, target_bits=2)

    def run(tickets: TicketSource) -> tuple[Prefix, Verdict]:
        drafts, _ = propose(model, (), 3, tickets, round_=0)
        stops = frozenset({1})
        return drafts, speculative_round(model, (), 3, tickets, room=2, stop_tokens=stops)

    law = enumerate_runs(run, repeats=True)
    assert sum(law.values()) == Fraction(1)
    for drafts, verdict in law:
        assert verdict.accepted + verdict.rejected + verdict.unverified == len(drafts)
        assert 1 <= len(verdict.tokens) <= 2
        assert 1 not in verdict.tokens[:-1], "nothing follows a stop"


def test_the_verifier_draws_nothing_outside_its_own_domains() -> None:
    """PROPOSAL is the worker's."""
    drawn: set[Domain] = set()
    for place in range(6):
        tickets = ScriptedTickets(dict.fromkeys(Domain, 0))
        target = [10, 11, 12, 13, 14, 15]
        target[place] = 20
        verify([10, 11, 12, 13, 14], target, tickets=tickets)
        drawn |= {domain for domain, *_ in tickets.drawn}
    assert drawn == {Domain.ACCEPTANCE, Domain.RESIDUAL, Domain.BONUS}
