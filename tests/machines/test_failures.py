"""What goes wrong around the machines: processes, engines, deadlines, refusals.

A worker that fails costs drafts and nothing else. A rank or a target engine
that fails ends the requests concerned with a named error on every side.
"""

import re
from collections.abc import Sequence

import pytest

from proto_v2 import limits
from proto_v2.codec import encode
from proto_v2.effects import Peer
from proto_v2.errors import Code
from proto_v2.messages import (
    Applied,
    Cancel,
    Commit,
    Completion,
    Decide,
    Decision,
    Hello,
    Invalidated,
    Message,
    Nak,
    Open,
    Prepare,
    Prepared,
    Ready,
    Reset,
    Role,
    Rows,
    Step,
    Verdicts,
    tokens_to_bytes,
)
from proto_v2.peerlink import LinkTiming
from proto_v2.representation import Representation
from spark_rank.breaker import Breaker
from spark_rank.machine import Timing
from tests.support.checks import check_done, code_of, reasons, replace, speculates_after
from tests.support.doubles import DENSE, SPARSE, Bench
from tests.support.trio import MS
from tests.support.wire import Frames, Held, Sent, Wire, change, drop

LENGTH = 30


# --- the worker ------------------------------------------------------------------------


def test_a_worker_that_goes_away_in_mid_round_costs_one_proposal() -> None:
    bench = Bench()
    trio = bench.trio
    trio.busy = {"worker"}  # the draft never comes
    answers = [trio.generate(key, [key], LENGTH, depth=3) for key in range(2)]
    trio.run()
    assert trio.rank0.actives
    trio.kill("worker")
    trio.disconnect("worker")
    trio.run()
    for answer in answers:  # target-only to the end
        assert answer.finished is not None
        assert answer.finished.drafted == 0
    assert trio.count("rank0", "pp1_no_draft_total", reason="WORKER_DOWN") > 0
    assert trio.count("rank0", "pp1_generations_invalidated_total", reason="WORKER_DOWN") == 2


def test_a_worker_restarted_at_the_same_address_is_a_new_one() -> None:
    """Nobody sees the connection change: the boot id and the epoch tell."""
    bench = Bench()
    trio = bench.trio
    answer = trio.generate(1, [1], LENGTH, depth=3)
    trio.run(messages=60)
    assert 0 < len(answer.tokens) < LENGTH
    before = len(answer.rounds)
    bench.draft.__init__(bench.draft.law)  # type: ignore[misc]
    trio.start_worker()
    trio.run(seconds=3)
    check_done(answer, LENGTH)
    assert Code.WORKER_DOWN in reasons(answer)
    assert any(message.depth for message in answer.rounds[before + 2 :])
    bench.check_rest()


def test_a_silent_worker_is_lost_and_found() -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio
    wire.rules.append(lambda sent: [] if sent.source == "worker" else None)
    trio.run(seconds=12)
    assert not trio.rank0.worker_ready
    assert any(event == "peer_silent" for _, event, _ in trio.notes)
    wire.rules.clear()
    trio.run(seconds=2)
    assert trio.rank0.worker_ready
    answer = trio.generate(1, [1], LENGTH, depth=3)
    trio.run()
    check_done(answer, LENGTH)
    bench.check_rest()


def test_a_reply_after_the_deadline_is_dropped_and_counted() -> None:
    bench = Bench()
    trio = bench.trio
    trio.busy = {"worker"}
    answer = trio.generate(1, [1], LENGTH, depth=3)
    trio.run(seconds=1.5)
    assert trio.count("rank0", "pp1_proposals_discarded_total", reason="DRAFT_LATE") == 1
    trio.finish_jobs("worker")
    trio.run(seconds=3)
    check_done(answer, LENGTH)
    assert trio.count("rank0", "pp1_late_replies_total", kind="Completion") == 1
    # The chain did not even leave: its generation had ended while it was drawn.
    assert trio.count("worker", "pp1_drafts_dropped_total") == 1
    speculates_after(answer, Code.DRAFT_LATE)
    bench.check_rest()


def test_a_link_that_comes_back_before_the_old_one_is_given_up() -> None:
    """The worker sees two connections of one rank 0; ending the old one harms nobody.

    The old connection's sessions have the same ids as the new one's.
    """
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio
    answer = trio.generate(1, [1], 400, depth=3)
    trio.run(messages=60)
    trio.disconnect("worker")
    trio.reroute("worker", b"second connection")
    trio.connect("worker")
    trio.run(messages=60)
    opened = len([call for call in bench.draft.calls if call[0] == "open"])
    assert trio.worker.sessions == 2
    trio.worker.link_down(Peer("leader", b"rank0"), trio.now)
    trio.settle("worker")
    assert trio.worker.sessions == 1
    trio.run(seconds=1)
    check_done(answer, 400)
    assert reasons(answer) == [Code.WORKER_DOWN], "the new connection lost nothing"
    assert len([call for call in bench.draft.calls if call[0] == "open"]) == opened
    bench.check_rest()


def test_one_wrong_commit_entry_leaves_the_others_alone() -> None:
    """Entry 0 is for a session that the worker does not know."""
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio

    def spoil(commit: Commit) -> Message:
        first, *others = commit.entries
        return Commit((replace(first, session_id=bytes(16)), *others))

    wire.when(Commit, change(spoil), skip=3)
    answers = [trio.generate(key, [key], LENGTH, depth=3) for key in range(3)]
    trio.run()
    for answer in answers:
        check_done(answer, LENGTH)
    assert reasons(answers[0]) == [Code.POSITION_MISMATCH]
    assert not reasons(answers[1])
    assert not reasons(answers[2])
    naks = wire.of(Nak, source="worker")
    assert [(nak.code, nak.session_id) for nak in naks] == [(Code.SESSION_UNKNOWN, bytes(16))]
    bench.check_rest()


def test_a_commit_that_leads_elsewhere_is_refused_by_name() -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    wire.when(
        Commit,
        change(lambda commit: Commit((replace(commit.entries[0], digest=bytes(16)),))),
        skip=2,
    )
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    check_done(answer, LENGTH)
    nak = wire.of(Nak, source="worker")[0]
    assert nak.code == Code.COMMIT_MISMATCH
    assert nak.session_id == wire.of(Open)[0].session_id
    assert len(reasons(answer)) == 1
    bench.check_rest()


@pytest.mark.parametrize("error", [RuntimeError("broken"), ValueError("odd")])
def test_a_draft_engine_that_fails_for_one_request_costs_that_one(error: Exception) -> None:
    bench = Bench()
    trio = bench.trio
    failures = 0

    def fail(context: Sequence[int]) -> None:
        nonlocal failures
        if context[0] == 1 and len(context) == 9 and not failures:
            failures += 1
            raise error

    bench.draft.fails = fail
    answers = [trio.generate(key, [key], LENGTH, depth=3) for key in range(2)]
    trio.run()
    for answer in answers:
        check_done(answer, LENGTH)
    assert failures == 1
    assert not reasons(answers[0])
    assert reasons(answers[1]) == [Code.DRAFT_FAILED]
    speculates_after(answers[1], Code.DRAFT_FAILED)
    opens = [call for call in bench.draft.calls if call[0] == "open"]
    assert len(opens) == 3, "the failed engine session was built anew"
    bench.check_rest()


def test_weights_that_are_no_distribution_cost_the_proposal() -> None:
    bench = Bench()
    trio = bench.trio
    law = bench.draft.law
    good = law.draft_weights
    spoiled = 0

    def weights(context: Sequence[int]) -> object:
        nonlocal spoiled
        spoiled += len(context) == 8
        return good(context) * (2.0 if spoiled == 1 else 1.0)

    law.draft_weights = weights  # type: ignore[method-assign, assignment]
    answer = trio.generate(1, [1], LENGTH, depth=3)
    trio.run()
    check_done(answer, LENGTH)
    assert Code.WEIGHTS_INVALID in reasons(answer)
    bench.check_rest()


def test_the_breaker_opens_skips_its_rounds_probes_and_closes() -> None:
    wire = Wire()
    bench = Bench(intercept=wire, breaker=Breaker(failures_max=2, rounds_open=5))
    hits = wire.when(Rows, drop, source="worker", times=3)  # at depth 1: one a step
    answer = bench.trio.generate(1, [1], 60, depth=1)
    bench.trio.run()
    check_done(answer, 60)
    kinds = [
        "failed" if message.reason else "drafts" if message.depth else "none"
        for message in answer.rounds
    ]
    # Two failures open it; after five rounds the probe fails; after five more one succeeds.
    # The round after a discard waits for the worker's Ready.
    shape = "".join(kind[0] for kind in kinds)
    assert hits.count == 3
    assert re.match("fn?fn{5}fn{5}d", shape), shape
    states = [fields["state"] for _, event, fields in bench.trio.notes if event == "breaker"]
    assert states == ["OPEN", "OPEN", "CLOSED"]
    assert bench.trio.count("rank0", "pp1_no_draft_total", reason="BREAKER_OPEN") == 8
    bench.check_rest()


# --- the pair --------------------------------------------------------------------------


@pytest.mark.parametrize("messages", range(8, 60, 3))
def test_a_lost_rank_1_ends_every_request_and_its_successor_serves(messages: int) -> None:
    """Cut at any message; requests that run and those that wait end alike."""
    bench = Bench()
    trio = bench.trio
    answers = [trio.generate(key, [key], 200, depth=2) for key in range(6)]
    trio.run(messages=messages)
    trio.kill("rank1")
    trio.disconnect("pair")
    trio.run()
    assert {code_of(answer) for answer in answers} == {Code.RANK_LOST}
    assert not trio.rank0.actives
    assert trio.rank0.slots.free() == len(trio.rank0.slots)
    refused = trio.generate(7, [7], 5)
    assert code_of(refused) is Code.RANK_LOST
    bench.targets[1].__init__(bench.targets[1].law)  # type: ignore[misc]
    trio.start_rank1()
    trio.connect("pair")
    trio.run(seconds=1)
    answer = trio.generate(8, [1], LENGTH, depth=2)
    trio.run()
    check_done(answer, LENGTH)
    bench.check_rest()


def test_a_rank_1_restarted_at_the_same_address_ends_the_requests() -> None:
    bench = Bench()
    trio = bench.trio
    answer = trio.generate(1, [1], 200, depth=3)
    trio.run(messages=60)
    bench.targets[1].__init__(bench.targets[1].law)  # type: ignore[misc]
    trio.start_rank1()
    trio.run(seconds=3)
    assert code_of(answer) is Code.RANK_LOST
    again = trio.generate(2, [1], LENGTH, depth=3)
    trio.run()
    check_done(again, LENGTH)
    bench.check_rest()


@pytest.mark.parametrize("fits", [True, False])
def test_a_new_hello_on_the_agreed_connection_ends_the_requests(fits: bool) -> None:
    """Agreed or refused, the connection's old terms are over: nothing stays open on rank 1."""
    bench = Bench()
    trio = bench.trio
    trio.generate(1, [1], 200, depth=2)
    trio.run(messages=60)
    assert trio.rank1.requests
    hello = trio.hello("rank0", Role.RANK_ZERO)
    hello = hello if fits else replace(hello, processors="others")
    trio.inject("rank0", "rank1", encode(hello, bytes(16), 0))
    trio.run(messages=1_000)
    assert not trio.rank1.requests
    assert trio.rank1.slots.free() == len(trio.rank1.slots)


def test_strangers_do_not_push_each_other_out_of_a_handshake() -> None:
    """Repeats of a hello keep its place; only a stranger too many takes the oldest's."""
    bench = Bench()
    rank1 = bench.trio.rank1

    def say_hello(name: int) -> None:
        frames = encode(hellos[name], bytes([name % 256]) * 16, 0)
        peer = Peer("pair", name.to_bytes(2, "big"))
        rank1.receive(peer, [memoryview(frame) for frame in frames], bench.trio.now)

    count = limits.LINKS_MAX
    hellos = [bench.trio.hello("rank0", Role.RANK_ZERO) for _ in range(count + 1)]
    for name in range(count):
        say_hello(name)
    for name in range(count):
        say_hello(name)  # as a caller repeats it
    assert rank1.candidates == [Peer("pair", n.to_bytes(2, "big")) for n in range(count)]
    say_hello(count)
    assert rank1.candidates == [Peer("pair", n.to_bytes(2, "big")) for n in range(1, count + 1)]


@pytest.mark.parametrize("kind", [Prepared, Verdicts, Applied])
def test_a_rank_1_that_stops_answering_ends_the_round_in_time(kind: type[Message]) -> None:
    """Pings still come, so only the question's own deadline can end it."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answers = [bench.trio.generate(key, [key], 200, depth=3) for key in range(2)]
    hits = wire.when(kind, drop, skip=2, times=1000)
    bench.trio.run(seconds=10)
    wanted = Code.TARGET_LATE if kind is Verdicts else Code.RANK_LOST
    assert {code_of(answer) for answer in answers} == {wanted}
    assert hits.count > 1, "the question was repeated"
    bench.check_rest()


SPOILED: list[tuple[type[Message], dict[str, object]]] = [
    (Prepared, {"entries": ()}),
    (Invalidated, {"entries": ()}),
    (Verdicts, {"entries": ()}),
    (Applied, {"digest": bytes(16)}),
]


@pytest.mark.parametrize(("kind", "fields"), SPOILED)
def test_an_answer_that_contradicts_rank_0_ends_the_round(
    kind: type[Message], fields: dict[str, object]
) -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    if kind is Invalidated:
        wire.when(Rows, drop, source="worker")
    hits = wire.when(
        kind,
        change(lambda message: replace(message, **fields)),
        skip=0 if kind is Invalidated else 3,
    )
    answers = [bench.trio.generate(key, [key], LENGTH, depth=3) for key in range(2)]
    bench.trio.run(seconds=3)
    assert hits.count == 1
    assert {code_of(answer) for answer in answers if answer.failed} == {Code.RANK_SPLIT}
    assert any(event == "rank_split" for _, event, _ in bench.trio.notes)
    again = bench.trio.generate(9, [1], LENGTH, depth=3)
    bench.trio.run()
    check_done(again, LENGTH)
    bench.check_rest()


def spoil_verdict(**fields: object) -> object:
    return change(
        lambda message: replace(
            message,
            entries=tuple(replace(entry, **fields) for entry in message.entries),  # type: ignore[attr-defined]
        )
    )


IMPOSSIBLE: list[dict[str, object]] = [
    {"session_id": bytes(16)},
    {"accepted": 5},
    {"unverified": 4},
    {"rejected": 1, "last": 0},
    {"last": 9},
    {"finish": 1},
    {"finish": 2},
    {"finish": 9},
    {"tokens": b""},
    {"tokens": b"\0\0\0"},
    {"tokens": tokens_to_bytes([-1])},
    {"tokens": tokens_to_bytes([16])},
    {"tokens": tokens_to_bytes([1, 1, 1, 1, 1])},
    {"status": 603},  # an end that commits something
    {"status": 9999, "accepted": 0, "rejected": 0, "unverified": 0, "last": 0, "tokens": b""},
]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fields", IMPOSSIBLE, ids=str)
def test_a_verdict_that_no_verifier_gives_is_refused(fields: dict[str, object], late: bool) -> None:
    """Whether rank 0's own evaluation is done before it comes, or after."""
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio
    trio.generate(0, [1], 40, depth=0, temperature=0.0)  # slot 0, so that rank 1 owns the next
    answer = trio.generate(1, [1], 40, depth=0, temperature=0.0)
    while not any(message.entries for message in wire.of(Verdicts)):
        trio.run(messages=1)
    hits = wire.when(Verdicts, spoil_verdict(**fields))  # type: ignore[arg-type]
    if late:
        trio.busy = {"rank0"}
        trio.run()
        trio.finish_jobs("rank0")
    trio.run()
    assert hits.count == 1
    assert code_of(answer) is Code.RANK_SPLIT
    bench.check_rest()


def test_a_changed_decision_is_not_applied() -> None:
    """One other token in the record: rank 1 applies nothing and both sides end it."""
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio

    def other(decision: Decision) -> Message:
        entry = decision.entries[0]
        tokens = bytearray(entry.tokens)
        tokens[0] ^= 1
        return replace(
            decision, entries=(replace(entry, tokens=bytes(tokens)), *decision.entries[1:])
        )

    answer = trio.generate(1, [1], LENGTH, depth=3)
    wire.when(Decision, change(other), skip=3)
    trio.run()
    assert code_of(answer) in {Code.DECISION_MISMATCH, Code.RANK_SPLIT}
    assert trio.count("rank1", "pp1_requests_ended_total", code="SESSION_POISONED") == 1
    bench.check_rest()


@pytest.mark.parametrize("kind", [Prepare, Decide])
def test_a_question_repeated_with_another_content_poisons_the_step(kind: type[Message]) -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio

    def and_another(sent: Sent, message: Message) -> list[Frames]:
        if isinstance(message, Decide):
            changed: Message = Decide(message.step, tuple(not use for use in message.uses))
        else:
            assert isinstance(message, Prepare)
            changed = Prepare(message.step, ())
        return [sent.frames, sent.sealed(changed)]

    answer = trio.generate(1, [1], LENGTH, depth=3)
    trio.busy = {"rank1"}  # so that the second one comes while the engine is at it
    wire.when(kind, and_another, skip=0)
    trio.run()
    trio.finish_jobs("rank1")
    trio.run()
    assert code_of(answer) is Code.DECISION_MISMATCH
    bench.check_rest()


def test_questions_out_of_order_are_refused() -> None:
    wire = Wire()
    bench = Bench(intercept=wire)

    def decide_first(sent: Sent, message: Prepare) -> list[Frames]:
        return [sent.sealed(Decide(message.step, (True,)))]

    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    wire.when(Prepare, decide_first, skip=2)
    bench.trio.run(seconds=1)
    assert code_of(answer) is Code.STEP_STALE
    bench.check_rest()


def test_a_decision_that_arrives_after_its_requests_were_cancelled_is_stale() -> None:
    """Rank 0 has left the step; whatever of it is still under way commits nothing."""
    wire = Wire()
    bench = Bench(intercept=wire)
    held = Held()
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    wire.when(Decision, held, skip=1, times=1000)
    bench.trio.run(seconds=5)
    assert code_of(answer) is Code.RANK_LOST
    bench.check_rest()
    bench.trio.inject("rank0", "rank1", held.sent[0].frames)
    bench.trio.run()
    assert bench.trio.count("rank1", "pp1_pair_stale_total", kind="Decision") == 1
    assert not bench.trio.rank1.requests
    bench.check_rest()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("call", ["open", "verify", "commit"])
def test_a_target_engine_that_fails_ends_its_requests_and_no_others(call: str, rank: int) -> None:
    """Whoever owns them: the failing rank's engine could not take part in their evaluation."""
    bench = Bench()
    trio = bench.trio
    calls = 0
    lost: set[bytes] = set()

    def fail(name: str, session: bytes) -> None:
        nonlocal calls
        if name == call:
            calls += 1
            if calls == (1 if call == "open" else 4):
                batch = bench.targets[rank].evaluations[-1] if name == "verify" else ()
                lost.update([session, *(item.session for item in batch)])
                raise RuntimeError("the target engine fails")

    bench.targets[rank].fails = fail
    answers = [trio.generate(key, [key], LENGTH, depth=3) for key in range(6)]
    trio.run(seconds=1)
    failed = [answer for answer in answers if answer.failed]
    for answer in failed:
        assert code_of(answer) is Code.TARGET_FAILED
    for answer in answers:
        if answer not in failed:
            check_done(answer, LENGTH)
    assert len(failed) == len(lost) > 0
    for session in lost:
        here, there = (
            sum(item.session == session for items in target.evaluations for item in items)
            for target in bench.targets
        )
        assert abs(here - there) <= 1, "no rank goes on evaluating it alone"
    assert answers[4].finished is not None
    assert answers[5].finished is not None
    bench.check_rest()


def test_logits_that_are_no_distribution_end_their_request_only() -> None:
    bench = Bench()
    trio = bench.trio
    calls = 0

    def skew(logits: object) -> object:
        nonlocal calls
        calls += 1
        return logits * float("nan") if calls == 3 else logits  # type: ignore[operator]

    bench.targets[0].skew = skew  # type: ignore[assignment]
    answers = [trio.generate(key, [key], LENGTH, depth=3) for key in range(2)]
    trio.run()
    assert code_of(answers[0]) is Code.LOGITS_INVALID
    check_done(answers[1], LENGTH)
    bench.check_rest()


# --- terms that differ, parameters that do not fit --------------------------------------


def test_a_worker_with_fewer_slots_bounds_the_batch() -> None:
    wire = Wire()
    bench = Bench(intercept=wire, hellos={"worker": lambda hello: replace(hello, requests_max=2)})
    answers = [bench.trio.generate(key, [key], LENGTH, depth=3) for key in range(5)]
    bench.trio.run()
    for answer in answers:
        check_done(answer, LENGTH)
        assert not reasons(answer)
    assert not wire.of(Nak)
    assert max(len(step.entries) for step in wire.of(Step)) == 2
    bench.check_rest()


def test_a_worker_with_fewer_slots_that_comes_later_is_not_asked_too_much() -> None:
    wire = Wire()
    bench = Bench(intercept=wire, hellos={"worker": lambda hello: replace(hello, requests_max=2)})
    trio = bench.trio
    trio.disconnect("worker")
    answers = [trio.generate(key, [key], 10 * (4 - key), depth=3) for key in range(4)]
    trio.run(messages=30)
    trio.connect("worker")
    trio.run(seconds=1)
    assert trio.count("rank0", "pp1_no_draft_total", reason="BATCH_RANGE") > 0
    assert not wire.of(Nak)
    for step in wire.of(Step, destination="worker"):
        assert all(entry.slot < 2 for entry in step.entries)
    check_done(answers[0], 40)
    assert not any(answer.failed for answer in answers)
    bench.check_rest()


def test_a_request_that_does_not_fit_the_terms_goes_target_only_alone() -> None:
    """Sparse rows of 3 entries at most, and no dense ones: named and counted, not fatal."""

    def small(hello: Hello) -> Hello:
        return replace(hello, representations=(SPARSE,), support_max=3)

    bench = Bench(hellos={"worker": small, "rank1": small})
    trio = bench.trio
    wide = trio.generate(0, [1], LENGTH, depth=3, support=9)
    full = trio.generate(1, [1], LENGTH, depth=3, support=0)
    dense = trio.generate(2, [1], LENGTH, depth=3, representation=DENSE)
    fits = trio.generate(3, [1], LENGTH, depth=3, support=3)
    trio.run()
    for answer in (wide, full, dense):
        assert answer.finished is not None
        assert answer.finished.drafted == 0
    check_done(fits, LENGTH)
    assert trio.count("rank0", "pp1_no_draft_total", reason="SUPPORT_RANGE") > 0
    assert trio.count("rank0", "pp1_no_draft_total", reason="REPRESENTATION_MISMATCH") > 0
    assert trio.count("rank0", "pp1_proposals_discarded_total") == 0
    bench.check_rest()


def test_stop_tokens_of_client_and_engine_fit_one_message() -> None:
    """64 of the client and one of the engine would not; no other request suffers."""
    bench = Bench(stop_tokens=[15])
    trio = bench.trio
    other = trio.generate(0, [1], 400, depth=2)
    many = trio.generate(1, [1], LENGTH, stop_tokens=[index % 15 for index in range(64)])
    trio.run()
    assert many.failed is None, "repeats count once"
    assert other.finished is not None
    bench.check_rest()


# --- the end of a request at any time ---------------------------------------------------


@pytest.mark.parametrize("messages", range(0, 44, 2))
def test_an_abort_at_any_message_ends_that_request_only(messages: int) -> None:
    bench = Bench()
    trio = bench.trio
    answers = [trio.generate(key, [key], LENGTH, depth=3) for key in range(2)]
    waiting = [trio.generate(key, [key], LENGTH, depth=3) for key in range(2, 6)]
    trio.run(messages=messages)
    trio.abort(1)
    trio.abort(5)
    trio.abort(99)
    trio.run()
    assert code_of(answers[1]) is Code.CANCELLED
    assert code_of(waiting[-1]) is Code.CANCELLED
    for answer in (answers[0], *waiting[:-1]):
        check_done(answer, LENGTH)
    bench.check_rest()


def test_a_client_that_goes_away_takes_its_requests_with_it() -> None:
    bench = Bench()
    trio = bench.trio
    answers = [trio.generate(key, [key], 4000, depth=3) for key in range(6)]
    trio.run(messages=50)
    trio.rank0.link_down(Peer("requests", b"client"), trio.now)
    trio.settle("rank0")
    trio.run()
    assert {code_of(answer) for answer in answers} == {Code.CANCELLED}
    bench.check_rest()


def test_every_cancel_may_be_lost() -> None:
    """What rank 1 and the worker were not told they learn from what follows."""
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio
    wire.when(Cancel, drop, times=1000)
    for key in range(12):
        answer = trio.generate(key, [key], 200, depth=3)
        trio.run(messages=50)
        trio.abort(key)
        trio.run()
        assert code_of(answer) is Code.CANCELLED
        assert len(trio.rank1.requests) <= 1
        assert trio.worker.sessions <= 1
    wire.rules.clear()
    answer = trio.generate(99, [1], LENGTH, depth=3)
    trio.run()
    check_done(answer, LENGTH)
    bench.check_rest()


def test_a_held_request_begins_without_the_worker_when_ready_does_not_come() -> None:
    wire = Wire()
    bench = Bench(intercept=wire)
    wire.when(Ready, drop, times=3)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run(seconds=5)
    assert answer.finished is not None
    bench.check_rest()


def test_a_reset_refused_for_its_prefix_is_sent_whole() -> None:
    """The worker has forgotten the base: it says so, and gets all of it."""
    wire = Wire()
    bench = Bench(intercept=wire)
    wire.when(Completion, drop, source="worker", skip=3, times=2)  # a late round: a suffix Reset
    wire.when(
        Reset,
        change(lambda reset: replace(reset, base_digest=bytes(16))),
        skip=1,
    )
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run(seconds=5)
    check_done(answer, LENGTH)
    resets = wire.of(Reset)
    assert [reset.base_length > 0 for reset in resets] == [False, True, False]
    assert Code.PREFIX_UNKNOWN in [nak.code for nak in wire.of(Nak)]
    bench.check_rest()


def test_rank_1_never_reached_stops_rank_0_with_a_named_exit() -> None:
    timing = Timing(
        link=LinkTiming(hello_retry_ns=50 * MS, ping_every_ns=1000 * MS, silence_max_ns=5000 * MS),
        pair_connect_ns=300 * MS,
    )
    bench = Bench(
        intercept=lambda source, destination, frames: [] if destination == "rank1" else [frames],
        timing=timing,
    )
    bench.trio.run(seconds=1)
    assert bench.trio.stopped["rank0"].exit_code == 5
    assert "PEER_UNREACHABLE" in bench.trio.stopped["rank0"].message


@pytest.mark.parametrize("name", ["worker", "rank1"])
def test_a_refused_first_handshake_stops_rank_0_with_the_field(name: str) -> None:
    bench = Bench(hellos={name: lambda hello: replace(hello, processors="others")})
    assert bench.trio.stopped["rank0"].exit_code == 4
    assert "processors" in bench.trio.stopped["rank0"].message


assert {int(one) for one in Representation} == {SPARSE, DENSE}
