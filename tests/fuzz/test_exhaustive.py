"""Every small change of every valid message, without an engine: it parses, or gives a code."""

from collections.abc import Iterator

import pytest

from proto_v2 import limits
from proto_v2.codec import decode, encode
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import KINDS, Rows
from tests.proto_samples import plain
from tests.support.wire import Frames

from .conversation import MACHINES, edit, machine, script
from .fields import places
from .frames import check_error, repaired, resealed
from .parsers import rows
from .targets import TARGETS, golden

INSERTED = (0x00, 0x01, 0x7F, 0x80, 0xC1, 0xFF)
CHOICES = (0, 3, 14)
REPLACED, ADDED = 5, 14  # edits of a conversation
BY_KIND: dict[int, list[Frames]] = {
    kind: [frames for frames in golden() if frames[0][5] == kind] for kind in KINDS
}
kinds = pytest.mark.parametrize("kind", BY_KIND, ids=[kind.__name__ for kind in KINDS.values()])


def changes(frame: bytes) -> Iterator[bytes]:
    """Every bit flipped, every length cut to, a byte of a few values inserted everywhere."""
    for place in range(len(frame)):
        for bit in range(8):
            yield frame[:place] + bytes([frame[place] ^ 1 << bit]) + frame[place + 1 :]
    for size in range(len(frame)):
        yield frame[:size]
    for place in range(len(frame) + 1):
        for value in INSERTED:
            yield frame[:place] + bytes([value]) + frame[place:]


def code_of(frames: Frames) -> Code | None:
    """The code that these frames give; None if they are a message, which then is canonical."""
    try:
        received = decode(frames)
    except ProtocolError as error:
        check_error(error)
        return error.code
    again = encode(received.message, received.boot_id, received.link_epoch, received.payload)
    assert again[1] == frames[1]
    return None


@kinds
def test_every_change_of_header_and_body_is_refused(kind: int) -> None:
    for header, body, *rest in BY_KIND[kind]:
        assert code_of((header, body, *rest)) is None
        for changed in changes(bytes(header)):
            assert code_of((changed, body, *rest)) in {
                Code.NOT_OURS, Code.WIRE_VERSION, Code.HEADER_LENGTH, Code.HEADER_CHECKSUM
            }  # fmt: skip
        for changed in changes(bytes(body)):
            assert code_of((header, changed, *rest)) in {Code.BODY_LENGTH, Code.BODY_CHECKSUM}


@kinds
def test_every_change_of_a_body_that_is_sealed_again_is_a_message_or_a_code(kind: int) -> None:
    codes: set[Code | None] = set()
    for header, body, *rest in BY_KIND[kind]:
        for changed in changes(bytes(body)):
            codes.add(code_of(tuple(repaired((header, changed, *rest)))))
    assert codes <= {None, Code.MALFORMED, Code.NOT_CANONICAL, Code.KIND_MISMATCH}
    assert Code.MALFORMED in codes


@kinds
def test_every_change_of_a_header_that_is_sealed_again_is_a_message_or_a_code(kind: int) -> None:
    for header, *rest in BY_KIND[kind]:
        for changed in changes(bytes(header)[: limits.HEADER_BYTES - 8]):
            code_of((resealed(changed), *rest))


@kinds
def test_every_number_of_frames_is_a_message_or_a_code(kind: int) -> None:
    for frames in BY_KIND[kind]:
        for wrong in ((), frames[:1], frames[1:], (*frames, b""), (*frames, b"", b"")):
            assert code_of(wrong) is not None


@pytest.mark.parametrize("frames", BY_KIND[13], ids=lambda frames: str(len(frames[2])))
def test_every_change_of_the_length_of_a_payload_is_refused(frames: Frames) -> None:
    header, body, payload = frames
    assert isinstance(decode(frames).message, Rows)
    for changed in changes(bytes(payload)):
        wanted = None if len(changed) == len(payload) else Code.PAYLOAD_LENGTH
        assert code_of((header, body, changed)) == wanted


@pytest.mark.parametrize("data", sorted(set(TARGETS["rows"].seeds())), ids=lambda data: data.hex())
def test_every_change_of_a_row_is_a_q_or_a_code(data: bytes) -> None:
    for changed in changes(data):
        rows(changed)


@pytest.mark.parametrize("name", MACHINES)
def test_another_value_in_every_place_of_every_message_loses_nothing(name: str) -> None:
    seen = set()
    for index, told in enumerate(script(name)):
        message = decode(told.frames).message
        if type(message) in seen:
            continue
        seen.add(type(message))
        for place in range(len(places(plain(message)))):
            for choice in CHOICES:
                machine(name, edit(REPLACED, index, place, bytes([choice])))
                machine(name, edit(ADDED, index, place, bytes([choice])))
