"""Fault kinds I in the machines: selection by what was drawn."""

import pytest

from proto_v2.binding import completion_checksum
from proto_v2.errors import Code
from proto_v2.messages import Completion, Message, Nak, Rows, Step
from tests.support.checks import check_discard, check_done, reasons, replace
from tests.support.doubles import DENSE, SPARSE, Bench
from tests.support.wire import Frames, Held, Sent, Wire, change

LENGTH = 30


@pytest.mark.parametrize("representation", [SPARSE, DENSE])
@pytest.mark.parametrize("depth", range(1, 6))
def test_i01_the_depth_of_a_round_is_the_one_its_step_fixed(
    depth: int, representation: int
) -> None:
    """I1: whatever is drawn, each chain has the depth that went out before the draw."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answers = [
        bench.trio.generate(key, [key], LENGTH, depth=depth, representation=representation)
        for key in range(2)
    ]
    bench.trio.run()
    for answer in answers:
        check_done(answer, LENGTH)
        assert not reasons(answer)
    depths = {
        (step.step, index): entry.depth
        for step in wire.of(Step, destination="worker")
        for index, entry in enumerate(step.entries)
    }
    for completion in wire.of(Completion, source="worker"):
        for index, done in enumerate(completion.entries):
            assert done.row_count == depths.pop((completion.step, index))
    assert not depths
    bench.check_rest()


def test_i01_the_depth_does_not_follow_what_was_accepted() -> None:
    """I1: every round but the last has the depth asked for, after good and bad rounds alike."""
    bench = Bench()
    answer = bench.trio.generate(1, [1], 200, depth=4)
    bench.trio.run()
    check_done(answer, 200)
    assert {message.accepted for message in answer.rounds} == set(range(5))
    for message in answer.rounds:
        assert message.depth == min(4, 200 - message.index - 1)


def test_i02_a_worker_that_draws_another_depth_is_refused() -> None:
    """I2: the step says 3, the worker hears 2: the proposal is discarded, not shortened."""
    wire = Wire()

    def shallower(step: Step) -> Message:
        return Step(step.step, (replace(step.entries[0], depth=2),))

    wire.when(Step, change(shallower), destination="worker", skip=2)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.DEPTH_MISMATCH)


def test_i02_a_step_that_is_asked_again_with_another_depth_is_refused() -> None:
    """I2: the depth changes between STEP and reply."""
    wire = Wire()
    bench = Bench(intercept=wire)
    bench.trio.busy = {"worker"}

    def and_deeper(sent: Sent, step: Step) -> list[Frames]:
        deeper = Step(step.step, (replace(step.entries[0], depth=5),))
        return [sent.frames, sent.sealed(deeper)]

    wire.when(Step, and_deeper, destination="worker")
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    bench.trio.run()
    bench.trio.finish_jobs("worker")
    bench.trio.run()
    check_discard(bench, wire, answer, Code.STEP_CHANGED)
    assert [nak.code for nak in wire.of(Nak)] == [Code.STEP_CHANGED]


def test_i03_rows_that_came_in_time_are_not_a_shorter_proposal() -> None:
    """I3: the last row is late, the completion says that two rows were all."""
    wire = Wire()
    held = Held()

    def truncate(sent: Sent, completion: Completion) -> list[Frames]:
        step = wire.of(Step, destination="worker")[-1].entries[0]
        rows = [rows.rows[0] for rows in wire.of(Rows, source="worker")][-3:-1]
        size = sum(row.byte_length for row in rows)
        entry = replace(
            completion.entries[0],
            row_count=2,
            reply_bytes=size,
            checksum=completion_checksum(step, 0, size, [row.checksum for row in rows]),
        )
        return [sent.sealed(Completion(completion.step, (entry,)))]

    wire.when(Rows, held, source="worker", skip=8)
    wire.when(Completion, truncate, source="worker", skip=2)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.DEPTH_MISMATCH)
    assert len(held.sent) == 1


def test_i03_rows_without_the_end_of_the_proposal_are_not_used_at_the_deadline() -> None:
    """I3: two rows of three are there when time is up: the whole proposal goes."""
    wire = Wire()

    def late(sent: Sent) -> list[Frames] | None:
        message = sent.message
        if sent.source != "worker" or not isinstance(message, (Rows, Completion)):
            return None
        last = isinstance(message, Completion) or (
            message.rows[0].position == wire.of(Step)[-1].entries[0].position + 2
        )
        return [] if message.step == 3 and last else None

    wire.rules.append(late)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run(seconds=3)
    check_discard(bench, wire, answer, Code.DRAFT_LATE)
    for target in bench.targets:
        assert target.evaluations[2][0].drafts == ()


def test_i03_a_shortened_proposal_without_its_last_row_is_refused() -> None:
    """I3: an honest completion, one row short."""
    wire = Wire()
    wire.when(Rows, Held(), source="worker", skip=8)
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3, representation=DENSE)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.ROW_COUNT)
