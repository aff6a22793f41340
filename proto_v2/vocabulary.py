"""The global id map: how wide a row is, which ids are legal, what they mean.

Two sides that disagree about one token string would exchange perfectly valid
bytes about different tokens, so the map's hash is compared in HELLO.
(Seed 000, "Versioned v2 message design"; specs/01.)
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from . import limits
from .errors import Code, ProtocolError

PERSON: Final = b"PP1-vocab-v2\0\0\0\0"

assert len(PERSON) == 16


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The vocabulary of an engine.

    Attributes:
        size: ids in a row, padding included (row width).
        legal_size: ids that mean a token; those from here to ``size`` are padding.
        map_hash: 32 bytes, see ``map_hash``.

    Raises:
        ProtocolError: CONFIG_INVALID for sizes or a hash that no row can have.
    """

    size: int
    legal_size: int
    map_hash: bytes

    def __post_init__(self) -> None:
        _check("size", 1 <= self.size <= limits.VOCABULARY_SIZE_MAX, self.size)
        _check("legal_size", 1 <= self.legal_size <= self.size, self.legal_size)
        _check("map_hash", len(self.map_hash) == limits.VOCABULARY_HASH_BYTES, len(self.map_hash))


_WANTED: Final = {
    "size": f"1..{limits.VOCABULARY_SIZE_MAX}",
    "legal_size": "1..size",
    "map_hash": f"{limits.VOCABULARY_HASH_BYTES} bytes",
}


def _check(field: str, holds: bool, got: object) -> None:
    if not holds:
        raise ProtocolError(Code.CONFIG_INVALID, f"vocabulary.{field}", _WANTED[field], got)


def map_hash(tokens: Iterable[bytes]) -> bytes:
    """BLAKE2b-256 of the canonical id map: u32 count, then u32 length and bytes per id."""
    listed = list(tokens)
    state = blake2b(
        struct.pack("<I", len(listed)), digest_size=limits.VOCABULARY_HASH_BYTES, person=PERSON
    )
    for token in listed:
        state.update(struct.pack("<I", len(token)) + token)
    return state.digest()
