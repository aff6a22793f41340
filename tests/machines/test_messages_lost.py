"""Every message of every hop: repeated, lost, or damaged once.

The scenario has two requests that run, one that is aborted, a draft engine
that fails once (so that a generation is invalidated), and idle time for pings.
A repeated message changes nothing. A lost or damaged one costs time, drafts,
or the requests of its round with a named error; never more, and never a hang.
"""

from collections.abc import Callable, Sequence

import pytest

from proto_v2.errors import Code
from proto_v2.messages import (
    AnyMessage,
    Applied,
    Cancel,
    Commit,
    Completion,
    Decide,
    Decision,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Open,
    Ping,
    Pong,
    Prepare,
    Prepared,
    Ready,
    Reset,
    Rows,
    Step,
    TermsAgreed,
    Verdicts,
)
from tests.support.doubles import SEED, Bench
from tests.support.trio import Answer
from tests.support.wire import Frames, Sent, Wire, drop, flip, twice

LENGTH = 8
HOPS: list[tuple[type[AnyMessage], str, str]] = [
    *((kind, "rank0", "worker") for kind in (Hello, TermsAgreed, Reset, Step, Commit, Cancel)),
    *((kind, "worker", "rank0") for kind in (Hello, TermsAgreed, Ready, Rows, Completion)),
    *((kind, "rank0", "rank1") for kind in (Hello, TermsAgreed, Open, Step, Rows, Completion)),
    *((kind, "rank0", "rank1") for kind in (Prepare, Invalidate, Decide, Decision, Cancel)),
    *((kind, "rank1", "rank0") for kind in (Hello, TermsAgreed)),
    *((kind, "rank1", "rank0") for kind in (Prepared, Invalidated, Verdicts, Applied)),
    *((kind, "rank0", other) for kind in (Ping, Pong) for other in ("worker", "rank1")),
    *((kind, other, "rank0") for kind in (Ping, Pong) for other in ("worker", "rank1")),
]
NAMES = [f"{kind.__name__}-{source}-{destination}" for kind, source, destination in HOPS]
hops = pytest.mark.parametrize(("kind", "source", "destination"), HOPS, ids=NAMES)

# Why a request may end when one message between the ranks is lost: rank 1 then never
# learned of the request, or of the step.
NAMED = {Code.RANK_LOST, Code.SESSION_UNKNOWN, Code.ROUND_AHEAD, Code.POSITION_MISMATCH}

Act = Callable[[Sent, Message], list[Frames]]


def scenario(wire: Wire) -> tuple[Bench, list[Answer]]:
    bench = Bench(intercept=wire)
    trio = bench.trio
    failed = False

    def fail_once(context: Sequence[int]) -> None:
        nonlocal failed
        if len(context) > 4 and not failed:
            failed = True
            raise RuntimeError("the draft engine fails once")

    bench.draft.fails = fail_once
    trio.run(seconds=3.5)  # until both links stand, whatever was lost, and pings have gone
    answers = [
        trio.generate(key, [key, 2], LENGTH, depth=3, seed=SEED, support=3 * key)
        for key in range(2)
    ]
    aborted = trio.generate(2, [1], 200, depth=2, seed=SEED)
    trio.run(messages=25)
    trio.abort(2)
    trio.run(seconds=9)
    assert aborted.failed is not None
    for answer in (*answers, aborted):
        assert (answer.finished is None) != (answer.failed is None), "ended, and once"
    assert all(answer.failed is None or answer.failed.code in NAMED for answer in answers)
    assert not trio.stopped
    more = [trio.generate(key, [key], LENGTH, depth=3, seed=SEED) for key in range(3, 7)]
    trio.run(seconds=9)
    assert all((answer.finished is None) != (answer.failed is None) for answer in more)
    last = trio.generate(7, [7], LENGTH, depth=3, seed=SEED)
    trio.run(seconds=9)
    assert last.finished is not None
    assert last.finished.drafted > 0, "the service speculates again"
    bench.check_rest()
    return bench, answers


@pytest.fixture(scope="module")
def undisturbed() -> list[list[int]]:
    wire = Wire()
    _, answers = scenario(wire)
    seen = {(type(sent.message), sent.source, sent.destination) for sent in wire.sent}
    assert seen == set(HOPS), "every hop of every kind is in the list"
    return [answer.tokens for answer in answers]


@hops
def test_repeated_messages_change_nothing(
    kind: type[AnyMessage], source: str, destination: str, undisturbed: list[list[int]]
) -> None:
    """Every message of one kind arrives twice."""
    wire = Wire()
    hits = wire.when(kind, twice, source=source, destination=destination, times=1_000_000)
    _, answers = scenario(wire)
    assert hits.count
    assert [answer.tokens for answer in answers] == undisturbed


@hops
@pytest.mark.parametrize("skip", [0, 3])
def test_a_lost_message_ends_nothing_but_its_round(
    kind: type[AnyMessage], source: str, destination: str, skip: int
) -> None:
    wire = Wire()
    hits = wire.when(kind, drop, source=source, destination=destination, skip=skip)
    scenario(wire)
    assert hits.count == 1 or hits.seen <= skip


@hops
@pytest.mark.parametrize("act", [flip(0, 20), flip(-1, -1)], ids=["header", "end"])
def test_a_damaged_message_is_refused_and_ends_nothing_but_its_round(
    kind: type[AnyMessage], source: str, destination: str, act: Act
) -> None:
    wire = Wire()
    hits = wire.when(kind, act, source=source, destination=destination, skip=1)
    bench, _ = scenario(wire)
    assert hits.count == 1 or hits.seen <= 1
    if hits.count:
        refused = bench.trio.count(destination, "pp1_messages_rejected_total")
        discarded = bench.trio.count("rank0", "pp1_proposals_discarded_total")
        assert refused + (discarded if kind is Rows else 0) > 0
