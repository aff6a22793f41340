"""The header: every field at its limit, every bit, every length, every frame count."""

import struct

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import limits
from proto_v2.effects import Buffer
from proto_v2.envelope import MAGIC, WIRE_VERSION, Header, read_header, seal, unseal
from proto_v2.errors import Code, ProtocolError
from tests.proto_samples import BOOT, EPOCH, deterministic, reseal

BODY = b"a body"
PAYLOAD = b"some payload"


def sealed(payload: bytes | None = PAYLOAD) -> list[Buffer]:
    return list(seal(13, BOOT, EPOCH, BODY, payload))


def refused(frames: list[Buffer]) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        unseal(frames)
    return caught.value


def with_field(offset: int, layout: str, value: int) -> list[Buffer]:
    """Sealed frames with one header field replaced and the checksum made right."""
    header = bytearray(sealed()[0])
    struct.pack_into(layout, header, offset, value)
    return [reseal(header), *sealed()[1:]]


@pytest.mark.parametrize("payload", [None, b"", PAYLOAD])
def test_a_message_comes_back_as_it_was_sealed(payload: bytes | None) -> None:
    frames = sealed(payload)
    assert len(frames) == (2 if payload is None else 3)
    header, body, came = unseal(frames)
    assert header == Header(
        kind=13,
        payload_frames=0 if payload is None else 1,
        body_bytes=len(BODY),
        payload_bytes=len(payload or b""),
        boot_id=BOOT,
        link_epoch=EPOCH,
        body_checksum=xxhash.xxh3_64_intdigest(BODY),
    )
    assert (body, came) == (BODY, payload)


def test_the_layout_is_the_documented_one() -> None:
    header = bytes(sealed()[0])
    assert len(header) == 64
    assert header[:8] == b"PP1q\x02\x0d\x01\x00"
    assert header[8:16] == struct.pack("<II", len(BODY), len(PAYLOAD))
    assert header[16:32] == BOOT
    assert header[32:40] == struct.pack("<Q", EPOCH)
    assert header[40:48] == struct.pack("<Q", xxhash.xxh3_64_intdigest(BODY))
    assert header[48:56] == bytes(8)
    assert header[56:] == struct.pack("<Q", xxhash.xxh3_64_intdigest(header[:56]))


def test_memoryviews_and_wide_items_are_measured_in_bytes() -> None:
    floats = memoryview(struct.pack("<3f", 0.0, 0.5, 0.5)).cast("f")
    frames = seal(13, BOOT, EPOCH, BODY, floats)  # type: ignore[arg-type]
    assert read_header(memoryview(frames[0])).payload_bytes == 12


@pytest.mark.parametrize("bit", range(64 * 8))
def test_every_flipped_bit_of_the_header_is_refused(bit: int) -> None:
    header = bytearray(sealed()[0])
    header[bit // 8] ^= 1 << (bit % 8)
    if bit < 32:
        expected = Code.NOT_OURS
    elif bit < 40:
        expected = Code.WIRE_VERSION
    else:
        expected = Code.HEADER_CHECKSUM
    assert refused([bytes(header), *sealed()[1:]]).code is expected


@pytest.mark.parametrize("bit", range(len(BODY) * 8))
def test_every_flipped_bit_of_the_body_is_refused(bit: int) -> None:
    body = bytearray(BODY)
    body[bit // 8] ^= 1 << (bit % 8)
    assert refused([sealed()[0], bytes(body), PAYLOAD]).code is Code.BODY_CHECKSUM


@pytest.mark.parametrize("size", range(64))
def test_a_header_cut_at_any_byte_is_refused(size: int) -> None:
    cut = bytes(sealed()[0])[:size]
    expected = Code.NOT_OURS if size < len(MAGIC) else Code.HEADER_LENGTH
    assert refused([cut, *sealed()[1:]]).code is expected


def test_a_header_of_one_byte_more_is_refused() -> None:
    assert refused([bytes(sealed()[0]) + b"\0", *sealed()[1:]]).code is Code.HEADER_LENGTH


@pytest.mark.parametrize("version", [0, 1, WIRE_VERSION - 1, WIRE_VERSION + 1, 3, 255])
@pytest.mark.parametrize("size", [5, 16, 64, 80])
def test_another_wire_version_is_named_whatever_its_header_looks_like(
    version: int, size: int
) -> None:
    header = (MAGIC + bytes([version]) + bytes(size))[:size]
    error = refused([header, BODY])
    assert (error.code, error.wanted, error.got) == (Code.WIRE_VERSION, WIRE_VERSION, version)


@pytest.mark.parametrize("frame", [b"", b"PP1", b"GET / HTTP/1.1\r\n", bytes(64), b"q1PP" * 16])
def test_other_traffic_is_not_ours(frame: bytes) -> None:
    assert refused([frame, BODY]).code is Code.NOT_OURS


@pytest.mark.parametrize("offset", [7, 48, 49, 55])
def test_reserved_bytes_are_zero(offset: int) -> None:
    error = refused(with_field(offset, "<B", 1))
    assert (error.code, error.field) == (Code.NOT_CANONICAL, "header.reserved")


@pytest.mark.parametrize("count", [2, 3, 255])
def test_at_most_one_payload_frame_is_announced(count: int) -> None:
    assert refused(with_field(6, "<B", count)).code is Code.FRAME_COUNT


def test_no_payload_frame_has_no_payload_bytes() -> None:
    frames = with_field(6, "<B", 0)
    assert refused(frames[:2]).code is Code.FRAME_COUNT


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_two_frames_without_a_payload(count: int) -> None:
    frames = (sealed(None) + [PAYLOAD] * 5)[:count]
    assert refused(frames).code is Code.FRAME_COUNT


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5])
def test_three_frames_with_a_payload(count: int) -> None:
    frames = (sealed() + [PAYLOAD] * 5)[:count]
    assert refused(frames).code is Code.FRAME_COUNT


@pytest.mark.parametrize(
    ("offset", "most", "code", "field"),
    [
        (8, limits.BODY_BYTES_MAX, Code.BODY_LENGTH, "header.body_bytes"),
        (12, limits.PAYLOAD_BYTES_MAX, Code.PAYLOAD_LENGTH, "header.payload_bytes"),
    ],
)
def test_announced_lengths_at_and_beyond_the_limit(
    offset: int, most: int, code: Code, field: str
) -> None:
    at_limit = refused(with_field(offset, "<I", most))
    assert (at_limit.code, at_limit.field) == (code, field.split(".")[1].split("_")[0])
    for announced in (most + 1, 1 << 31, (1 << 32) - 1):
        beyond = refused(with_field(offset, "<I", announced))
        assert (beyond.code, beyond.field, beyond.got) == (code, field, announced)


@pytest.mark.parametrize("announced", [0, len(BODY) - 1, len(BODY) + 1])
def test_the_body_has_the_announced_length(announced: int) -> None:
    error = refused(with_field(8, "<I", announced))
    assert (error.code, error.wanted, error.got) == (Code.BODY_LENGTH, announced, len(BODY))


@pytest.mark.parametrize("announced", [0, len(PAYLOAD) - 1, len(PAYLOAD) + 1])
def test_the_payload_has_the_announced_length(announced: int) -> None:
    error = refused(with_field(12, "<I", announced))
    assert (error.code, error.wanted, error.got) == (
        Code.PAYLOAD_LENGTH,
        announced,
        len(PAYLOAD),
    )


def test_a_body_and_a_payload_at_their_limits_pass() -> None:
    body, payload = bytes(limits.BODY_BYTES_MAX), bytes(limits.PAYLOAD_BYTES_MAX)
    header, _, _ = unseal(seal(13, BOOT, EPOCH, body, payload))
    assert header.body_bytes == limits.BODY_BYTES_MAX
    assert header.payload_bytes == limits.PAYLOAD_BYTES_MAX


def test_nothing_is_sealed_that_every_peer_would_drop() -> None:
    with pytest.raises(AssertionError):
        seal(13, BOOT, EPOCH, bytes(limits.BODY_BYTES_MAX + 1), None)
    with pytest.raises(AssertionError):
        seal(13, BOOT, EPOCH, BODY, bytes(limits.PAYLOAD_BYTES_MAX + 1))


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_boot_id_is_never_padded_or_cut(size: int) -> None:
    with pytest.raises(AssertionError):
        seal(13, bytes(size), EPOCH, BODY, None)


@deterministic
@given(st.lists(st.binary(max_size=100), max_size=4))
def test_arbitrary_frames_only_ever_raise_protocol_errors(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError) as caught:
        unseal(frames)
    assert 100 <= caught.value.code < 110


@deterministic
@given(st.binary(min_size=55, max_size=55), st.lists(st.binary(max_size=20), max_size=3))
def test_arbitrary_headers_with_right_checksums_only_ever_raise_protocol_errors(
    rest: bytes, frames: list[bytes]
) -> None:
    header = reseal(MAGIC + bytes([WIRE_VERSION]) + rest)
    with pytest.raises(ProtocolError):
        unseal([header, *frames])
