"""Checksums and digests that bind bytes to the place they are for.

A q is only good for one token at one position of one round, after the tokens
drawn before it. The row checksum therefore covers all of that and the payload,
so that a row swapped with its neighbour, kept from an earlier round or sent
for another slot does not verify. XXH3-64 finds corruption and mix-ups; it does
not prove that the worker sampled honestly (seed 000).
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import xxhash

from . import limits
from .codec import encode_body
from .effects import Buffer
from .messages import Decision, StepEntry, tokens_to_bytes

_ROW: Final = struct.Struct("<16sIQIIIiII")
_COMPLETION: Final = struct.Struct("<16sIQIIIQ")
_PROPOSAL_PERSON: Final = b"PP1-proposal-v2\0"
_DECISION_PERSON: Final = b"PP1-decision-v2\0"


def row_checksum(
    entry: StepEntry,
    index: int,
    preceding: Sequence[int],
    token: int,
    representation: int,
    entries: int,
    payload: Buffer,
) -> int:
    """XXH3-64 of the row's place, the tokens drawn before it, its token and its bytes.

    ``index`` is the row's place in the chain, so its absolute position is
    ``entry.position + index``; ``preceding`` are the ``index`` earlier tokens.
    """
    state = xxhash.xxh3_64(
        _ROW.pack(
            entry.session_id,
            entry.slot,
            entry.generation,
            entry.round,
            entry.position + index,
            len(preceding),
            token,
            representation,
            entries,
        )
    )
    state.update(tokens_to_bytes(preceding))
    state.update(payload)
    return state.intdigest()


def completion_checksum(
    entry: StepEntry, status: int, reply_bytes: int, row_checksums: Sequence[int]
) -> int:
    """XXH3-64 of the proposal's place, status and size, and of every row checksum."""
    state = xxhash.xxh3_64(
        _COMPLETION.pack(
            entry.session_id,
            entry.slot,
            entry.generation,
            entry.round,
            status,
            len(row_checksums),
            reply_bytes,
        )
    )
    state.update(struct.pack(f"<{len(row_checksums)}Q", *row_checksums))
    return state.intdigest()


def proposal_digest(entry: StepEntry, tokens: Sequence[int], row_checksums: Sequence[int]) -> bytes:
    """What the two ranks compare before either evaluates a proposal.

    Covers the whole step entry (so also depth, temperature and prefix digest),
    every token and every row checksum.
    """
    assert len(tokens) == len(row_checksums), "one checksum a token keeps the layout unambiguous"
    return blake2b(
        encode_body(entry)
        + tokens_to_bytes(tokens)
        + struct.pack(f"<{len(row_checksums)}Q", *row_checksums),
        digest_size=limits.DIGEST_BYTES,
        person=_PROPOSAL_PERSON,
    ).digest()


def decision_digest(decision: Decision) -> bytes:
    """The digest of a whole decision record."""
    return blake2b(
        encode_body(decision), digest_size=limits.DIGEST_BYTES, person=_DECISION_PERSON
    ).digest()
