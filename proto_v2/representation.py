"""Counts to q bytes and back, every value rule checked on the way in.

``dense-f32``: ``float32 LE [V]`` of count / 2**24.
``sparse-f32``: ``int32 LE ids [n]`` strictly ascending, then ``float32 LE [n]``.

Every such value is exact in FP32, and so is its product with 2**24, so the
receiver gets the sender's integers or a refusal. Number 3 is kept for a
lossless byte-plane form. (Seed 000, "dyadic categorical q"; specs/01.)
"""

from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import limits
from .dyadic import Categorical
from .effects import Buffer
from .errors import Code, ProtocolError


class Representation(IntEnum):
    """Registered q representations."""

    DENSE_F32 = 1
    SPARSE_F32 = 2


NAMES: Final = {
    Representation.DENSE_F32: "dense-f32",
    Representation.SPARSE_F32: "sparse-f32",
}

# As unsigned integers the patterns of +0.0 .. 1.0 are 0 .. 0x3F800000; NaN,
# infinities, everything negative (with -0.0) and everything above one is greater.
_ONE_BITS: Final = 0x3F80_0000


def row_bytes(representation: Representation, entries: int, vocabulary_size: int) -> int:
    """Payload bytes of a row with that many entries."""
    if representation == Representation.DENSE_F32:
        return vocabulary_size * limits.DENSE_ENTRY_BYTES
    return entries * limits.SPARSE_ENTRY_BYTES


def row_entries(representation: Representation, payload: Buffer) -> int:
    """Entries of an encoded row, from its length."""
    if representation == Representation.DENSE_F32:
        return len(payload) // limits.DENSE_ENTRY_BYTES
    return len(payload) // limits.SPARSE_ENTRY_BYTES


def encode(categorical: Categorical, representation: Representation) -> bytes:
    """The payload of a row: the counts, whichever way the categorical holds them."""
    assert categorical.mass_bits <= limits.MASS_BITS, "FP32 holds 24 bits of a count"
    scale = float(1 << categorical.mass_bits)
    if representation == Representation.DENSE_F32:
        return (categorical.dense() / scale).astype("<f4").tobytes()
    if categorical.ids is None:
        ids = np.flatnonzero(categorical.counts)
        counts = categorical.counts[ids]
    else:
        ids, counts = categorical.ids.astype(np.intp), categorical.counts
    return ids.astype("<i4").tobytes() + (counts / scale).astype("<f4").tobytes()


def decode(
    representation: Representation,
    payload: Buffer,
    entries: int,
    *,
    vocabulary_size: int,
    legal_size: int,
    mass_bits: int = limits.MASS_BITS,
) -> Categorical:
    """The categorical of a payload, or the first rule that it breaks.

    The rules are checked in the order below, each over the whole row, and the
    first that fails names its first offender. The result holds copies; the
    payload may be overwritten afterwards.

    Raises:
        ProtocolError: REPRESENTATION_MISMATCH, ROW_ENTRIES, ROW_BYTES, ID_RANGE,
            ID_ORDER, VALUE_BITS, VALUE_ZERO, VALUE_DYADIC, MASS_WRONG, PADDING_NOT_ZERO.
    """
    if representation not in NAMES:
        raise ProtocolError(
            Code.REPRESENTATION_MISMATCH, "representation", list(NAMES.values()), representation
        )
    dense = representation == Representation.DENSE_F32
    if not (entries == vocabulary_size if dense else 1 <= entries <= legal_size):
        wanted = vocabulary_size if dense else f"1..{legal_size}"
        raise ProtocolError(Code.ROW_ENTRIES, "entries", wanted, entries)
    size = row_bytes(representation, entries, vocabulary_size)
    if len(payload) != size:
        raise ProtocolError(Code.ROW_BYTES, "payload", f"{size} bytes", f"{len(payload)} bytes")
    if dense:
        counts = _counts(payload, 0, entries, mass_bits)
        if bool(counts[legal_size:].any()):
            raise ProtocolError(
                Code.PADDING_NOT_ZERO, "q", f"zero from id {legal_size} on", "mass there"
            )
        return Categorical(vocabulary_size, None, counts, mass_bits)
    ids = np.frombuffer(payload, dtype="<i4", count=entries).astype(np.int32)
    _check_ids(ids, legal_size)
    counts = _counts(payload, 4 * entries, entries, mass_bits, zeros=False)
    return Categorical(vocabulary_size, ids, counts, mass_bits)


def _check_ids(ids: NDArray[np.int32], legal_size: int) -> None:
    """ID_RANGE before ID_ORDER; ascending ids within range are recognised in one pass."""
    ascending = bool((ids[1:] > ids[:-1]).all())
    if ascending and ids[0] >= 0 and ids[-1] < legal_size:
        return
    outside = np.flatnonzero((ids < 0) | (ids >= legal_size))
    if outside.size:
        place = int(outside[0])
        raise ProtocolError(Code.ID_RANGE, f"ids[{place}]", f"0..{legal_size - 1}", int(ids[place]))
    place = int(np.argmax(ids[1:] <= ids[:-1])) + 1
    raise ProtocolError(
        Code.ID_ORDER, f"ids[{place}]", f"above {int(ids[place - 1])}", int(ids[place])
    )


def _counts(
    payload: Buffer, offset: int, entries: int, mass_bits: int, *, zeros: bool = True
) -> NDArray[np.int64]:
    """Integer counts of an FP32 block; bits, then zeros, then dyadic, then the sum."""
    bits = np.frombuffer(payload, dtype="<u4", count=entries, offset=offset)
    _refuse_first(bits > _ONE_BITS, Code.VALUE_BITS, "a finite q in +0.0..1.0", bits)
    if not zeros:
        _refuse_first(bits == 0, Code.VALUE_ZERO, "a positive q", bits)
    values = np.frombuffer(payload, dtype="<f4", count=entries, offset=offset)
    scaled = values.astype(np.float64) * float(1 << mass_bits)
    counts = scaled.astype(np.int64)
    # Positive but below one ticket is asked of the bits: a process that flushes
    # subnormals would read the smallest of them as zero. (Zero wraps around.)
    below_one = bits - np.uint32(1) < np.uint32(((127 - mass_bits) << 23) - 1)
    _refuse_first(
        below_one | (counts != scaled), Code.VALUE_DYADIC, f"a multiple of 2**-{mass_bits}", bits
    )
    total = int(counts.sum(dtype=np.uint64))
    if total != 1 << mass_bits:
        raise ProtocolError(Code.MASS_WRONG, "q", 1 << mass_bits, total)
    return counts


def _refuse_first(
    wrong: NDArray[np.bool_], code: Code, wanted: str, bits: NDArray[np.uint32]
) -> None:
    if bool(wrong.any()):
        place = int(np.argmax(wrong))
        raise ProtocolError(code, f"q[{place}]", wanted, f"bits 0x{int(bits[place]):08x}")
