"""From rows and a completion to whole proposals, or to the reason why not."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Completion, Row, Rows, StepEntry
from proto_v2.representation import Representation
from proto_v2.slots import SlotState, SlotTable
from spark_rank.collector import Collector
from tests.proto_samples import (
    DRAWS,
    categorical,
    chain,
    completion,
    drawn,
    row,
    sparse_entry,
    step,
    step_entry,
    terms,
)

TERMS = terms()
OTHER = b"another session."


class Bench:
    """A collector over its slots, and messages as a worker would send them."""

    def __init__(self, *entries: StepEntry, slots: SlotTable | None = None) -> None:
        self.slots = slots or SlotTable(TERMS.slots)
        self.memory = [bytearray(TERMS.slot_bytes) for _ in range(TERMS.slots)]
        self.step = step(*entries)
        self.collector = Collector(
            TERMS, self.step, DRAWS, self.slots, lambda slot: memoryview(self.memory[slot])
        )

    def rows(self, rows: Sequence[Row], payloads: Sequence[bytes]) -> None:
        self.collector.on_rows(Rows(self.step.step, tuple(rows)), b"".join(payloads))

    def whole(self, place: int = 0) -> list[int]:
        """Every row of one entry, one message a row; returns the checksums."""
        rows, payloads = chain(self.step.entries[place], place=place)
        for one, payload in zip(rows, payloads, strict=True):
            self.rows([one], [payload])
        return [one.checksum for one in rows]

    def complete(self, *parts: tuple[list[int], int], status: int = 0, **changes: Any) -> None:
        self.collector.on_completion(
            Completion(
                self.step.step,
                tuple(
                    replace(completion(entry, checksums, size, status=status), **changes)
                    for entry, (checksums, size) in zip(self.step.entries, parts, strict=True)
                ),
            )
        )

    def size(self, place: int = 0) -> int:
        return sum(len(payload) for payload in chain(self.step.entries[place])[1])

    def status(self, place: int = 0) -> int:
        return self.collector.finding(place).status


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("make", [step_entry, sparse_entry])
def test_a_whole_chain_is_ready_only_with_its_completion(make: Any, depth: int) -> None:
    bench = Bench(make(depth=depth))
    checksums = bench.whole()
    slot = bench.collector.proposals[0].lease
    assert slot is not None
    assert bench.slots.state(slot.slot) is SlotState.RECEIVING
    assert not bench.collector.settled
    bench.complete((checksums, bench.size()))
    assert bench.slots.state(slot.slot) is SlotState.READY
    assert bench.collector.settled
    assert bench.status() == 0
    tokens, rows = bench.collector.hold(0)
    assert tokens == tuple(drawn(index) for index in range(depth))
    for index, found in enumerate(rows):
        sent = categorical(bench.step.entries[0], index)
        assert found.dense().tolist() == sent.dense().tolist()


def test_both_ways_of_splitting_the_rows_lead_to_one_finding() -> None:
    alone, together = Bench(sparse_entry()), Bench(sparse_entry())
    checksums = alone.whole()
    together.rows(*chain(together.step.entries[0]))
    for bench in (alone, together):
        bench.complete((checksums, bench.size()))
    assert alone.collector.finding(0) == together.collector.finding(0)
    assert alone.status() == 0


def test_a_row_that_comes_twice_counts_once() -> None:
    bench = Bench(sparse_entry())
    checksums = bench.whole()
    bench.whole()
    bench.complete((checksums, bench.size()))
    assert bench.status() == 0


def test_a_row_that_comes_again_with_other_bytes_discards_the_chain() -> None:
    bench = Bench(sparse_entry())
    checksums = bench.whole()
    rows, payloads = chain(bench.step.entries[0])
    bench.rows([row(bench.step.entries[0], 1, payloads[1], token=1)], [payloads[1]])
    bench.complete((checksums, bench.size()))
    assert bench.status() == Code.ROW_DUPLICATE
    assert len(rows) == 5


def test_rows_out_of_order_discard_the_chain() -> None:
    bench = Bench(sparse_entry())
    rows, payloads = chain(bench.step.entries[0])
    bench.rows([rows[1]], [payloads[1]])
    assert bench.status() == Code.ROW_POSITION


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"token": 10}, Code.TOKEN_RANGE),
        ({"token": -1}, Code.TOKEN_RANGE),
        ({"token": 8}, Code.TOKEN_ZERO_Q),
        ({"representation": int(Representation.DENSE_F32)}, Code.REPRESENTATION_MISMATCH),
        ({"entries": 0}, Code.Q_MISSING),
        ({"entries": 5}, Code.ROW_ENTRIES),
        ({"entries": 2}, Code.ROW_BYTES),
        ({"checksum": 7}, Code.ROW_CHECKSUM),
    ],
)
def test_one_bad_row_discards_its_chain_and_no_other(changes: dict[str, Any], code: Code) -> None:
    good = sparse_entry(session_id=OTHER, slot=1)
    bench = Bench(sparse_entry(), good)
    rows, payloads = chain(bench.step.entries[0])
    rows[2] = row(bench.step.entries[0], 2, payloads[2], **changes)
    bench.rows(rows, payloads)
    checksums = bench.whole(1)
    bench.complete(([one.checksum for one in rows], bench.size()), (checksums, bench.size(1)))
    assert [bench.status(0), bench.status(1)] == [code, 0]
    assert bench.collector.settled


def test_the_first_fault_stays_the_reason() -> None:
    bench = Bench(sparse_entry())
    rows, payloads = chain(bench.step.entries[0])
    bench.rows([row(bench.step.entries[0], 0, payloads[0], token=-1)], payloads[:1])
    bench.rows(rows, payloads)
    bench.complete(([], 0), status=int(Code.DRAFT_FAILED))
    bench.collector.fail(ProtocolError(Code.DRAFT_LATE, "completion", "in time", "late"))
    bench.collector.discard(0, ProtocolError(Code.WORKER_DOWN, "worker", "up", "down"))
    assert bench.status() == Code.TOKEN_RANGE


@pytest.mark.parametrize("kept", range(5))
def test_a_completion_before_every_row_is_there_discards_the_chain(kept: int) -> None:
    bench = Bench(sparse_entry())
    rows, payloads = chain(bench.step.entries[0])
    if kept:
        bench.rows(rows[:kept], payloads[:kept])
    bench.complete(([one.checksum for one in rows], bench.size()))
    assert bench.status() == Code.ROW_COUNT


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"generation": 2}, Code.LATE_ROUND),
        ({"round": 3}, Code.LATE_ROUND),
        ({"session_id": OTHER}, Code.LATE_ROUND),
        ({"row_count": 4}, Code.DEPTH_MISMATCH),
        ({"reply_bytes": 1}, Code.COMPLETION_BYTES),
        ({"checksum": 1}, Code.COMPLETION_CHECKSUM),
    ],
)
def test_a_completion_that_says_something_else_discards_the_chain(
    changes: dict[str, Any], code: Code
) -> None:
    bench = Bench(sparse_entry())
    checksums = bench.whole()
    bench.complete((checksums, bench.size()), **changes)
    assert bench.status() == code


@pytest.mark.parametrize("status", [Code.DRAFT_FAILED, Code.PREFIX_MISMATCH])
def test_a_proposal_that_failed_at_the_worker_keeps_the_worker_s_reason(status: Code) -> None:
    bench = Bench(sparse_entry())
    bench.complete(([], 0), status=int(status))
    assert bench.status() == status


def test_a_completion_of_other_length_discards_every_chain() -> None:
    bench = Bench(sparse_entry(), sparse_entry(session_id=OTHER, slot=1))
    bench.whole(0)
    bench.whole(1)
    bench.collector.on_completion(Completion(1, ()))
    assert [bench.status(0), bench.status(1)] == [Code.ROW_COUNT] * 2


def test_depth_0_waits_for_nothing_and_takes_no_slot() -> None:
    bench = Bench(step_entry(depth=0))
    assert bench.collector.settled
    assert bench.slots.free() == len(bench.slots)
    bench.complete(([], 0), status=int(Code.SESSION_UNKNOWN))
    assert bench.status() == 0
    rows, payloads = chain(sparse_entry(depth=1))
    bench.rows(rows, payloads)
    assert bench.status() == Code.DEPTH_MISMATCH


def test_a_failure_reaches_only_what_is_not_whole() -> None:
    bench = Bench(sparse_entry(), sparse_entry(session_id=OTHER, slot=1))
    checksums = bench.whole(0)
    bench.complete((checksums, bench.size()), ([], 0))
    bench.collector.fail(ProtocolError(Code.DRAFT_LATE, "completion", "in time", "late"))
    assert [bench.status(0), bench.status(1)] == [0, Code.DEPTH_MISMATCH]
    late = Bench(sparse_entry(), step_entry(session_id=OTHER, slot=1, depth=0))
    late.collector.fail(ProtocolError(Code.DRAFT_LATE, "completion", "in time", "late"))
    assert [late.status(0), late.status(1)] == [Code.DRAFT_LATE, 0]


def test_the_digest_of_a_finding_covers_tokens_rows_and_the_step() -> None:
    def digest(entry: StepEntry) -> bytes:
        bench = Bench(entry)
        checksums = bench.whole()
        bench.complete((checksums, bench.size()))
        assert bench.status() == 0
        return bench.collector.finding(0).digest

    base = digest(sparse_entry())
    assert digest(sparse_entry()) == base
    for changed in (
        sparse_entry(depth=4),
        sparse_entry(temperature=0.5),
        sparse_entry(digest=b"e" * 16),
        step_entry(),
    ):
        assert digest(changed) != base


def test_a_faulty_proposal_shows_nothing_of_what_it_held() -> None:
    """Two ranks that find the same fault agree, whatever rows each had seen."""
    empty, partial = Bench(sparse_entry()), Bench(sparse_entry())
    rows, payloads = chain(partial.step.entries[0])
    partial.rows(rows[:2], payloads[:2])
    for bench in (empty, partial):
        bench.collector.fail(ProtocolError(Code.DRAFT_LATE, "completion", "in time", "late"))
    assert empty.collector.finding(0) == partial.collector.finding(0)


# --- slots -----------------------------------------------------------------------------------


def test_a_slot_in_use_costs_the_proposal_and_is_not_written() -> None:
    first = Bench(sparse_entry())
    checksums = first.whole()
    first.complete((checksums, first.size()))
    first.collector.hold(0)
    first.collector.close()
    kept = [bytes(memory) for memory in first.memory]
    second = Bench(sparse_entry(round=5), slots=first.slots)
    second.memory = first.memory
    rows, payloads = chain(second.step.entries[0])
    second.rows(rows, payloads)
    assert second.status() == Code.SLOT_BUSY
    assert [bytes(memory) for memory in second.memory] == kept
    second.collector.close()
    first.collector.release(0)
    assert first.slots.free() == len(first.slots)


@pytest.mark.parametrize("when", ["before", "rows", "fault", "ready", "held"])
def test_every_end_gives_the_slot_back(when: str) -> None:
    bench = Bench(sparse_entry())
    if when != "before":
        checksums = bench.whole()
    if when == "fault":
        bench.complete(([], 0))
    if when in ("ready", "held"):
        bench.complete((checksums, bench.size()))
    if when == "held":
        bench.collector.hold(0)
    bench.collector.close()
    bench.collector.close()
    assert bench.slots.free() == len(bench.slots) - (when == "held")
    if when == "held":
        bench.collector.release(0)
        assert bench.slots.free() == len(bench.slots)


def test_no_q_outlives_its_round() -> None:
    """The step may be kept for repeated questions; its rows are not, except by an evaluation."""
    bench = Bench(sparse_entry())
    checksums = bench.whole()
    bench.complete((checksums, bench.size()))
    _, held = bench.collector.hold(0)
    bench.collector.close()
    assert bench.collector.proposals[0].rows == []
    assert len(held) == 5


def test_batches_in_turn_use_other_slots() -> None:
    slots = SlotTable(TERMS.slots)
    first = Bench(sparse_entry(), slots=slots)
    second = Collector(
        TERMS, type(first.step)(2, first.step.entries), DRAWS, slots, lambda slot: memoryview(b"")
    )
    leases = [collector.proposals[0].lease for collector in (first.collector, second)]
    assert leases[0] is not None
    assert leases[1] is not None
    assert leases[0].slot != leases[1].slot
