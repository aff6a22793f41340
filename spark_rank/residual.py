"""Integer target law and residual of ``standard-int48-v1``.

p-hat is the FP64 softmax of the processed logits, rounded down to counts of
total 2**48 with the deficit given to the argmax. It is the one target law:
acceptance, correction, bonus and target-only tokens all come from it. Draft
counts are shifted to the same total, so ratio and residual are integer
arithmetic and independent of the order of summation; contiguous vocabulary
shards give the same token as one rank. (Leviathan et al., 2023, algorithm 1;
seed 000, "Sparse support and vocabulary-sharded TP2"; specs/01.)
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import Categorical
from proto_v2.errors import Code, ProtocolError


def quantise_target(
    logits: NDArray[np.float32], *, legal_size: int, target_bits: int = limits.TARGET_BITS
) -> NDArray[np.int64]:
    """Counts of the target law: ``n_i = floor(2**target_bits * p_i)``, deficit to the argmax.

    Args:
        logits: float32 ``[V]``, processed; -inf masks. Ids from ``legal_size``
            on are padding and get zero, whatever their logits.

    Returns:
        int64 ``[V]``, sum exactly ``2**target_bits``, exactly 0 at masked ids.

    Raises:
        ProtocolError: LOGITS_INVALID for NaN, +inf, or nothing but -inf.
    """
    values = logits[:legal_size].astype(np.float64)
    peak = float(values.max()) if values.size else float("-inf")
    if not np.isfinite(peak):
        raise ProtocolError(
            Code.LOGITS_INVALID, "logits", "a finite maximum, no NaN", f"maximum {peak}"
        )
    weights = np.exp(values - peak)
    probabilities = weights / weights.sum()
    counts = np.zeros(logits.size, dtype=np.int64)
    legal = counts[:legal_size]
    legal[:] = np.floor(probabilities * float(1 << target_bits))
    # argmax of the logits, not of the counts: ties go to the lowest id either way,
    # and the deficit may be negative by rounding of the sum, never below -n_max.
    best = int(np.argmax(values))
    legal[best] += (1 << target_bits) - int(legal.sum())
    if legal[best] < 0:
        raise ProtocolError(Code.LOGITS_INVALID, "logits", "a normalisable row", "rounding loss")
    return counts


def draft_counts(row: Categorical, token: int, target_bits: int = limits.TARGET_BITS) -> int:
    """The draft's count of one token, at the target's total mass."""
    return row.count_of(token) << (target_bits - row.mass_bits)


def residual_counts(
    target: NDArray[np.int64],
    row: Categorical,
    target_bits: int = limits.TARGET_BITS,
    *,
    start: int = 0,
) -> NDArray[np.int64]:
    """``max(n - d, 0)`` over every id, also those outside a sparse support.

    Args:
        target: int64 ``[V]``; or one contiguous shard of it, whose first id is ``start``.
        row: the whole categorical that drew the rejected token.

    Returns:
        int64, as long as ``target``.
    """
    shift = target_bits - row.mass_bits
    stop = start + target.size
    assert 0 <= start <= stop <= row.vocabulary_size
    if row.ids is None:
        return np.maximum(target - (row.counts[start:stop] << shift), 0)
    first, last = np.searchsorted(row.ids, (start, stop))
    ids = row.ids[first:last] - start
    counts = target.copy()
    counts[ids] = np.maximum(counts[ids] - (row.counts[first:last] << shift), 0)
    return counts


def pick(counts: NDArray[np.int64], ticket: int) -> int:
    """The first id whose cumulative count is strictly greater than ``ticket``."""
    token = int(np.searchsorted(np.cumsum(counts), ticket, side="right"))
    assert token < counts.size, "a ticket is below the total of the counts"
    return token


def pick_sharded(shards: Sequence[NDArray[np.int64]], ticket: int) -> int:
    """``pick`` where each rank holds one contiguous shard of the vocabulary.

    The shard is chosen by its mass and the token within it, both from the one
    ticket; a shard without mass cannot be chosen. Equal to ``pick`` of the
    concatenation, token for token.
    """
    start = 0
    for shard in shards:
        mass = int(shard.sum())
        if ticket < mass:
            return start + pick(shard, ticket)
        ticket -= mass
        start += shard.size
    raise AssertionError("a ticket is below the total of the shards")
