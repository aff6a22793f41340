"""The fixed binary header that stands before every body.

A message is two or three frames: header (64 bytes), body (MessagePack), and
for ``Rows`` one payload frame. Layout of the header, little endian:

    offset size field
         0    4 magic "PP1q"
         4    1 wire version (2)
         5    1 kind
         6    1 payload frames (0 or 1)
         7    1 reserved, zero
         8    4 body length in bytes
        12    4 payload length in bytes
        16   16 boot id of the sender
        32    8 link epoch (0 before the terms are agreed)
        40    8 XXH3-64 of the body
        48    8 reserved, zero
        56    8 XXH3-64 of bytes 0..55

The payload is covered by the row checksums inside the body. Identities stand
in every message because ZeroMQ reconnects without telling anyone.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from . import limits
from .effects import Buffer
from .errors import Code, ProtocolError

MAGIC: Final = b"PP1q"
WIRE_VERSION: Final = 2
_LAYOUT: Final = struct.Struct("<4sBBBBII16sQQQ")
_SUM: Final = struct.Struct("<Q")

assert _LAYOUT.size + _SUM.size == limits.HEADER_BYTES


@dataclass(frozen=True, slots=True)
class Header:
    """A header whose own checksum holds."""

    kind: int
    payload_frames: int
    body_bytes: int
    payload_bytes: int
    boot_id: bytes
    link_epoch: int
    body_checksum: int


def seal(
    kind: int, boot_id: bytes, link_epoch: int, body: bytes, payload: Buffer | None
) -> tuple[Buffer, ...]:
    """The frames of one message. Lengths count bytes, whatever the payload's item size."""
    payload_bytes = 0 if payload is None else memoryview(payload).nbytes
    assert len(boot_id) == limits.ID_BYTES, "a boot id is never padded or cut"
    assert len(body) <= limits.BODY_BYTES_MAX, "a body that every peer would drop"
    assert payload_bytes <= limits.PAYLOAD_BYTES_MAX, "a payload that every peer would drop"
    head = _LAYOUT.pack(
        MAGIC,
        WIRE_VERSION,
        kind,
        0 if payload is None else 1,
        0,
        len(body),
        payload_bytes,
        boot_id,
        link_epoch,
        xxhash.xxh3_64_intdigest(body),
        0,
    )
    header = head + _SUM.pack(xxhash.xxh3_64_intdigest(head))
    return (header, body) if payload is None else (header, body, payload)


def read_header(frame: Buffer) -> Header:
    """Check and split the first frame. Raises the 10x codes, first fault first.

    Magic and version come before the length: they stand where they stand in
    every version of the wire, the rest of the header does not.
    """
    magic = bytes(frame[: len(MAGIC)])
    if magic != MAGIC:
        raise ProtocolError(Code.NOT_OURS, "header.magic", str(MAGIC), str(magic))
    if len(frame) > len(MAGIC) and frame[len(MAGIC)] != WIRE_VERSION:
        raise ProtocolError(Code.WIRE_VERSION, "header.version", WIRE_VERSION, frame[len(MAGIC)])
    if len(frame) != limits.HEADER_BYTES:
        raise ProtocolError(
            Code.HEADER_LENGTH, "header", f"{limits.HEADER_BYTES} bytes", f"{len(frame)} bytes"
        )
    (_, _, kind, payload_frames, zero_a, body_bytes, payload_bytes, boot_id,
     link_epoch, body_checksum, zero_b) = _LAYOUT.unpack_from(frame)  # fmt: skip
    (checksum,) = _SUM.unpack_from(frame, _LAYOUT.size)
    found = xxhash.xxh3_64_intdigest(frame[: _LAYOUT.size])
    if checksum != found:
        raise ProtocolError(
            Code.HEADER_CHECKSUM, "header.checksum", f"{found:016x}", f"{checksum:016x}"
        )
    if zero_a or zero_b:
        raise ProtocolError(Code.NOT_CANONICAL, "header.reserved", 0, zero_a or zero_b)
    if payload_frames > 1 or (payload_frames == 0 and payload_bytes):
        raise ProtocolError(
            Code.FRAME_COUNT, "header.payload_frames", "0 or 1, and 0 bytes with 0", payload_frames
        )
    if body_bytes > limits.BODY_BYTES_MAX:
        raise ProtocolError(
            Code.BODY_LENGTH, "header.body_bytes", f"at most {limits.BODY_BYTES_MAX}", body_bytes
        )
    if payload_bytes > limits.PAYLOAD_BYTES_MAX:
        raise ProtocolError(
            Code.PAYLOAD_LENGTH,
            "header.payload_bytes",
            f"at most {limits.PAYLOAD_BYTES_MAX}",
            payload_bytes,
        )
    return Header(
        kind, payload_frames, body_bytes, payload_bytes, boot_id, link_epoch, body_checksum
    )


def unseal(frames: Sequence[Buffer]) -> tuple[Header, Buffer, Buffer | None]:
    """Header, body and payload of a whole message, lengths and body checksum checked."""
    if not frames:
        raise ProtocolError(Code.FRAME_COUNT, "frames", "2 or 3", 0)
    header = read_header(frames[0])
    if len(frames) != 2 + header.payload_frames:
        raise ProtocolError(Code.FRAME_COUNT, "frames", 2 + header.payload_frames, len(frames))
    body = frames[1]
    if len(body) != header.body_bytes:
        raise ProtocolError(Code.BODY_LENGTH, "body", header.body_bytes, len(body))
    found = xxhash.xxh3_64_intdigest(body)
    if found != header.body_checksum:
        raise ProtocolError(
            Code.BODY_CHECKSUM, "body", f"{header.body_checksum:016x}", f"{found:016x}"
        )
    payload = frames[2] if header.payload_frames else None
    if payload is not None and len(payload) != header.payload_bytes:
        raise ProtocolError(Code.PAYLOAD_LENGTH, "payload", header.payload_bytes, len(payload))
    return header, body, payload
