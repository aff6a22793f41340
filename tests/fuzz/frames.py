"""Frames of one message as one byte string, and back; and what every error must be.

The form has a prefix of seven bytes: the number of frames (modulo five), and
the lengths (u16) of the first three; the last frame is whatever is left.
"""

import struct
from collections.abc import Sequence
from typing import Final

import xxhash

from proto_v2 import limits
from proto_v2.effects import Buffer
from proto_v2.envelope import MAGIC, WIRE_VERSION
from proto_v2.errors import REGISTRY, ProtocolError
from proto_v2.messages import refusal_fields

_PREFIX: Final = struct.Struct("<BHHH")
_LENGTHS: Final = struct.Struct("<II")
_SUM: Final = struct.Struct("<Q")
FRAMES_MOST: Final = 4


def split(data: bytes) -> list[memoryview]:
    """The frames of a fuzz input, as a socket would give them."""
    if len(data) < _PREFIX.size:
        return [memoryview(data)]
    count, *lengths = _PREFIX.unpack_from(data)
    rest = memoryview(data)[_PREFIX.size :]
    frames = []
    for index in range(count % (FRAMES_MOST + 1)):
        last = index + 1 == count % (FRAMES_MOST + 1)
        size = len(rest) if last else lengths[index]
        frames.append(rest[:size])
        rest = rest[size:]
    return frames


def join(frames: Sequence[Buffer]) -> bytes:
    """A fuzz input that ``split`` gives these frames from."""
    frames = frames[:FRAMES_MOST]
    sizes = [min(len(frame), 0xFFFF) for frame in frames[:-1]]
    lengths = [*sizes, 0, 0, 0][:3]
    return _PREFIX.pack(len(frames), *lengths) + b"".join(frames)


def repaired(frames: Sequence[Buffer], kind: int | None = None) -> list[Buffer]:
    """The same frames with lengths, frame count and checksums made right."""
    if len(frames) < 2:
        return list(frames)
    head = bytearray(bytes(frames[0])[: limits.HEADER_BYTES].ljust(limits.HEADER_BYTES, b"\0"))
    head[0:4] = MAGIC
    head[4] = WIRE_VERSION
    if kind is not None:
        head[5] = kind
    head[6] = len(frames) % 2
    head[7] = 0
    head[48:56] = bytes(8)
    _LENGTHS.pack_into(head, 8, len(frames[1]), len(frames[2]) if len(frames) > 2 else 0)
    _SUM.pack_into(head, 40, xxhash.xxh3_64_intdigest(frames[1]))
    return [resealed(head), *frames[1:]]


def resealed(header: Buffer | bytearray) -> bytes:
    """A header with nothing but its own checksum made right."""
    head = bytes(header)[:56].ljust(56, b"\0")
    return head + _SUM.pack(xxhash.xxh3_64_intdigest(head))


def check_error(error: ProtocolError) -> None:
    """A registered code, one printable line, and texts that a refusal can carry."""
    assert error.code in REGISTRY
    assert str(error).isprintable()
    _, *texts = refusal_fields(error)
    for text in texts:
        assert len(text) <= limits.TEXT_CHARS_MAX
        assert text.isprintable(), "so it has an encoding, too"
