"""Bytes of the wire, written by hand from the texts: nothing of the product is used here.

MessagePack in its shortest form, and every longer form of the same value; the
header; the checksums and digests of 04, 05 and 06.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import xxhash


@dataclass(frozen=True, slots=True)
class Raw:
    """Bytes that stand in a body as they are."""

    data: bytes


def integer(value: int) -> bytes:
    """The shortest MessagePack integer."""
    if 0 <= value < 0x80:
        return struct.pack("B", value)
    if -0x20 <= value < 0:
        return struct.pack("b", value)
    return integer_forms(value)[0]


def integer_forms(value: int) -> list[bytes]:
    """Every MessagePack form of an integer but the one-byte ones, shortest first."""
    forms = []
    for tag, code in ((0xCC, "B"), (0xCD, "H"), (0xCE, "I"), (0xCF, "Q")):
        if 0 <= value < 1 << 8 * struct.calcsize(code):
            forms.append((struct.calcsize(code), 0, struct.pack(f">B{code}", tag, value)))
    for tag, code in ((0xD0, "b"), (0xD1, "h"), (0xD2, "i"), (0xD3, "q")):
        half = 1 << 8 * struct.calcsize(code) - 1
        if -half <= value < half:
            forms.append((struct.calcsize(code), 1, struct.pack(f">B{code}", tag, value)))
    return [form for _, _, form in sorted(forms)]


def _headed(tags: Sequence[tuple[int, str]], count: int) -> list[bytes]:
    return [
        struct.pack(f">B{code}", tag, count)
        for tag, code in tags
        if count < 1 << 8 * struct.calcsize(code)
    ]


def binary_heads(count: int) -> list[bytes]:
    """Every header of that many bytes, shortest first."""
    return _headed(((0xC4, "B"), (0xC5, "H"), (0xC6, "I")), count)


def text_heads(count: int) -> list[bytes]:
    """Every header of a text of that many bytes, shortest first."""
    fixed = [struct.pack("B", 0xA0 | count)] if count < 32 else []
    return fixed + _headed(((0xD9, "B"), (0xDA, "H"), (0xDB, "I")), count)


def array_heads(count: int) -> list[bytes]:
    """Every header of that many elements, shortest first."""
    fixed = [struct.pack("B", 0x90 | count)] if count < 16 else []
    return fixed + _headed(((0xDC, "H"), (0xDD, "I")), count)


def packed(value: Any) -> bytes:
    """The shortest MessagePack of a value."""
    if isinstance(value, Raw):
        return value.data
    if value is None:
        return b"\xc0"
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, bytes):
        return binary_heads(len(value))[0] + value
    if isinstance(value, str):
        encoded = value.encode()
        return text_heads(len(encoded))[0] + encoded
    return array_heads(len(value))[0] + b"".join(packed(item) for item in value)


def longer_forms(value: Any) -> list[bytes]:
    """Every other MessagePack encoding of the same value, shortest first."""
    if isinstance(value, bool):
        return []
    if isinstance(value, int):
        return [form for form in integer_forms(value) if form != integer(value)]
    if isinstance(value, float):
        single = struct.pack(">f", value)
        exact = struct.unpack(">f", single)[0] == value
        return [b"\xca" + single] if exact else []
    if isinstance(value, bytes):
        return [head + value for head in binary_heads(len(value))[1:]]
    if isinstance(value, str):
        encoded = value.encode()
        return [head + encoded for head in text_heads(len(encoded))[1:]]
    items = b"".join(packed(item) for item in value)
    return [head + items for head in array_heads(len(value))[1:]]


# --- frames --------------------------------------------------------------------------------


def header(
    kind: int,
    body: bytes,
    payload: bytes | None = None,
    *,
    boot_id: bytes = bytes(range(16)),
    link_epoch: int = 0,
    magic: bytes = b"PP1q",
    version: int = 2,
    payload_frames: int | None = None,
    reserved: tuple[int, int] = (0, 0),
    body_length: int | None = None,
    payload_length: int | None = None,
    body_checksum: int | None = None,
    checksum: int | None = None,
) -> bytes:
    """The 64 bytes of a header; what is not given is made right."""
    if payload_frames is None:
        payload_frames = int(payload is not None)
    if payload_length is None:
        payload_length = 0 if payload is None else len(payload)
    head = struct.pack(
        "<4sBBBBII16sQQQ",
        magic,
        version,
        kind,
        payload_frames,
        reserved[0],
        len(body) if body_length is None else body_length,
        payload_length,
        boot_id,
        link_epoch,
        xxhash.xxh3_64_intdigest(body) if body_checksum is None else body_checksum,
        reserved[1],
    )
    found = xxhash.xxh3_64_intdigest(head) if checksum is None else checksum
    return head + struct.pack("<Q", found)


def message(kind: int, body: bytes, payload: bytes | None = None, **changes: Any) -> list[bytes]:
    """The frames of one message."""
    frames = [header(kind, body, payload, **changes), body]
    return frames if payload is None else [*frames, payload]


# --- checksums and digests -----------------------------------------------------------------


def tokens(ids: Iterable[int]) -> bytes:
    """Token ids as int32 each."""
    return b"".join(struct.pack("<i", token) for token in ids)


def h128(person: bytes, data: bytes) -> bytes:
    """BLAKE2b with 16 bytes of output."""
    return blake2b(data, digest_size=16, person=person.ljust(16, b"\0")).digest()


def row_checksum(
    session_id: bytes,
    slot: int,
    generation: int,
    round_: int,
    position: int,
    preceding: Sequence[int],
    token: int,
    representation: int,
    entries: int,
    payload: bytes,
) -> int:
    """XXH3-64 of a row."""
    place = struct.pack(
        "<16sIQIIIiII",
        session_id,
        slot,
        generation,
        round_,
        position,
        len(preceding),
        token,
        representation,
        entries,
    )
    return xxhash.xxh3_64_intdigest(place + tokens(preceding) + payload)


def completion_checksum(
    session_id: bytes,
    slot: int,
    generation: int,
    round_: int,
    status: int,
    reply_bytes: int,
    row_checksums: Sequence[int],
) -> int:
    """XXH3-64 of a completion."""
    count = len(row_checksums)
    return xxhash.xxh3_64_intdigest(
        struct.pack("<16sIQIIIQ", session_id, slot, generation, round_, status, count, reply_bytes)
        + struct.pack(f"<{count}Q", *row_checksums)
    )


def proposal_digest(entry: bytes, chain: Sequence[int], row_checksums: Sequence[int]) -> bytes:
    """The digest of a proposal; ``entry`` is the encoding of its step entry."""
    sums = struct.pack(f"<{len(row_checksums)}Q", *row_checksums)
    return h128(b"PP1-proposal-v2", entry + tokens(chain) + sums)


def prefix_digest(session_id: bytes, prefix: Iterable[int]) -> bytes:
    """The digest of a prefix, token by token."""
    digest = h128(b"PP1-prefix-v2", session_id)
    for token in prefix:
        digest = h128(b"PP1-prefix-v2", digest + struct.pack("<i", token))
    return digest


def vocabulary_hash(listed: Sequence[bytes]) -> bytes:
    """The hash of an id map."""
    data = struct.pack("<I", len(listed))
    data += b"".join(struct.pack("<I", len(token)) + token for token in listed)
    return blake2b(data, digest_size=32, person=b"PP1-vocab-v2".ljust(16, b"\0")).digest()


def context(
    target_checkpoint: str, processors: str, temperature: float, stop_tokens: Iterable[int]
) -> int:
    """The version of everything that shapes the target's law besides the prefix."""
    data = b""
    for name in (target_checkpoint, processors):
        data += struct.pack("<I", len(name.encode())) + name.encode()
    data += struct.pack("<d", temperature) + tokens(sorted(stop_tokens))
    digest = blake2b(data, digest_size=8, person=b"PP1-context-v2".ljust(16, b"\0"))
    return int.from_bytes(digest.digest(), "little")


def terms_digest(terms: Sequence[Any]) -> bytes:
    """The digest of agreed terms."""
    return blake2b(packed(terms), digest_size=32, person=b"PP1-terms-v2".ljust(16, b"\0")).digest()


def link_epoch(caller_nonce: bytes, called_nonce: bytes, digest: bytes) -> int:
    """The name of an agreed link."""
    data = caller_nonce + called_nonce + digest
    found = blake2b(data, digest_size=8, person=b"PP1-epoch-v2".ljust(16, b"\0")).digest()
    return int.from_bytes(found, "little") or 1
