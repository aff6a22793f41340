"""The global id map: how wide a row is, which ids are legal, what they mean.

Two sides that disagree about one token string would exchange perfectly valid
bytes about different tokens, so the map's hash is compared in HELLO.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

_PERSON: Final = b"PP1-vocab-v2\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``size`` is the row width, ``legal_size`` the unpadded size, ``map_hash`` 32 bytes."""

    size: int
    legal_size: int
    map_hash: bytes


def map_hash(tokens: Iterable[bytes]) -> bytes:
    """BLAKE2b-256 of the canonical id map: u32 count, then u32 length and bytes per id."""
    listed = list(tokens)
    state = blake2b(struct.pack("<I", len(listed)), digest_size=32, person=_PERSON)
    for token in listed:
        state.update(struct.pack("<I", len(token)) + token)
    return state.digest()
