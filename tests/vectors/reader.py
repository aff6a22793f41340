"""A second reader of the wire: ``struct`` and XXH3, written from the texts, and nothing of ours.

It reads frames, bodies, rows and completions, computes checksums and digests,
and refuses with the names of the registry. It is as strict as 03 asks for:
shortest encodings, every bound, nothing left over.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash


class Refused(Exception):
    """What was read is not what the texts allow; ``code`` is the registry's name."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


# --- frames --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Header:
    """A header that is what it should be."""

    kind: int
    payload_frames: int
    body_length: int
    payload_length: int
    boot_id: bytes
    link_epoch: int
    body_checksum: int


def _demand(holds: bool, code: str) -> None:
    if not holds:
        raise Refused(code)


def read_frames(frames: Sequence[bytes]) -> tuple[Header, bytes, bytes | None]:
    """W-2, check by check."""
    head = frames[0]
    _demand(head[:4] == b"PP1q", "NOT_OURS")
    _demand(head[4:5] in (b"\x02", b""), "WIRE_VERSION")
    _demand(len(head) == 64, "HEADER_LENGTH")
    kind, count, reserved, body_length, payload_length = struct.unpack_from("<BBBII", head, 5)
    link_epoch, body_checksum, more_reserved, checksum = struct.unpack_from("<QQQQ", head, 32)
    _demand(checksum == xxhash.xxh3_64(head[:56]).intdigest(), "HEADER_CHECKSUM")
    _demand(reserved == 0 and more_reserved == 0, "NOT_CANONICAL")
    _demand(count in (0, 1) and not (count == 0 and payload_length), "FRAME_COUNT")
    _demand(body_length <= 1048576, "BODY_LENGTH")
    _demand(payload_length <= 4194304, "PAYLOAD_LENGTH")
    _demand(len(frames) == 2 + count, "FRAME_COUNT")
    _demand(len(frames[1]) == body_length, "BODY_LENGTH")
    _demand(xxhash.xxh3_64(frames[1]).intdigest() == body_checksum, "BODY_CHECKSUM")
    if count:
        _demand(len(frames[2]) == payload_length, "PAYLOAD_LENGTH")
    header = Header(
        kind, count, body_length, payload_length, head[16:32], link_epoch, body_checksum
    )
    return header, frames[1], frames[2] if count else None


# --- MessagePack ---------------------------------------------------------------------------

_NESTING: Final = 8
_NUMBERS: Final = {
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
# Tag, width of the length, least length for which there is no shorter header.
_LENGTHS: Final = {
    0xC4: ("bin", ">B", 0),
    0xC5: ("bin", ">H", 256),
    0xC6: ("bin", ">I", 65536),
    0xD9: ("str", ">B", 32),
    0xDA: ("str", ">H", 256),
    0xDB: ("str", ">I", 65536),
    0xDC: ("array", ">H", 16),
    0xDD: ("array", ">I", 65536),
}


class _Cursor:
    """Reads values; ``shortest`` says whether each was in its shortest form."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.shortest = True

    @property
    def left(self) -> int:
        """Bytes that are not read yet."""
        return len(self._data) - self._at

    def _take(self, count: int) -> bytes:
        _demand(count <= self.left, "MALFORMED")
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, layout: str) -> int:
        found: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return found

    def value(self, nesting: int = 0) -> Any:
        """The next value; anything that the wire has no use for is MALFORMED."""
        tag = self._take(1)[0]
        if tag < 0x80 or tag >= 0xE0:
            return tag if tag < 0x80 else tag - 256
        if tag in _NUMBERS:
            return self._integer(_NUMBERS[tag])
        if tag in (0xC2, 0xC3):
            return tag == 0xC3
        if tag in (0xCA, 0xCB):
            self.shortest &= tag == 0xCB
            return struct.unpack(
                *((">d", self._take(8)) if tag == 0xCB else (">f", self._take(4)))
            )[0]
        if 0x90 <= tag < 0xA0:
            return self._array(tag & 0x0F, nesting)
        if 0xA0 <= tag < 0xC0:
            return self._text(tag & 0x1F)
        _demand(tag in _LENGTHS, "MALFORMED")
        kind, layout, least = _LENGTHS[tag]
        length = self._number(layout)
        self.shortest &= length >= least
        if kind == "bin":
            return self._take(length)
        return self._text(length) if kind == "str" else self._array(length, nesting)

    def _integer(self, layout: str) -> int:
        found = self._number(layout)
        if found >= 0:
            narrowest = next(
                c for c, top in ((">B", 8), (">H", 16), (">I", 32), (">Q", 64)) if found < 1 << top
            )
            self.shortest &= found >= 0x80 and layout == narrowest
        else:
            narrowest = next(
                c
                for c, top in ((">b", 7), (">h", 15), (">i", 31), (">q", 63))
                if found >= -(1 << top)
            )
            self.shortest &= found < -32 and layout == narrowest
        return found

    def _text(self, length: int) -> str:
        try:
            return self._take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused("MALFORMED") from None

    def _array(self, count: int, nesting: int) -> list[Any]:
        _demand(count <= self.left and nesting < _NESTING, "MALFORMED")
        return [self.value(nesting + 1) for _ in range(count)]


# --- messages ------------------------------------------------------------------------------

# What a field may be, by a letter: B, I, Q unsigned of 8, 32, 64 bits; T a token; P a position;
# G and R generation and round from 1, G0 from 0; d float64; ? bool; b16 bytes, b<16 at most so
# many; s200 a text of at most so many characters; 4*X at most four X, 4=X exactly four.
_RECORDS: Final = {
    "StepEntry": "session_id:b16 slot:B generation:G round:R position:P digest:b16 depth:B "
    "temperature:d representation:B support:I context:Q",
    "Row": "entry:B position:P token:T representation:B entries:I byte_length:I checksum:Q",
    "CompletionEntry": "session_id:b16 generation:G round:R status:I row_count:B reply_bytes:Q "
    "checksum:Q",
    "CommitEntry": "session_id:b16 generation:G round:R accepted:B last:1*T position:P digest:b16",
    "PrepareEntry": "session_id:b16 generation:G round:R status:I digest:b16",
    "Invalidation": "session_id:b16 generation:G reason:I",
    "VerdictEntry": "session_id:b16 generation:G round:R status:I accepted:B rejected:B "
    "unverified:B last:B finish:B tokens:b<24",
    "DecisionEntry": "kind:B session_id:b16 generation:G0 round:I reason:I depth:B accepted:B "
    "rejected:B unverified:B last:B finish:B token_count:B tokens:b24 position:P "
    "digest:b16",
}
_REFUSAL: Final = "field:s400 wanted:s400 got:s400"
_MESSAGES: Final = {
    1: (
        "Hello",
        "role:B wire_min:B wire_max:B nonce:b16 semantics:s200 verifier:s200 rng_abi:s200 "
        "representations:16*B vocabulary_size:I legal_size:I vocabulary_hash:b32 "
        "draft_checkpoint:s200 draft_native:? target_checkpoint:s200 processors:s200 "
        "precision:s200 requests_max:I depth_max:I support_max:I frame_bytes_max:I "
        "staging_bytes:Q",
    ),
    2: ("TermsAgreed", "nonce:b16 digest:b32"),
    3: ("Refuse", f"code:I {_REFUSAL}"),
    4: ("Ping", "token:Q"),
    5: ("Pong", "token:Q"),
    6: ("Nak", f"code:I {_REFUSAL} step:Q session_id:b<16"),
    10: (
        "Reset",
        "session_id:b16 request_id:Q slot:B generation:G round:I reason:I base_length:P "
        "base_digest:b16 suffix:b<524288 digest:b16 key:b8 context:Q",
    ),
    11: ("Ready", "session_id:b16 generation:G length:P digest:b16"),
    12: ("Step", "step:Q entries:4*StepEntry"),
    13: ("Rows", "step:Q rows:20*Row"),
    14: ("Completion", "step:Q entries:4*CompletionEntry"),
    15: ("Commit", "entries:4*CommitEntry"),
    16: ("Cancel", "session_id:b16 generation:G reason:I"),
    20: (
        "Open",
        "session_id:b16 request_id:Q slot:B owner:B session_seed:b32 prompt:b<524288 "
        "temperature:d stop_tokens:64*T tokens_max:I context:Q digest:b16",
    ),
    21: ("Prepare", "step:Q entries:4*PrepareEntry"),
    22: ("Prepared", "step:Q entries:4*PrepareEntry"),
    23: ("Invalidate", "step:Q entries:4*Invalidation"),
    24: ("Invalidated", "step:Q entries:4*Invalidation"),
    25: ("Decide", "step:Q uses:4*?"),
    26: ("Verdicts", "step:Q entries:4*VerdictEntry"),
    27: ("Decision", "step:Q entries:4=DecisionEntry"),
    28: ("Applied", "step:Q digest:b16"),
    40: ("Query", ""),
    41: (
        "Info",
        "target_checkpoint:s200 processors:s200 vocabulary_size:I legal_size:I "
        "vocabulary_hash:b32 context_tokens_max:I stop_tokens:64*T requests_max:I "
        "pair_ready:? worker_ready:?",
    ),
    42: (
        "Generate",
        "key:Q prompt:b<524288 tokens_max:I temperature:d draft_temperature:d "
        "seed:b<32 stop_tokens:64*T depth:B representation:B support:I",
    ),
    43: ("Tokens", "key:Q index:I tokens:b<24 depth:B accepted:B reason:I"),
    44: (
        "Finished",
        "key:Q finish:B token_count:I rounds_speculative:I rounds_target_only:I "
        "drafted:I accepted:I rejected:I unverified:I accepted_at:5*I drafted_at:5*I",
    ),
    45: ("Failed", f"key:Q code:I {_REFUSAL}"),
    46: ("Abort", "key:Q"),
}
_RANGES: Final = {
    "B": (0, 255),
    "I": (0, 4294967295),
    "Q": (0, 18446744073709551615),
    "P": (0, 2147483647),
    "T": (-2147483648, 2147483647),
    "R": (1, 4294967295),
    "G": (1, 9223372036854775807),
    "G0": (0, 9223372036854775807),
}


def _field(shape: str, value: Any, cursor: _Cursor) -> Any:
    if shape in _RANGES:
        low, high = _RANGES[shape]
        _demand(type(value) is int and low <= value <= high, "MALFORMED")
        return value
    if shape == "d":
        if type(value) is int:
            cursor.shortest = False  # the same number in another encoding
            return float(value)
        _demand(type(value) is float, "MALFORMED")
        return value
    if shape == "?":
        _demand(type(value) is bool, "MALFORMED")
        return value
    if shape in _RECORDS:
        return _record(_RECORDS[shape], value, cursor)
    if shape[0] == "s":
        _demand(type(value) is str and len(value) <= int(shape[1:]), "MALFORMED")
        return value
    if shape[0] == "b":
        exact = shape[1] != "<"
        size = int(shape[1:] if exact else shape[2:])
        _demand(type(value) is bytes, "MALFORMED")
        _demand(len(value) == size if exact else len(value) <= size, "MALFORMED")
        return value
    exact = "=" in shape
    most, _, item = shape.partition("=" if exact else "*")
    _demand(type(value) is list, "MALFORMED")
    _demand(len(value) == int(most) if exact else len(value) <= int(most), "MALFORMED")
    return [_field(item, one, cursor) for one in value]


def _record(shapes: str, values: Any, cursor: _Cursor) -> dict[str, Any]:
    fields = [field.partition(":")[::2] for field in shapes.split()]
    _demand(type(values) is list and len(values) == len(fields), "MALFORMED")
    return {
        name: _field(shape, value, cursor)
        for (name, shape), value in zip(fields, values, strict=True)
    }


def read_body(kind: int, body: bytes) -> tuple[str, dict[str, Any]]:
    """The name and the fields of a message whose header says ``kind``."""
    _demand(kind in _MESSAGES, "KIND_UNKNOWN")
    cursor = _Cursor(body)
    values = cursor.value()
    _demand(cursor.left == 0 and type(values) is list and len(values) > 0, "MALFORMED")
    found = values[0]
    _demand(type(found) is int and found in _MESSAGES, "MALFORMED")
    name, shapes = _MESSAGES[found]
    fields = _record(shapes, values[1:], cursor)
    _demand(found == kind, "KIND_MISMATCH")
    _demand(cursor.shortest, "NOT_CANONICAL")
    return name, fields


def read_any(body: bytes) -> tuple[str, dict[str, Any]]:
    """The message of a canonical body, whichever it is."""
    place = 3 if body[:1] == b"\xdc" else 1  # after the array's header; every kind is one byte
    _demand(len(body) > place, "MALFORMED")
    return read_body(body[place], body)


def read_message(frames: Sequence[bytes]) -> tuple[str, dict[str, Any], bytes | None]:
    """A whole message; ``Rows`` always has a payload, nothing else ever."""
    header, body, payload = read_frames(frames)
    name, fields = read_body(header.kind, body)
    if name == "Rows":
        return name, fields, payload or b""
    _demand(payload is None, "FRAME_COUNT")
    return name, fields, None


# --- rows ----------------------------------------------------------------------------------


def read_q(representation: int, entries: int, payload: bytes) -> dict[int, int]:
    """The counts of a payload, by id; those of zero left out. For payloads that are valid."""
    if representation == 1:
        ids: Sequence[int] = range(entries)
        values = struct.unpack(f"<{entries}f", payload)
    else:
        ids = struct.unpack_from(f"<{entries}i", payload)
        values = struct.unpack_from(f"<{entries}f", payload, 4 * entries)
    counts = {token: int(value * 16777216) for token, value in zip(ids, values, strict=True)}
    assert sum(counts.values()) == 16777216
    return {token: count for token, count in counts.items() if count}


def _tokens(ids: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<i", token) for token in ids)


def _xxh3(*parts: bytes) -> int:
    return xxhash.xxh3_64(b"".join(parts)).intdigest()


def _blake(person: str, size: int, *parts: bytes) -> bytes:
    name = person.encode().ljust(16, b"\x00")
    return hashlib.blake2b(b"".join(parts), digest_size=size, person=name).digest()


def row_checksum(
    entry: dict[str, Any], row: dict[str, Any], preceding: Sequence[int], payload: bytes
) -> int:
    """Of a row of a step entry."""
    return _xxh3(
        entry["session_id"],
        struct.pack("<I", entry["slot"]),
        struct.pack("<Q", entry["generation"]),
        struct.pack("<I", entry["round"]),
        struct.pack("<I", row["position"]),
        struct.pack("<I", len(preceding)),
        struct.pack("<i", row["token"]),
        struct.pack("<I", row["representation"]),
        struct.pack("<I", row["entries"]),
        _tokens(preceding),
        payload,
    )


def completion_checksum(
    entry: dict[str, Any], status: int, reply_bytes: int, row_checksums: Sequence[int]
) -> int:
    """Of the completion of a step entry."""
    return _xxh3(
        entry["session_id"],
        struct.pack("<I", entry["slot"]),
        struct.pack("<Q", entry["generation"]),
        struct.pack("<I", entry["round"]),
        struct.pack("<I", status),
        struct.pack("<I", len(row_checksums)),
        struct.pack("<Q", reply_bytes),
        *(struct.pack("<Q", checksum) for checksum in row_checksums),
    )


def entry_bytes(step: bytes, index: int) -> bytes:
    """The bytes of one entry of a canonical ``Step``: its array, as it stands there."""
    cursor = _Cursor(step[2:])  # after the header of three elements and the kind
    cursor.value()
    entries = step[len(step) - cursor.left + 1 :]  # after the step and the list's header
    cursor = _Cursor(entries)
    for _ in range(index):
        cursor.value()
    start = len(entries) - cursor.left
    cursor.value()
    return entries[start : len(entries) - cursor.left]


def proposal_digest(entry: bytes, tokens: Sequence[int], row_checksums: Sequence[int]) -> bytes:
    """Of a proposal; ``entry`` are the bytes of its step entry."""
    sums = (struct.pack("<Q", checksum) for checksum in row_checksums)
    return _blake("PP1-proposal-v2", 16, entry, _tokens(tokens), *sums)


def decision_digest(body: bytes) -> bytes:
    """Of a decision record."""
    return _blake("PP1-decision-v2", 16, body)


def prefix_digest(session_id: bytes, tokens: Iterable[int]) -> bytes:
    """Of a prefix."""
    digest = _blake("PP1-prefix-v2", 16, session_id)
    for token in tokens:
        digest = _blake("PP1-prefix-v2", 16, digest, _tokens([token]))
    return digest


def vocabulary_hash(tokens: Sequence[bytes]) -> bytes:
    """Of an id map."""
    listed = (struct.pack("<I", len(token)) + token for token in tokens)
    return _blake("PP1-vocab-v2", 32, struct.pack("<I", len(tokens)), *listed)


def context_version(
    target: str, processors: str, temperature: bytes, stop_tokens: Iterable[int]
) -> int:
    """Of a target's law; ``temperature`` is a float64 in big-endian bytes."""
    names = (struct.pack("<I", len(name.encode())) + name.encode() for name in (target, processors))
    digest = _blake("PP1-context-v2", 8, *names, temperature[::-1], _tokens(sorted(stop_tokens)))
    return int.from_bytes(digest, "little")


def link_epoch(caller_nonce: bytes, called_nonce: bytes, terms_digest: bytes) -> int:
    """Of an agreement."""
    digest = _blake("PP1-epoch-v2", 8, caller_nonce, called_nonce, terms_digest)
    return int.from_bytes(digest, "little") or 1


def terms_digest(terms: Sequence[Any]) -> bytes:
    """Of terms in the order of S-6."""
    return _blake("PP1-terms-v2", 32, _packed(list(terms)))


def _packed(value: Any) -> bytes:
    """The few types that terms are made of, in their shortest form."""
    if type(value) is bool:
        return b"\xc3" if value else b"\xc2"
    if type(value) is int:
        for top, tag, layout in (
            (1 << 8, b"\xcc", ">B"),
            (1 << 16, b"\xcd", ">H"),
            (1 << 32, b"\xce", ">I"),
            (1 << 64, b"\xcf", ">Q"),
        ):
            if value < 128:
                return struct.pack("B", value)
            if value < top:
                return tag + struct.pack(layout, value)
    if type(value) is bytes:
        return b"\xc4" + struct.pack("B", len(value)) + value
    if type(value) is str:
        data = value.encode("utf-8")
        if len(data) < 32:
            return struct.pack("B", 0xA0 + len(data)) + data
        short = len(data) < 256
        return (
            (b"\xd9" if short else b"\xda") + struct.pack(">B" if short else ">H", len(data)) + data
        )
    assert type(value) is list
    head = (
        struct.pack("B", 0x90 + len(value))
        if len(value) < 16
        else b"\xdc" + struct.pack(">H", len(value))
    )
    return head + b"".join(_packed(item) for item in value)
