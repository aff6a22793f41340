"""``dyadic24-standard-v1``: q as integer counts of total mass 2**24.

A draft distribution is rounded once, here, to counts; the token is drawn from
those counts and those counts travel. Nothing downstream ever normalises again,
so sender and receiver mean the same categorical by construction. How well the
counts approximate the draft changes acceptance only, never the output law.

``mass_bits`` is a parameter so that tests can enumerate every ticket of a
small mass through this same code. (Seed 000, "Distribution contract"; specs/01.)
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import limits
from .errors import Code, ProtocolError

SEMANTICS: Final = "dyadic24-standard-v1"
NORMALISATION_TOLERANCE: Final = 1e-9


def semantics_id(mass_bits: int) -> str:
    """The name of the semantics of a mass; the wire only ever offers 24."""
    return f"dyadic{mass_bits}-standard-v1"


assert semantics_id(limits.MASS_BITS) == SEMANTICS


@dataclass(frozen=True, slots=True, eq=False)
class Categorical:
    """Counts that sum to ``2**mass_bits``, dense or on an explicit support.

    ``ids`` is None for dense counts ``int64 [vocabulary_size]``; otherwise
    ``int32 [n]``, strictly ascending, and ``counts`` are ``int64 [n]``, all
    positive. Both arrays are read only.
    """

    vocabulary_size: int
    ids: NDArray[np.int32] | None
    counts: NDArray[np.int64]
    mass_bits: int = limits.MASS_BITS

    def __post_init__(self) -> None:
        self.counts.flags.writeable = False
        if self.ids is not None:
            self.ids.flags.writeable = False

    def count_of(self, token: int) -> int:
        """The count of a token, 0 outside the support."""
        if not 0 <= token < self.vocabulary_size:
            return 0
        if self.ids is None:
            return int(self.counts[token])
        place = int(np.searchsorted(self.ids, token))
        if place == len(self.ids) or self.ids[place] != token:
            return 0
        return int(self.counts[place])

    def token_at(self, ticket: int) -> int:
        """The first id whose cumulative count is strictly greater than the ticket."""
        assert 0 <= ticket < 1 << self.mass_bits, "a ticket is below the total mass"
        place = int(np.searchsorted(np.cumsum(self.counts), ticket, side="right"))
        return place if self.ids is None else int(self.ids[place])

    def dense(self) -> NDArray[np.int64]:
        """Counts of every id, ``int64 [vocabulary_size]``; read only where they are shared."""
        if self.ids is None:
            return self.counts
        counts = np.zeros(self.vocabulary_size, dtype=np.int64)
        counts[self.ids] = self.counts
        return counts


def _check_weights(weights: NDArray[np.float64]) -> None:
    """Refuse anything but finite, non-negative weights of total one."""
    if weights.ndim != 1 or weights.size == 0 or weights.dtype != np.float64:
        raise ProtocolError(
            Code.WEIGHTS_INVALID, "weights", "float64 [n]", f"{weights.dtype} {weights.shape}"
        )
    # NaN fails the comparison. The upper end keeps the sum from overflowing.
    low, high = float(weights.min()), float(weights.max())
    if not 0.0 <= low <= high <= 1.0 + NORMALISATION_TOLERANCE:
        raise ProtocolError(Code.WEIGHTS_INVALID, "weights", "all in 0..1", f"{low}..{high}")
    total = float(weights.sum())
    if not abs(total - 1.0) <= NORMALISATION_TOLERANCE:
        raise ProtocolError(Code.WEIGHTS_INVALID, "weights", "a total of one", total)


def allocate(q: NDArray[np.float64], mass_bits: int = limits.MASS_BITS) -> NDArray[np.int64]:
    """Counts of total ``2**mass_bits``: floors, then one more for the largest remainders.

    Ties go to the lowest index. ``q * 2**mass_bits`` and the remainders are
    exact in FP64, so the counts depend on the bits of q only. The tickets left
    over must lie between 0 and the number of positive remainders: a row that is
    off by more would give mass to ids of probability zero, and is refused, not
    clipped.

    Args:
        q: float64 ``[n]``, normalised within 1e-9.

    Raises:
        ProtocolError: WEIGHTS_INVALID, ALLOCATION_INCONSISTENT.
    """
    _check_weights(q)
    scaled = q * float(1 << mass_bits)
    floors = np.floor(scaled)
    counts = floors.astype(np.int64)
    left = (1 << mass_bits) - int(counts.sum())
    if left == 0:
        return counts
    remainders = scaled - floors
    positive = int(np.count_nonzero(remainders))
    if not 0 <= left <= positive:
        raise ProtocolError(
            Code.ALLOCATION_INCONSISTENT, "remaining", f"0..{positive} tickets", left
        )
    counts += _largest(remainders, left)
    return counts


def _largest(values: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
    """Where the ``count`` largest values are; among equals the lowest indices."""
    place = values.size - count
    threshold = np.partition(values, place)[place]
    chosen = np.asarray(values > threshold)
    # Few values sit on the threshold, so that only they are looked up by index.
    level = np.flatnonzero(values == threshold)
    chosen[level[: count - int(np.count_nonzero(chosen))]] = True
    return chosen


def full_support(weights: NDArray[np.float64], mass_bits: int = limits.MASS_BITS) -> Categorical:
    """Counts over the whole vocabulary from normalised draft weights."""
    return Categorical(weights.size, None, allocate(weights, mass_bits), mass_bits)


def top_k(weights: NDArray[np.float64], k: int, mass_bits: int = limits.MASS_BITS) -> Categorical:
    """Counts on the ``k`` ids of largest weight (ties lowest id), normalised within them.

    Ids of weight zero never enter the support; counts of zero are dropped. So
    the support may be smaller than ``k``.
    """
    _check_weights(weights)
    assert k >= 1
    wide = int(np.count_nonzero(weights)) > k
    support = np.flatnonzero(_largest(weights, k) if wide else weights)
    inside = weights[support]
    counts = allocate(inside / inside.sum(), mass_bits)
    kept = np.flatnonzero(counts)
    return Categorical(weights.size, support[kept].astype(np.int32), counts[kept], mass_bits)
