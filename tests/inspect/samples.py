"""Messages, streams and captures that the tests of ``pp1 inspect`` read and bend."""

import struct
from collections.abc import Sequence
from typing import Any

from proto_v2.codec import encode
from proto_v2.messages import Ping, Rows
from tests.inspect.recording import ACK, SYN, Packet
from tests.proto_samples import BOOT, EPOCH, chain, hello, reseal, sparse_entry, step, step_entry

SECOND = 1_000_000_000


def greeting(mechanism: bytes = b"NULL", major: int = 3) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f" + bytes([major, 1]) + mechanism.ljust(20, b"\0") + bytes(32)


def command(name: bytes, data: bytes = b"") -> bytes:
    body = bytes([len(name)]) + name + data
    return bytes([4, len(body)]) + body


READY = command(b"READY", b"\x0bSocket-Type\x00\x00\x00\x06DEALER")


def framed(frames: Sequence[object]) -> bytes:
    parts = []
    for index, given in enumerate(frames):
        frame = bytes(given)  # type: ignore[call-overload]
        more = index < len(frames) - 1
        if len(frame) < 256:
            parts.append(bytes([more, len(frame)]) + frame)
        else:
            parts.append(bytes([more | 2]) + struct.pack(">Q", len(frame)) + frame)
    return b"".join(parts)


ROWS, PAYLOADS = chain(sparse_entry())
MESSAGES = [
    encode(hello(), BOOT, 0),
    encode(step(sparse_entry()), BOOT, EPOCH),
    encode(Rows(1, tuple(ROWS)), BOOT, EPOCH, b"".join(PAYLOADS)),
    encode(Ping(5), BOOT, EPOCH),
]
STREAM = greeting() + READY + b"".join(framed(frames) for frames in MESSAGES)
NAMES = ["Hello", "Step", "Rows", "Ping"]


def header(place: int, value: bytes, *, sealed: bool = True) -> tuple[Any, ...]:
    """A sound message whose header has other bytes at a place, sealed again or not."""
    head, *rest = encode(step(step_entry()), BOOT, EPOCH)
    changed = bytearray(head)
    changed[place : place + len(value)] = value
    return (reseal(changed) if sealed else bytes(changed), *rest)


def packets(data: bytes, size: int = 50, start: int = 77) -> list[Packet]:
    """A connection whose caller sends ``data``."""
    made = [
        Packet(SECOND, 1000, 2000, SYN, start, 0),
        Packet(SECOND + 1000, 2000, 1000, SYN | ACK, 5, start + 1),
    ]
    for at in range(0, len(data), size):
        made.append(
            Packet(2 * SECOND + at * 1000, 1000, 2000, ACK, start + 1 + at, 6, data[at : at + size])
        )
    return made
