"""Mutations that know the form of an input, for the fuzzing engine.

Each takes the engine's own byte mutation, and applies it inside the form: to
one frame, body, payload or record. Most of the time lengths and checksums are
then made right again, so that the input reaches what lies behind them.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from proto_v2 import limits
from proto_v2.effects import Buffer
from proto_v2.messages import KINDS
from tests.proto_samples import VOCABULARY

from .fields import at, other, places, put
from .frames import join, repaired, resealed, split
from .parsers import HANDSHAKE_KINDS, ITEMS_MOST, ROW_PREFIX, operations

Native = Callable[[bytes, int], bytes]
# (input, most bytes, seed) -> another input
Mutator = Callable[[bytes, int, int], bytes]

_KIND_NUMBERS: Final = tuple(KINDS)
_GROWTH: Final = 16


def message(native: Native) -> Mutator:
    """Of the frames of one message."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        frames: list[Buffer] = list(split(data))
        choice, seed = seed & 15, seed >> 4
        if choice == 0 or len(frames) < 2:
            return native(data, most)
        header, body, *payload = frames
        if choice <= 3:
            changed = native(bytes(header), limits.HEADER_BYTES)
            frames[0] = resealed(changed) if choice < 3 else changed
        elif choice <= 6:
            frames[1] = native(bytes(body), len(body) + _GROWTH)
            if choice < 6:
                frames = repaired(frames, _kind_of(frames[1]))
        elif choice <= 11:
            frames[1] = _another_field(bytes(body), seed, native)
            frames = repaired(frames, _kind_of(frames[1]))
        elif choice == 12 and payload:
            frames[2] = native(bytes(payload[0]), len(payload[0]) + _GROWTH)
            frames = repaired(frames)
        elif choice == 13:
            frames = repaired(frames, _KIND_NUMBERS[seed % len(_KIND_NUMBERS)])
        elif choice == 14:
            frames = repaired([*frames[:2], b"", b""][: seed % 5])
        else:
            frames = repaired([*frames[:2], native(bytes(body), most)])
        return join(frames)

    return mutate


def _kind_of(body: Buffer) -> int | None:
    """The kind that a body says, if it says one."""
    tag = body[3:4] if body[:1] == b"\xdc" else body[1:2]
    return tag[0] if tag else None


def _another_field(body: bytes, seed: int, native: Native) -> bytes:
    """The body with another value in one place."""
    try:
        value = msgspec.msgpack.decode(body)
        spots = places(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return native(body, len(body) + _GROWTH)
    if not spots:
        return native(body, len(body) + _GROWTH)
    spot, seed = spots[seed % len(spots)], seed // len(spots)
    old: Any = at(value, spot)
    if isinstance(old, bytes) and seed & 1:
        new: Any = native(old, len(old) + (seed >> 1 & 3))
    else:
        new = other(old, seed)
    return msgspec.msgpack.encode(put(value, spot, new))


def row(native: Native) -> Mutator:
    """Of one row: bytes, or values that sum to the mass, or a whole new q."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        choice, seed = seed & 7, seed >> 3
        if choice < 3 or len(data) < ROW_PREFIX:
            return native(data, most)
        prefix, payload = bytearray(data[:ROW_PREFIX]), data[ROW_PREFIX:]
        if choice == 3:
            return native(bytes(prefix), ROW_PREFIX).ljust(ROW_PREFIX, b"\0") + payload
        if choice < 6:
            payload = native(payload, len(payload) + 8)
            return bytes(prefix) + _balanced(payload, bool(prefix[0] & 1), seed)
        prefix[0] &= 1
        prefix[2], payload = _fresh_q(bool(prefix[0]), seed)
        return bytes(prefix) + payload

    return mutate


def _balanced(payload: bytes, sparse: bool, seed: int) -> bytes:
    """One value changed so that the sum is the mass, where that can be."""
    entries = len(payload) // (limits.SPARSE_ENTRY_BYTES if sparse else limits.DENSE_ENTRY_BYTES)
    if entries == 0:
        return payload
    start = 4 * entries if sparse else 0
    values = list(struct.unpack_from(f"<{entries}f", payload, start))
    place = seed % entries
    values[place] = 0.0
    left = 1.0 - sum(values)
    if not 0.0 <= left <= 1.0:
        return payload
    values[place] = left
    end = start + 4 * entries
    return payload[:start] + struct.pack(f"<{entries}f", *values) + payload[end:]


def _fresh_q(sparse: bool, seed: int) -> tuple[int, bytes]:
    """A token, and a valid q that it can have come from."""
    most = 4 if sparse else VOCABULARY.legal_size
    count = 1 + seed % most
    step = 1 + (seed >> 4) % max(1, VOCABULARY.legal_size // count)
    ids = [index * step for index in range(count)]
    share = (seed >> 8) % (limits.MASS // count) + 1
    counts = [share] * (count - 1)
    counts.append(limits.MASS - sum(counts))
    values = [value / limits.MASS for value in counts]
    token = ids[(seed >> 4) % count]
    if sparse:
        return token, struct.pack(f"<{count}i{count}f", *ids, *values)
    dense = [0.0] * VOCABULARY.size
    for index, value in zip(ids, values, strict=True):
        dense[index] = value
    return token, struct.pack(f"<{VOCABULARY.size}f", *dense)


def handshake(native: Native) -> Mutator:
    """Of what two handshakes are told."""
    item = struct.Struct("<BH")

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        choice, seed = seed & 7, seed >> 3
        items: list[tuple[int, bytes]] = []
        place = 0
        while place + item.size <= len(data) and len(items) < ITEMS_MOST:
            operation, size = item.unpack_from(data, place)
            place += item.size
            body = b""
            if operation & 4:
                body = data[place : place + size]
                place += size
            items.append((operation, body))
        if choice == 0 or not items:
            return native(data, most)
        index, seed = seed % len(items), seed >> 4
        operation, body = items[index]
        if choice == 1:
            items[index] = (seed & 7 | operation & ~7, body)
        elif choice == 2:
            items.insert(index, (seed & 1, b""))
        elif choice == 3:
            items.insert(seed % (len(items) + 1), items[index])
        elif choice == 4 and len(items) > 1:
            del items[index]
        elif choice == 5 and body:
            items[index] = _of_its_kind(operation, native(body, len(body) + _GROWTH))
        elif body:
            items[index] = _of_its_kind(operation, _another_field(body, seed, native))
        else:
            items[index] = (seed & 1, b"")
        packed = (item.pack(operation, len(body)) + body for operation, body in items)
        return b"".join(packed)

    return mutate


def _of_its_kind(operation: int, body: bytes) -> tuple[int, bytes]:
    """An item with the operation that reads this body."""
    kind = _kind_of(body)
    place = HANDSHAKE_KINDS.index(kind) if kind in HANDSHAKE_KINDS else 0
    return operation & 1 | 4 | place << 3, body


def records(native: Native) -> Mutator:
    """Of a list of operations."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        choice, seed = seed & 7, seed >> 3
        found = list(operations(data))
        if choice == 0 or not found:
            return native(data, most)
        index, seed = seed % len(found), seed >> 4
        operation, which, where, blob = found[index]
        if choice == 1:
            found.insert(seed % (len(found) + 1), found[index])
        elif choice == 2 and len(found) > 1:
            del found[index]
        elif choice == 3:
            found.insert(index, (seed & 15, seed >> 4 & 255, seed >> 12 & 255, b""))
        elif choice == 4:
            found[index] = (seed & 15, which, where, blob)
        elif choice == 5:
            found[index] = (operation, seed & 255, seed >> 8 & 255, blob)
        else:
            found[index] = (operation, which, where, native(blob, 255))
        return _packed(found)

    return mutate


def _packed(found: Sequence[tuple[int, int, int, bytes]]) -> bytes:
    return b"".join(
        bytes([operation, which, where, min(len(blob), 255)]) + blob[:255]
        for operation, which, where, blob in found
    )
