"""One message: true offsets, names of the definitions, and the codec's own verdict."""

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from pp1.inspect.body import Count, walk
from pp1.inspect.link import Link
from pp1.inspect.message import Inspected, inspect_message
from proto_v2 import codec
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import KINDS, AnyMessage, Message, Rows, kind_of
from tests.inspect.samples import (
    header,
)
from tests.proto_samples import (
    BOOT,
    EPOCH,
    SAMPLES,
    SESSION,
    bounds_of,
    chain,
    deterministic,
    plain,
    seal_body,
    sparse_entry,
    step,
    step_entry,
    values_of,
)


def look(frames: tuple[Any, ...], link: Link | None = None) -> Inspected:
    return inspect_message([bytes(frame) for frame in frames], link or Link())


def only_fault(frames: tuple[Any, ...]) -> tuple[str, Code, str]:
    (fault,) = look(frames).broken
    return fault.rule, fault.code, fault.field


def at(inspected: Inspected, name: str) -> tuple[int, int, object]:
    (field,) = [field for field in inspected.fields if field.name == name]
    return field.offset, field.size, field.value


def type_of(kind: int) -> inspect.StructType:
    info = inspect.type_info(KINDS[kind])
    assert isinstance(info, inspect.StructType)
    return info


@deterministic
@given(st.one_of(*(values_of(kind) for kind in KINDS.values())))
def test_every_item_is_where_the_walk_says(message: AnyMessage) -> None:
    body = codec.encode_body(message)
    walked = walk(body, type_of(kind_of(message)))
    assert (walked.end, walked.reason) == (len(body), None)
    place = 0
    for item in walked.items:
        assert item.offset == place
        place += item.size
        if not isinstance(item.value, Count):
            part = body[item.offset : place]
            assert msgspec.msgpack.encode(item.value) == part
        value: Any = plain(message)
        for index in item.path:
            value = value[index]
        assert item.value == (len(value) if isinstance(item.value, Count) else value)
    assert place == len(body)


def test_names_are_those_of_the_definitions() -> None:
    frames = codec.encode(step(step_entry(), step_entry(slot=2)), BOOT, EPOCH)
    names = [field.name for field in look(frames).fields if field.name.startswith("body")]
    entry = [name for name in names if name.startswith("body.entries[1].")]
    assert names[:4] == ["body", "body.kind", "body.step", "body.entries"]
    assert entry == [f"body.entries[1].{name}" for name in type(step_entry()).__struct_fields__]


def test_offsets_count_from_the_first_byte_of_the_message() -> None:
    message = step(step_entry())
    frames = codec.encode(message, BOOT, EPOCH)
    raw = b"".join(bytes(frame) for frame in frames)
    inspected = look(frames)
    offset, size, value = at(inspected, "body.entries[0].session_id")
    assert (size, value) == (18, SESSION)
    assert raw[offset : offset + size] == b"\xc4\x10" + SESSION
    assert at(inspected, "header.boot_id") == (16, 16, BOOT)
    assert at(inspected, "header.link_epoch") == (32, 8, EPOCH)
    assert inspected.broken == []
    assert inspected.frames == (64, len(raw) - 64)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_listed_whole_and_without_fault(kind: int) -> None:
    message = SAMPLES[kind]
    payload = b"" if isinstance(message, Rows) else None
    inspected = look(codec.encode(message, BOOT, EPOCH, payload))
    assert inspected.name == type(message).__name__
    names = [field.name for field in inspected.fields]
    assert [f"body.{name}" for name in type(message).__struct_fields__] == [
        name
        for name in names
        if name.count(".") == 1 and name.startswith("body.") and "[" not in name
    ][1:]
    # An empty batch breaks a rule of Step; every other sample is as it should be.
    assert [fault.rule for fault in inspected.broken] == (["V01"] if kind == 12 else [])


@pytest.mark.parametrize(
    ("frames", "code", "field"),
    [
        (header(0, b"X"), Code.NOT_OURS, "header.magic"),
        (header(4, b"\x03"), Code.WIRE_VERSION, "header.version"),
        (header(16, b"\xff", sealed=False), Code.HEADER_CHECKSUM, "header.checksum"),
        (header(7, b"\x01"), Code.NOT_CANONICAL, "header.reserved"),
        (header(55, b"\x01"), Code.NOT_CANONICAL, "header.reserved_tail"),
        (header(6, b"\x02"), Code.FRAME_COUNT, "header.payload_frames"),
        (header(8, b"\xff\xff\xff\xff"), Code.BODY_LENGTH, "header.body_bytes"),
        (header(6, b"\x01"), Code.FRAME_COUNT, "frames"),
        (header(8, b"\x01\x00\x00\x00"), Code.BODY_LENGTH, "body"),
        (header(40, b"\x01"), Code.BODY_CHECKSUM, "body"),
        ((b"PP1q\x02\x04",), Code.HEADER_LENGTH, "header"),
        ((b"",), Code.NOT_OURS, "header.magic"),
        ((*seal_body(12, b"\x90"), b""), Code.FRAME_COUNT, "frames"),
    ],
)
def test_faults_of_the_envelope(frames: tuple[Any, ...], code: Code, field: str) -> None:
    assert only_fault(frames) == ("W-2", code, field)


def test_a_wrong_header_does_not_hide_the_body() -> None:
    inspected = look(header(16, b"\xff", sealed=False))
    assert at(inspected, "body.entries[0].session_id")[2] == SESSION


def test_another_version_is_not_interpreted() -> None:
    inspected = look(header(4, b"\x03"))
    names = [field.name for field in inspected.fields if not field.name.startswith("body")]
    assert names == ["header.magic", "header.version", "header.kind", "header.rest"]
    assert inspected.kind == 12


def bent(index: tuple[int, ...], value: object) -> tuple[Any, ...]:
    body: Any = plain(step(step_entry()))
    inner = body
    for place in index[:-1]:
        inner = inner[place]
    inner[index[-1]] = value
    return seal_body(12, msgspec.msgpack.encode(body))


@pytest.mark.parametrize(
    ("frames", "rule", "code", "field"),
    [
        (seal_body(99, b"\x91\x63"), "W-6", Code.KIND_UNKNOWN, "header.kind"),
        (seal_body(4, b"\x92\x05\x01"), "W-7", Code.KIND_MISMATCH, "body.kind"),
        (bent((1,), -1), "W-6", Code.MALFORMED, "body.step"),
        (bent((2, 0, 7), "x"), "W-6", Code.MALFORMED, "body.entries[0].temperature"),
        (bent((2, 0, 1), 256), "W-6", Code.MALFORMED, "body.entries[0].slot"),
        (bent((2,), []), "V01", Code.BATCH_RANGE, "body.entries"),
        (seal_body(4, b"\x92\x04\xcc\x05"), "W-6", Code.NOT_CANONICAL, "body.token"),
        (seal_body(4, b"\xdc\x00\x02\x04\x05"), "W-6", Code.NOT_CANONICAL, "body"),
        (seal_body(4, b"\x92\x04\x05\x00"), "W-6", Code.MALFORMED, "body.rest"),
        (seal_body(4, b"\x92\x04"), "W-6", Code.MALFORMED, "body"),
        (seal_body(4, b""), "W-6", Code.MALFORMED, "body"),
        (seal_body(4, b"\x92\x04\x05", b""), "W-1", Code.FRAME_COUNT, "payload"),
    ],
)
def test_faults_of_the_body(frames: tuple[Any, ...], rule: str, code: Code, field: str) -> None:
    assert only_fault(frames) == (rule, code, field)


@pytest.mark.parametrize("message", KINDS.values(), ids=lambda message: message.__name__)
def test_a_value_beyond_its_bound_is_marked_where_it_stands(message: type[Message]) -> None:
    for bound in bounds_of(message):
        if " " in bound.name:
            continue
        rule, code, field = only_fault(seal_body(bound.kind, msgspec.msgpack.encode(bound.beyond)))
        assert (rule, code) == ("W-6", Code.MALFORMED)
        name = bound.name.split(".", 1)[1].removeprefix("len(").split("<")[0].split(">")[0]
        assert name.rstrip(")").split(".")[-1].split("[")[0] in field


def verdict(frames: list[bytes]) -> Code | None:
    try:
        codec.decode(frames)
    except ProtocolError as error:
        return error.code
    return None


def test_bent_bytes_never_do_anything_but_break_a_rule() -> None:
    seed = 20
    draw = random.Random(seed)
    rows, payloads = chain(sparse_entry())
    whole = [
        [bytes(frame) for frame in frames]
        for frames in (
            codec.encode(Rows(1, tuple(rows)), BOOT, EPOCH, b"".join(payloads)),
            *(
                codec.encode(message, BOOT, EPOCH, b"" if isinstance(message, Rows) else None)
                for message in SAMPLES.values()
            ),
        )
    ]
    for _ in range(3000):
        frames = list(draw.choice(whole))
        part = draw.randrange(len(frames))
        bytes_ = bytearray(frames[part])
        for _ in range(draw.choice((1, 1, 3))):
            if bytes_:
                bytes_[draw.randrange(len(bytes_))] ^= 1 << draw.randrange(8)
        if draw.random() < 0.2:
            del bytes_[draw.randrange(len(bytes_) + 1) :]
        frames[part] = bytes(bytes_)
        if draw.random() < 0.7:  # past the envelope, so that body and rows are reached
            frames = [
                bytes(frame) for frame in seal_body(frames[0][5] if len(frames[0]) > 5 else 4,
                                                    *frames[1:])
            ]  # fmt: skip
        inspected = inspect_message(frames, Link())
        code = verdict(frames)
        if code is not None:
            assert [fault.code for fault in inspected.broken] == [code], f"seed {seed}"


def test_random_bytes_are_listed_within_bounds() -> None:
    seed = 21
    draw = random.Random(seed)
    for _ in range(500):
        body = draw.randbytes(draw.randrange(200))
        kind = draw.choice([*KINDS, 0, 255])
        payload = draw.randbytes(draw.randrange(50)) if kind == 13 else None
        inspected = look(seal_body(kind, body, payload))
        assert inspected.broken, f"seed {seed}"


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff" + b"\x90" * 60_000,
        b"\x93\x0c\x01\xdd\x00\x01\x00\x00" + b"\x90" * 65_536,
        b"\x91" * 60_000,
        b"\xc6\xff\xff\xff\xff",
        b"\x81\x01\x02",
        b"\xc1",
    ],
)
def test_hostile_bodies_stop_the_walk(body: bytes) -> None:
    for kind in (12, 13, 99):
        walked = walk(body, type_of(kind) if kind in KINDS else None)
        assert walked.reason is not None
        assert len(walked.items) <= 4096
        assert look(seal_body(kind, body)).broken
