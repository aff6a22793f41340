"""Fault kinds A (the q that arrives is not the q that drew), as the contract answers them."""

import math
from typing import Any

import msgspec
import pytest

from proto_v2 import codec
from proto_v2.errors import REGISTRY, Code, Disposition, ProtocolError
from proto_v2.messages import Completion, Role, Row, Rows, Step, StepEntry
from proto_v2.negotiate import derive_terms
from proto_v2.slots import SlotState, SlotTable
from proto_v2.validate import check_step, read_row
from spark_rank.collector import Collector
from tests.proto_samples import (
    BOOT,
    DRAWS,
    EPOCH,
    chain,
    completion,
    decode_body,
    hello,
    preceding,
    step,
    step_entry,
    terms,
)

TERMS = terms()


class Rank:
    """One rank's staging, with a collector for one step at a time."""

    def __init__(self) -> None:
        self.slots = SlotTable(TERMS.slots)
        self._memory = [bytearray(TERMS.slot_bytes) for _ in range(TERMS.slots)]

    def collect(self, message: Step) -> Collector:
        """A collector for a step whose rules hold."""
        check_step(TERMS, message)
        return Collector(
            TERMS, message, DRAWS, self.slots, lambda slot: memoryview(self._memory[slot])
        )


def send_rows(collector: Collector, rows: list[Row], payload: bytes | None) -> None:
    """Rows through the codec; None sends no payload frame at all."""
    message = Rows(collector.step.step, tuple(rows))
    frames = codec.encode(message, BOOT, EPOCH, payload or b"")
    if payload is None:
        received = decode_body(13, codec.encode_body(message))
    else:
        received = codec.decode(frames)
    assert received.message == message
    assert received.payload is not None
    collector.on_rows(message, received.payload)


def send_completion(collector: Collector, chains: list[list[Row]]) -> None:
    """A completion that says that every row was sent."""
    entries = [
        completion(entry, [row.checksum for row in rows], sum(row.byte_length for row in rows))
        for entry, rows in zip(collector.step.entries, chains, strict=True)
    ]
    collector.on_completion(Completion(collector.step.step, tuple(entries)))


def fault(collector: Collector, index: int) -> Code | None:
    found = collector.proposals[index].fault
    return None if found is None else found.code


def two() -> tuple[StepEntry, StepEntry]:
    return step_entry(), step_entry(slot=1, session_id=b"s" * 16)


@pytest.mark.parametrize("payload", [None, b""], ids=["no frame", "empty frame"])
def test_a01_ids_without_q_discard_the_whole_proposal(payload: bytes | None) -> None:
    """A1: sampled ids without a q frame are discarded whole, with q_missing as the reason."""
    collector = Rank().collect(step(step_entry()))
    rows, _ = chain(step_entry())
    send_rows(collector, rows, payload)
    assert fault(collector, 0) is Code.Q_MISSING
    send_completion(collector, [rows])
    assert collector.settled
    assert not collector.proposals[0].complete
    assert collector.finding(0).status == Code.Q_MISSING
    assert REGISTRY[Code.Q_MISSING].disposition is Disposition.DISCARD


def test_a01_one_row_without_q_discards_the_rows_that_have_one() -> None:
    """A1: one row of five without a q discards all five."""
    collector = Rank().collect(step(step_entry()))
    rows, payloads = chain(step_entry())
    rows[3] = msgspec.structs.replace(rows[3], entries=0, byte_length=0)
    payloads[3] = b""
    send_rows(collector, rows, b"".join(payloads))
    send_completion(collector, [rows])
    assert fault(collector, 0) is Code.Q_MISSING
    assert not collector.proposals[0].complete


def test_a03_depth_0_beside_depth_5_is_legal_and_needs_no_q() -> None:
    """A3: an entry of depth 0 completes without rows and without a slot, beside a full one."""
    full, none = two()
    none = msgspec.structs.replace(none, depth=0)
    rank = Rank()
    collector = rank.collect(step(full, none))
    rows, payloads = chain(full)
    send_rows(collector, rows, b"".join(payloads))
    send_completion(collector, [rows, []])
    assert [fault(collector, 0), fault(collector, 1)] == [None, None]
    assert collector.settled
    assert collector.finding(1).status == 0
    assert rank.slots.free() == TERMS.slots - 1


def test_a05_a_padded_row_cannot_take_a_live_slot() -> None:
    """A5: a batch holds live requests only; a pad entry on slot 0 is refused as a duplicate."""
    live = [step_entry(slot=slot, session_id=bytes([slot]) * 16) for slot in range(3)]
    check_step(TERMS, step(*live))
    pad = step_entry(slot=0, session_id=b"p" * 16, depth=0)
    with pytest.raises(ProtocolError) as caught:
        check_step(TERMS, step(*live, pad))
    assert caught.value.code is Code.SLOT_DUPLICATE


def test_a05_rows_for_an_entry_that_is_not_there_overwrite_nobody() -> None:
    """A5: a row for a fourth entry of a batch of three is refused before any slot is touched."""
    rank = Rank()
    collector = rank.collect(step(*two()))
    rows, payloads = chain(step_entry(), place=2)
    send_rows(collector, rows, b"".join(payloads))
    assert [fault(collector, 0), fault(collector, 1)] == [Code.ROW_COUNT, Code.ROW_COUNT]
    assert [proposal.rows for proposal in collector.proposals] == [[], []]


@pytest.mark.parametrize("temperature", [-1.0, 0.0, -0.0, math.nan, math.inf, -math.inf])
def test_a11_sentinel_temperatures_never_reach_the_draft(temperature: float) -> None:
    """A11: -1, 0, NaN and infinities in a Step survive the codec and fail their own rule."""
    message = step(step_entry(temperature=temperature))
    received = decode_body(12, codec.encode_body(message)).message
    assert isinstance(received, Step)
    with pytest.raises(ProtocolError) as caught:
        check_step(TERMS, received)
    assert caught.value.code is Code.TEMPERATURE_RANGE


@pytest.mark.parametrize("field", ["row_count", "reply_bytes"])
def test_a11_counts_cannot_be_negative(field: str) -> None:
    """A11: a negative count does not decode, so no counter can ever go down."""
    entry = completion(step_entry(), [], 0)
    values: list[Any] = [getattr(entry, name) for name in entry.__struct_fields__]
    values[entry.__struct_fields__.index(field)] = -1
    with pytest.raises(ProtocolError) as caught:
        decode_body(14, msgspec.msgpack.encode([14, 1, [values]]))
    assert caught.value.code is Code.MALFORMED


@pytest.mark.parametrize("swapped", range(4))
def test_a14_swapped_rows_are_seen(swapped: int) -> None:
    """A14: the bytes of rows i and i+1 exchanged under their descriptors do not verify."""
    collector = Rank().collect(step(step_entry()))
    rows, payloads = chain(step_entry())
    payloads[swapped], payloads[swapped + 1] = payloads[swapped + 1], payloads[swapped]
    send_rows(collector, rows, b"".join(payloads))
    assert fault(collector, 0) is Code.ROW_CHECKSUM


def test_a14_a_row_kept_from_another_place_is_seen() -> None:
    """A14: a q is bound to its position and to the ids drawn before it, not only to its bytes."""
    entry = step_entry()
    rows, payloads = chain(entry)
    read_row(TERMS, entry, 2, preceding(2), rows[2], payloads[2])
    places: list[tuple[StepEntry, int, tuple[int, ...]]] = [
        (entry, 1, preceding(1)),
        (entry, 3, preceding(3)),
        (entry, 2, (3, 2)),
        (entry, 2, (2, 9)),
        (step_entry(slot=1), 2, preceding(2)),
        (step_entry(round=5), 2, preceding(2)),
        (step_entry(generation=4), 2, preceding(2)),
        (step_entry(session_id=b"x" * 16), 2, preceding(2)),
    ]
    for other, index, before in places:
        with pytest.raises(ProtocolError) as caught:
            read_row(TERMS, other, index, before, rows[2], payloads[2])
        assert caught.value.code is Code.ROW_CHECKSUM


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("semantics", "", Code.SEMANTICS_MISMATCH),
        ("representations", (), Code.NO_COMMON_REPRESENTATION),
        ("support_max", 0, Code.BOUND_TOO_SMALL),
        ("depth_max", 0, Code.BOUND_TOO_SMALL),
    ],
)
def test_a15_a_side_without_q_is_refused_and_never_downgraded(
    field: str, value: Any, code: Code
) -> None:
    """A15: a side that offers no q (semantics, representation, depth or support) is refused."""
    with pytest.raises(ProtocolError) as caught:
        derive_terms(hello(), hello(Role.WORKER, **{field: value}))
    assert (caught.value.code, caught.value.field) == (code, field)


def test_a19_no_q_outlives_its_round() -> None:
    """A19: after a round without a reply, the slot's old bytes and lease serve no new round."""
    rank = Rank()
    first = rank.collect(step(step_entry()))
    rows, payloads = chain(step_entry())
    send_rows(first, rows, b"".join(payloads))
    send_completion(first, [rows])
    first.hold(0)
    first.release(0)
    old = first.proposals[0].lease
    assert old is not None
    first.close()
    assert rank.slots.state(old.slot) is SlotState.FREE

    # The next step on the same bank gets no rows. Its completion names last round's checksums.
    late = rank.collect(Step(3, (step_entry(round=5),)))
    for move in (rank.slots.hold, rank.slots.publish, rank.slots.check_writable):
        with pytest.raises(ProtocolError) as caught:
            move(old)
        assert caught.value.code is Code.STALE_LEASE
    late.on_completion(Completion(3, (completion(step_entry(), [1], 48),)))
    assert fault(late, 0) is Code.LATE_ROUND
    send_rows(late, rows, b"".join(payloads))
    assert not late.proposals[0].complete
    assert late.proposals[0].rows == []


def test_a19_last_rounds_bytes_beside_new_ids_are_seen() -> None:
    """A19: the previous round's rows, sent again for this round, do not verify."""
    collector = Rank().collect(step(step_entry(round=5)))
    rows, payloads = chain(step_entry(round=4))
    send_rows(collector, rows, b"".join(payloads))
    assert fault(collector, 0) is Code.ROW_CHECKSUM


def test_a19_a_slot_in_use_is_not_given_to_the_next_round() -> None:
    """A19: while a consumer still reads last round's q, the next proposal has no slot at all."""
    rank = Rank()
    first = rank.collect(step(step_entry()))
    rows, payloads = chain(step_entry())
    send_rows(first, rows, b"".join(payloads))
    send_completion(first, [rows])
    first.hold(0)
    first.close()
    second = rank.collect(Step(3, (step_entry(round=5),)))
    assert fault(second, 0) is Code.SLOT_BUSY
    first.release(0)
    assert rank.slots.free() == TERMS.slots
