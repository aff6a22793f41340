"""Bytes to messages: one encoding for each message, typed refusals for everything else."""

import math
import struct
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import codec
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import KINDS, AnyMessage, Ping, Query, Rows, Step, kind_of
from tests.proto_samples import (
    BOOT,
    EPOCH,
    SAMPLES,
    chain,
    decode_body,
    deterministic,
    plain,
    seal_body,
    step,
    step_entry,
    values_of,
)

STEP = step(step_entry())
PACK = msgspec.msgpack.encode


def refused(kind: int, body: bytes, payload: bytes | None = None) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode_body(kind, body, payload)
    return caught.value


def ping(token: bytes) -> bytes:
    """The body of a Ping with this encoding of its token."""
    return b"\x92\x04" + token


@deterministic
@given(st.one_of(*(values_of(kind) for kind in KINDS.values())))
def test_every_message_survives_and_has_one_encoding(message: AnyMessage) -> None:
    payload = b"payload" if isinstance(message, Rows) else None
    received = codec.decode(codec.encode(message, BOOT, EPOCH, payload))
    assert received == codec.Received(BOOT, EPOCH, message, payload)
    assert codec.encode_body(message) == PACK(plain(message))


def test_a_shortest_ping_is_taken() -> None:
    assert decode_body(4, ping(b"\x05")).message == Ping(5)


@pytest.mark.parametrize(
    "token",
    [
        b"\xcc\x05",
        b"\xcd\x00\x05",
        b"\xce\x00\x00\x00\x05",
        b"\xcf" + (5).to_bytes(8, "big"),
        b"\xd0\x05",
        b"\xd1\x00\x05",
        b"\xd2\x00\x00\x00\x05",
        b"\xd3" + (5).to_bytes(8, "big"),
    ],
)
def test_longer_integers_are_not_canonical(token: bytes) -> None:
    assert refused(4, ping(token)).code is Code.NOT_CANONICAL


@pytest.mark.parametrize("tag", [b"\xcc\x04", b"\xcd\x00\x04", b"\xd0\x04"])
def test_a_longer_tag_is_not_canonical(tag: bytes) -> None:
    assert refused(4, b"\x92" + tag + b"\x05").code is Code.NOT_CANONICAL


@pytest.mark.parametrize("head", [b"\xdc\x00\x02", b"\xdd\x00\x00\x00\x02"])
def test_longer_array_headers_are_not_canonical(head: bytes) -> None:
    assert refused(4, head + b"\x04\x05").code is Code.NOT_CANONICAL


@pytest.mark.parametrize("head", [b"\xc5\x00\x10", b"\xc6\x00\x00\x00\x10"])
def test_longer_byte_string_headers_are_not_canonical(head: bytes) -> None:
    body = codec.encode_body(STEP)
    short = b"\xc4\x10" + STEP.entries[0].session_id
    assert body.count(short) == 1
    assert refused(12, body.replace(short, head + short[2:])).code is Code.NOT_CANONICAL


@pytest.mark.parametrize("head", [b"\xd9\x01", b"\xda\x00\x01", b"\xdb\x00\x00\x00\x01"])
def test_longer_text_headers_are_not_canonical(head: bytes) -> None:
    body = b"\x95\x03\x05" + head + b"f" + b"\xa1w\xa1g"
    assert decode_body(3, body.replace(head, b"\xa1")).message
    assert refused(3, body).code is Code.NOT_CANONICAL


@pytest.mark.parametrize("number", [b"\x01", b"\xca" + struct.pack(">f", 1.0)])
def test_a_float_is_eight_bytes(number: bytes) -> None:
    body = codec.encode_body(STEP)
    double = b"\xcb" + struct.pack(">d", 1.0)
    assert body.count(double) == 1
    assert refused(12, body.replace(double, number)).code is Code.NOT_CANONICAL


@pytest.mark.parametrize("bits", [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1, 0x7FF0 << 48])
def test_not_a_number_is_no_exception_of_the_codec(bits: int) -> None:
    (value,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    body = codec.encode_body(STEP)
    body = body.replace(struct.pack(">d", 1.0), struct.pack(">d", value))
    message = decode_body(12, body).message
    assert isinstance(message, Step)
    assert not math.isfinite(message.entries[0].temperature)


@pytest.mark.parametrize("kind", KINDS)
def test_trailing_and_missing_items_are_refused(kind: int) -> None:
    body = msgspec.msgpack.decode(codec.encode_body(SAMPLES[kind]))
    payload = b"" if kind == 13 else None
    for wrong in ([*body, 0], [*body, None], body[:-1]):
        assert refused(kind, PACK(wrong), payload).code is Code.MALFORMED


@pytest.mark.parametrize("kind", KINDS)
def test_trailing_bytes_are_refused(kind: int) -> None:
    payload = b"" if kind == 13 else None
    for extra in (b"\x00", b"\xc0", codec.encode_body(SAMPLES[kind])):
        body = codec.encode_body(SAMPLES[kind]) + extra
        assert refused(kind, body, payload).code is Code.MALFORMED


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_cut_at_any_byte_is_refused(kind: int) -> None:
    body = codec.encode_body(SAMPLES[kind])
    payload = b"" if kind == 13 else None
    for size in range(len(body)):
        assert refused(kind, body[:size], payload).code is Code.MALFORMED


@pytest.mark.parametrize("kind", sorted(set(range(256)) - set(KINDS)))
def test_unregistered_kinds_are_named(kind: int) -> None:
    error = refused(kind, PACK([kind, 0]))
    assert (error.code, error.got) == (Code.KIND_UNKNOWN, kind)


@pytest.mark.parametrize("tag", [0, 7, 255, -1, 1 << 40, "4", None, 4.0, True, [4], b"\x04"])
def test_unknown_tags_are_refused(tag: Any) -> None:
    assert refused(4, PACK([tag, 5])).code is Code.MALFORMED


def test_a_missing_tag_is_refused() -> None:
    # The fields alone would satisfy a decoder for the one type.
    assert refused(12, PACK(plain(STEP)[1:])).code is Code.MALFORMED
    assert refused(40, PACK([])).code is Code.MALFORMED


@pytest.mark.parametrize("kind", KINDS)
def test_header_and_body_name_the_same_kind(kind: int) -> None:
    other = 5 if kind == 4 else 4
    error = refused(kind, PACK([other, 5]), b"" if kind == 13 else None)
    assert error.code is Code.KIND_MISMATCH
    assert error.wanted == KINDS[kind].__name__


@pytest.mark.parametrize(
    "body",
    [b"", b"\xc0", b"\xc1", b"\x80", b"\x81\x00\x04", b"\x04", b"\xa1a", b"\xc4\x00", b"\xd4\x01a"],
)
def test_bodies_that_are_no_arrays_are_refused(body: bytes) -> None:
    assert refused(4, body).code is Code.MALFORMED


@pytest.mark.parametrize(
    "token",
    [
        b"\xcb" + struct.pack(">d", 5.0),
        b"\xc0",
        b"\xc3",
        b"\xa15",
        b"\xc4\x015",
        b"\x91\x05",
        b"\x81\x05\x05",
        b"\xd6\xff\x00\x00\x00\x05",
        b"\xc7\x00\x01",
        b"\xff",
        b"\xd3\x80" + bytes(7),
    ],
)
def test_values_of_another_type_are_refused(token: bytes) -> None:
    assert refused(4, ping(token)).code is Code.MALFORMED


def test_text_that_is_no_utf8_is_refused() -> None:
    for text in (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"):
        body = b"\x95\x03\x05" + bytes([0xA0 + len(text)]) + text + b"\xa1w\xa1g"
        assert refused(3, body).code is Code.MALFORMED


@pytest.mark.parametrize("size", [1 << 16, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9"])
@pytest.mark.parametrize("kind", [2, 3, 12, 13, 27, 42])
def test_forged_lengths_cost_no_memory(kind: int, head: bytes, size: int) -> None:
    forged = head + size.to_bytes(4, "big")
    payload = b"" if kind == 13 else None
    fields = len(plain(SAMPLES[kind]))
    bodies = [forged, forged + bytes([kind]), bytes([0x90 + fields, kind]) + forged]
    bodies += [bytes([0x90 + fields, kind, 1]) + forged]
    tracemalloc.start()
    try:
        for body in bodies:
            assert refused(kind, body, payload).code is Code.MALFORMED
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [1 << 63, (1 << 64) - 1])
def test_integers_beyond_63_bits(value: int) -> None:
    assert decode_body(4, ping(b"\xcf" + value.to_bytes(8, "big"))).message == Ping(value)
    body = PACK([11, bytes(16), value, 0, bytes(16)])
    assert refused(11, body).code is Code.MALFORMED  # a generation has 63 bits


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x00", b"\x92\x0c", b"\xdc\x00\x01"])
@pytest.mark.parametrize("depth", [2, 1000, 100_000])
def test_deep_nesting_is_refused(opening: bytes, depth: int) -> None:
    for body in (opening * depth, b"\x92\x04" + opening * depth, b"\x93\x0c\x01" + opening * depth):
        assert refused(body[1] if body[0] == 0x92 else 12, body).code in (
            Code.MALFORMED,
            Code.KIND_UNKNOWN,
            Code.KIND_MISMATCH,
        )


def test_only_rows_have_a_payload() -> None:
    error = refused(4, ping(b"\x05"), b"payload")
    assert (error.code, error.field) == (Code.FRAME_COUNT, "Ping")
    with pytest.raises(AssertionError):
        codec.encode(Ping(5), BOOT, EPOCH, b"payload")
    with pytest.raises(AssertionError):
        codec.encode(Rows(1, ()), BOOT, EPOCH)


def test_rows_without_their_payload_frame_read_as_rows_without_q() -> None:
    rows, _ = chain(step_entry())
    received = decode_body(13, codec.encode_body(Rows(1, tuple(rows))))
    assert received.payload == b""


def test_the_error_keeps_neither_frames_nor_traceback() -> None:
    error = refused(4, ping(b"\xc0"))
    assert isinstance(error.got, str)
    assert error.__cause__ is None


def test_bodies_may_be_memoryviews() -> None:
    frames = [memoryview(frame) for frame in codec.encode(STEP, BOOT, EPOCH)]
    assert codec.decode(frames).message == STEP


@deterministic
@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=200), st.none() | st.binary(max_size=9))
def test_arbitrary_bodies_in_right_envelopes_only_ever_raise_protocol_errors(
    kind: int, body: bytes, payload: bytes | None
) -> None:
    read_or_refuse(seal_body(kind, body, payload))


@deterministic
@given(
    st.one_of(*(values_of(kind) for kind in KINDS.values())),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255), st.integers(0, 2)), max_size=4),
)
def test_mutated_messages_in_right_envelopes_only_ever_raise_protocol_errors(
    message: AnyMessage, edits: list[tuple[int, int, int]]
) -> None:
    body = bytearray(codec.encode_body(message))
    for place, byte, how in edits:
        at = place % (len(body) + 1)
        body[at : at + min(how, 1)] = bytes([byte]) if how < 2 else b""
    read_or_refuse(seal_body(kind_of(message), bytes(body), None))


def read_or_refuse(frames: tuple[Any, ...]) -> None:
    """Whatever is taken encodes to the very bytes that came; the rest has a code."""
    try:
        received = codec.decode(frames)
    except ProtocolError as error:
        assert 100 <= error.code < 130
    else:
        assert codec.encode_body(received.message) == frames[1]


def test_there_is_a_sample_of_every_kind() -> None:
    assert {kind_of(message) for message in SAMPLES.values()} == set(KINDS)
    assert SAMPLES[40] == Query()
