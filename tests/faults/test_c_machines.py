"""Fault kinds C in the machines: staleness, slots, generations."""

import pytest

from proto_v2.errors import Code
from proto_v2.messages import (
    Commit,
    CommitEntry,
    Completion,
    Generate,
    Message,
    Nak,
    Reset,
    Rows,
    Step,
    tokens_to_bytes,
)
from tests.support.checks import (
    check_discard,
    check_done,
    code_of,
    reasons,
    replace,
    speculates_after,
)
from tests.support.doubles import DENSE, SEED, Bench, ScriptedLaw, only
from tests.support.trio import Answer
from tests.support.wire import Frames, Held, Sent, Wire, change, drop, flip

LENGTH = 30


def naks(wire: Wire) -> list[int]:
    return [nak.code for nak in wire.of(Nak)]


def test_c01_a_target_only_round_advances_the_worker_too() -> None:
    """C1: STEP of depth 3, a target-only round, STEP: the worker draws from the new prefix."""
    wire = Wire()
    wire.when(Rows, flip(2, 0), source="worker", skip=6)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.ROW_CHECKSUM)
    text = (1, *answer.tokens)
    anchors = {entry.position for step in wire.of(Step) for entry in step.entries if entry.depth}
    for anchor in anchors:
        assert text[:anchor] in bench.draft.contexts


def test_c01_a_step_whose_prefix_the_worker_does_not_hold_is_refused() -> None:
    """C1: the commit of one round is lost; the digest tells at the next step."""
    wire = Wire()
    wire.when(Commit, drop, skip=2)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.POSITION_MISMATCH)


def test_c02_a_refused_step_leaves_no_trace_of_its_number() -> None:
    """C2: the step fails in the worker's checks, then comes right under the same number."""
    wire = Wire()

    def fail_first(sent: Sent, step: Step) -> list[Frames]:
        bad = Step(step.step, (replace(step.entries[0], depth=9),))
        return [sent.sealed(bad), sent.frames]

    wire.when(Step, fail_first, destination="worker", skip=2)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.DEPTH_RANGE)
    assert naks(wire) == [Code.DEPTH_RANGE], "the second one was not a changed step"
    assert 3 in [rows.step for rows in wire.of(Rows, source="worker")]


def test_c04_after_a_failed_reset_the_old_prefix_is_not_usable() -> None:
    """C4: a reset with a wrong length is refused; a step of the old generation is, too."""
    wire = Wire()
    asked: list[Step] = []

    def wrong_then_old(sent: Sent, reset: Reset) -> list[Frames]:
        last = wire.of(Step, destination="worker")[-1]
        old = replace(last.entries[0], round=last.entries[0].round + 1)
        asked.append(Step(last.step + 1000, (old,)))
        wrong = replace(reset, suffix=reset.suffix + tokens_to_bytes([1]))
        return [sent.sealed(wrong), sent.sealed(asked[0]), sent.frames]

    wire.when(Rows, flip(2, 0), source="worker", skip=6)
    wire.when(Reset, wrong_then_old, skip=1)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    assert answer.finished is not None
    (completion,) = [done for done in wire.of(Completion) if done.step == asked[0].step]
    assert completion.entries[0].status == Code.GENERATION_STALE
    assert completion.entries[0].row_count == 0
    assert Code.PREFIX_MISMATCH in naks(wire)
    bench.check_rest()


def test_c05_a_reply_for_an_aborted_request_does_not_meet_the_next_in_its_slot() -> None:
    """C5: A is aborted while its rows are under way; B has its slot when they arrive."""
    wire = Wire()
    held = Held()
    for kind in (Rows, Completion):
        wire.when(kind, held, source="worker", times=4 if kind is Rows else 2)
    bench = Bench(intercept=wire)
    aborted = bench.trio.generate(1, [1], LENGTH, depth=2, representation=DENSE)
    bench.trio.run()
    bench.trio.abort(1)
    answer = bench.trio.generate(2, [1], LENGTH, depth=2, representation=DENSE, seed=SEED)
    bench.trio.run(seconds=1.001)
    assert code_of(aborted) is Code.CANCELLED
    assert {entry.slot for step in wire.of(Step) for entry in step.entries} == {0}
    for sent in held.sent:
        bench.trio.inject("worker", "rank0", sent.frames)
    bench.trio.run()
    check_done(answer, LENGTH)
    assert not reasons(answer)
    assert bench.trio.count("rank0", "pp1_late_replies_total") >= len(held.sent) > 0
    alone = Bench()
    same = alone.trio.generate(2, [1], LENGTH, depth=2, representation=DENSE, seed=SEED)
    alone.trio.run()
    assert same.tokens == answer.tokens
    bench.check_rest()


def test_c06_a_late_commit_does_not_revive_a_request() -> None:
    """C6: the request is over when its commit arrives: refused, named, no session."""
    wire = Wire()
    held = Held()
    wire.when(Commit, held, skip=2, times=1000)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], 300, depth=3)
    bench.trio.run(messages=80)
    bench.trio.abort(1)
    bench.trio.run()
    assert code_of(answer) is Code.CANCELLED
    assert held.sent
    for sent in held.sent:
        bench.trio.inject("rank0", "worker", sent.frames)
    bench.trio.run()
    assert naks(wire)[-len(held.sent) :] == [Code.SESSION_UNKNOWN] * len(held.sent)
    assert bench.trio.count("worker", "pp1_messages_rejected_total", code="SESSION_UNKNOWN") > 0
    bench.check_rest()


def test_c06_a_commit_of_an_earlier_generation_is_stale() -> None:
    """C6: the request has gone on under a new generation."""
    wire = Wire()
    held = Held()
    wire.when(Commit, held, skip=2)
    wire.when(Rows, flip(2, 0), source="worker", skip=9)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run(messages=150)
    bench.trio.inject("rank0", "worker", held.sent[0].frames)
    bench.trio.run()
    check_done(answer, LENGTH)
    assert Code.GENERATION_STALE in naks(wire)
    bench.check_rest()


def test_c07_a_slot_takes_nothing_over_from_its_last_request() -> None:
    """C7: a long request, then a short one in its slot: drawn from its own prefix only."""
    bench = Bench()
    long = bench.trio.generate(1, [9] * 50, 60, depth=5)
    bench.trio.run()
    check_done(long, 60)
    bench.draft.contexts.clear()
    bench.targets[0].contexts.clear()
    short = bench.trio.generate(2, [4], 12, depth=5, seed=SEED)
    bench.trio.run()
    check_done(short, 12)
    seen = [*bench.draft.contexts, *bench.targets[0].contexts]
    assert all(context[0] == 4 and len(context) <= 13 for context in seen)
    fresh = Bench()
    same = fresh.trio.generate(2, [4], 12, depth=5, seed=SEED)
    fresh.trio.run()
    assert short.tokens == same.tokens


def test_c08_a_placeholder_id_is_refused_wherever_it_stands() -> None:
    """C8: -1 in a prompt, as a stop, as a draft, as a committed token."""
    wire = Wire()
    bench = Bench(intercept=wire)
    assert code_of(bench.trio.generate(0, [1, -1], 5)) is Code.PROMPT_TOKEN
    assert code_of(bench.trio.generate(1, [1], 5, stop_tokens=[-1])) is Code.PARAMETER_RANGE

    def placeholder(rows: Rows) -> Message:
        return Rows(rows.step, (replace(rows.rows[0], token=-1), *rows.rows[1:]))

    wire.when(Rows, change(placeholder), source="worker", skip=4)
    answer = bench.trio.generate(2, [1], LENGTH, depth=2, representation=DENSE)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.TOKEN_RANGE)
    for context in (*bench.draft.contexts, *bench.targets[0].contexts):
        assert min(context) >= 0


def test_c08_a_placeholder_in_a_commit_or_prefix_is_refused_by_the_worker() -> None:
    """C8: neither becomes part of the prefix that is drafted from."""
    wire = Wire()

    def commit(message: Commit) -> Message:
        entry: CommitEntry = message.entries[0]
        return Commit((replace(entry, accepted=0, last=(-1,)),))

    def reset(message: Reset) -> Message:
        return replace(message, suffix=tokens_to_bytes([-1]))

    wire.when(Commit, change(commit), skip=2)
    wire.when(Reset, change(reset), skip=1)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=2)
    bench.trio.run()
    assert answer.finished is not None
    assert naks(wire)[:2] == [Code.TOKEN_RANGE] * 2
    assert all(min(context) >= 0 for context in bench.draft.contexts)
    bench.check_rest()


def test_c09_nothing_accepted_and_a_stop_as_the_correction_adds_up() -> None:
    """C9: depth 5, zero accepted, EOS: 0 + 1 + 4 = 5, and the request is over."""
    law = ScriptedLaw(target=lambda context: only(3), draft=lambda context: only(7))
    bench = Bench(law, stop_tokens=[3])
    answer = bench.trio.generate(1, [1], LENGTH, depth=5)
    bench.trio.run()
    done = answer.finished
    assert done is not None
    assert answer.tokens == [3]
    assert (done.drafted, done.accepted, done.rejected, done.unverified) == (5, 0, 1, 4)
    assert done.finish == 1
    bench.check_rest()


@pytest.mark.parametrize("messages", range(10, 60, 7))
def test_c11_a_dead_rank_0_leaves_nothing_behind_for_longer_than_the_silence(
    messages: int,
) -> None:
    """C11: killed in mid-round; rank 1 and worker free slots, requests and sessions."""
    bench = Bench()
    for key in range(4):
        bench.trio.generate(key, [key], 300, depth=3)
    bench.trio.run(messages=messages)
    bench.trio.kill("rank0")
    bench.trio.run(seconds=7)  # the declared silence is 5 s
    assert not bench.trio.rank1.requests
    assert bench.trio.rank1.slots.free() == len(bench.trio.rank1.slots)
    assert bench.trio.worker.sessions == 0
    assert bench.draft.open_sessions == 0
    assert bench.targets[1].open_sessions == 0


def test_c11_a_worker_killed_in_mid_round_holds_its_slots_no_longer_than_the_step() -> None:
    """C11: without any sign from the transport; a step's deadline is one second.

    The first step names one request, the second those that came meanwhile.
    """
    bench = Bench()
    bench.trio.busy = {"worker"}
    answers = [bench.trio.generate(key, [key], LENGTH, depth=3) for key in range(4)]
    bench.trio.run()
    assert bench.trio.rank0.slots.free() < len(bench.trio.rank0.slots)
    bench.trio.kill("worker")
    bench.trio.run(seconds=2.001)
    assert bench.trio.rank0.slots.free() == len(bench.trio.rank0.slots)
    assert bench.trio.rank1.slots.free() == len(bench.trio.rank1.slots)
    assert all(answer.finished is not None for answer in answers)


def test_c12_a_thousand_aborts_leave_the_pools_as_they_were() -> None:
    """C12: at every moment of a request, also while rows are under way."""
    bench = Bench()
    trio = bench.trio
    sizes = (len(trio.rank0.slots), len(trio.rank1.slots))
    for key in range(1000):
        answer = trio.generate(key, [1], 50, depth=2)
        trio.run(messages=key % 24)
        trio.abort(key)
        trio.run()
        assert code_of(answer) is Code.CANCELLED
        trio.committed["rank0"].clear()
        trio.committed["rank1"].clear()
    assert (len(trio.rank0.slots), len(trio.rank1.slots)) == sizes
    bench.check_rest()
    answer = trio.generate(1000, [1], LENGTH, depth=2)
    trio.run()
    check_done(answer, LENGTH)


def test_c13_a_worker_restarted_between_step_and_reply_is_another_process() -> None:
    """C13: the old process's reply names a boot that is over; the whole prefix goes anew."""
    wire = Wire()
    held = Held()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run(messages=60)
    for kind in (Rows, Completion):
        wire.when(kind, held, source="worker", times=3 if kind is Rows else 1)
    bench.trio.run()
    assert held.sent
    bench.draft.__init__(bench.draft.law)  # type: ignore[misc]
    bench.trio.start_worker()
    bench.trio.run(seconds=2.5)
    for sent in held.sent:
        bench.trio.inject("worker", "rank0", sent.frames)
    bench.trio.run(seconds=1)
    check_done(answer, LENGTH)
    refused = bench.trio.count("rank0", "pp1_messages_rejected_total", code="BOOT_CHANGED")
    assert refused == len(held.sent)
    again = wire.of(Reset)[-1]
    assert (again.base_length, again.generation > 1) == (0, True)
    bench.check_rest()


def test_c14_a_worker_that_does_not_roll_back_is_found_in_the_next_round() -> None:
    """C14: it takes its own drafts for committed; the digest does not agree, at once."""
    wire = Wire()
    bench = Bench(intercept=wire)
    law = bench.draft.law

    def all_accepted(message: Commit) -> Message:
        entry = message.entries[0]
        return Commit((replace(entry, accepted=3, last=()),))

    rejected = 0

    def rejected_one(sent: Sent, message: Commit) -> list[Frames]:
        nonlocal rejected
        if message.entries[0].accepted == 3 or rejected:
            return [sent.frames]
        rejected += 1
        return [sent.sealed(all_accepted(message))]

    wire.when(Commit, rejected_one, skip=1, times=1000)
    answer = bench.trio.generate(1, [1], 60, depth=3)
    bench.trio.run()
    assert law.vocabulary_size == 16
    assert rejected == 1
    check_discard(bench, wire, answer, Code.POSITION_MISMATCH)
    assert Code.COMMIT_MISMATCH in naks(wire)


def test_c16_a_reply_that_arrives_after_a_reconnect_is_of_another_link() -> None:
    """C16: timeout of round N, reconnect, round N+1, then reply N."""
    wire = Wire()
    held = Held()
    bench = Bench(intercept=wire)
    for kind in (Rows, Completion):
        wire.when(kind, held, source="worker", skip=3, times=3)
    answer = bench.trio.generate(1, [1], LENGTH, depth=1)
    bench.trio.run(seconds=0.1)
    bench.trio.disconnect("worker")
    bench.trio.connect("worker")
    bench.trio.run(messages=40)
    for sent in held.sent:
        bench.trio.inject("worker", "rank0", sent.frames)
    bench.trio.run(seconds=2)
    check_done(answer, LENGTH)
    assert Code.WORKER_DOWN in reasons(answer)
    refused = bench.trio.count("rank0", "pp1_messages_rejected_total", code="LINK_UNKNOWN")
    assert refused >= 2
    speculates_after(answer, Code.WORKER_DOWN)
    bench.check_rest()


def test_c17_each_request_of_one_client_gets_its_own_answer() -> None:
    """C17: A is given up, B follows from the same client, A's rounds still come."""
    bench = Bench()
    trio = bench.trio
    first = trio.generate(1, [1], LENGTH, depth=3, seed=SEED)
    trio.run(messages=40)
    trio.abort(1)
    second = trio.generate(2, [2], LENGTH, depth=3, seed=SEED)
    third = trio.generate(3, [3], LENGTH, depth=3, seed=SEED)
    trio.run()
    assert code_of(first) is Code.CANCELLED

    def alone(key: int) -> list[int]:
        other = Bench()
        answer = other.trio.generate(key, [key], LENGTH, depth=3, seed=SEED)
        other.trio.run()
        return answer.tokens

    assert second.tokens == alone(2)
    assert third.tokens == alone(3)
    bench.check_rest()


def test_c17_a_key_that_is_in_use_is_not_given_to_a_second_request() -> None:
    """C17: a repeat of the same request is the same request; another one is refused."""
    bench = Bench()
    trio = bench.trio
    answer = trio.generate(1, [1], LENGTH, depth=3)
    again = Generate(1, tokens_to_bytes([1]), LENGTH, 1.0, 1.0, b"", (), 3, 2, 0)
    trio.from_client(again)
    trio.run()
    check_done(answer, LENGTH)
    assert trio.count("rank0", "pp1_requests_repeated_total") == 1
    other: Answer = trio.generate(2, [1], LENGTH, depth=3)
    trio.from_client(replace(again, key=2, tokens_max=5))
    assert code_of(other) is Code.PARAMETER_RANGE
    assert other.failed is not None
    assert other.failed.field == "key"
    trio.run()
    bench.check_rest()
