"""A Llama forward pass in NumPy: RMSNorm, rotary, grouped-query attention, SwiGLU.

Weights are float32 and may be memory-mapped read-only, so that processes share
one copy. Matrices are stored ``[in, out]``: a row vector times such a matrix is
the fastest of the layouts in OpenBLAS for one to a few dozen rows.

Several segments (positions of several sessions) go through the matrix products
together, which reads the weights once for all of them; attention is per
segment. Rotary pairs are interleaved, ``(x[2i], x[2i+1])``, as GGUF stores Llama
weights, not split in halves as in the Hugging Face layout.

Sources: Touvron et al. 2023 (Llama), Su et al. 2021 (rotary), Ainslie et al.
2023 (grouped queries), Shazeer 2020 (SwiGLU), Press and Wolf 2017 (tied
embeddings).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proto_v2.errors import Code, ProtocolError

F32 = NDArray[np.float32]

_PREFILL_ROWS = 256
_FIRST_CAPACITY = 128


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Hyper-parameters; widths in elements, ``head_width`` even."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary_size: int
    context_tokens_max: int
    rope_base: float
    norm_epsilon: float

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Elements of all keys, or all values, of one position."""
        return self.kv_heads * self.head_width


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One block: ``qkv [width, width + 2 kv_width]``, ``gate_up [width, 2 feed_forward]``."""

    attention_norm: F32
    qkv: F32
    attention_out: F32
    feed_forward_norm: F32
    gate_up: F32
    down: F32


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights; ``head [width, vocabulary]`` is also the embedding, one column per id."""

    layers: tuple[LayerWeights, ...]
    output_norm: F32
    head: F32


class KvCache:
    """Keys and values of the first ``length`` positions of one sequence.

    Memory doubles when full, so appending is amortised; ``truncate`` only moves
    the end. Arrays are ``[layers, kv_heads, capacity, head_width]`` float32.
    """

    __slots__ = ("_capacity_max", "keys", "length", "values")

    def __init__(self, shape: LlamaShape, layers: int) -> None:
        self._capacity_max = shape.context_tokens_max
        capacity = min(_FIRST_CAPACITY, self._capacity_max)
        self.keys = np.empty((layers, shape.kv_heads, capacity, shape.head_width), np.float32)
        self.values = np.empty_like(self.keys)
        self.length = 0

    def reserve(self, rows: int) -> None:
        """Make room for ``rows`` more positions. Raises PREFIX_RANGE past the context."""
        needed = self.length + rows
        if needed > self._capacity_max:
            raise ProtocolError(
                Code.PREFIX_RANGE, "tokens", f"a context of {self._capacity_max}", needed
            )
        capacity = self.keys.shape[2]
        if needed <= capacity:
            return
        while capacity < needed:
            capacity *= 2
        self.keys = self._grown(self.keys, min(capacity, self._capacity_max))
        self.values = self._grown(self.values, min(capacity, self._capacity_max))

    def truncate(self, length: int) -> None:
        """Forget every position from ``length`` on."""
        self.length = min(self.length, length)

    def _grown(self, old: F32, capacity: int) -> F32:
        new = np.empty((*old.shape[:2], capacity, old.shape[3]), np.float32)
        new[:, :, : self.length] = old[:, :, : self.length]
        return new


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens to append to one sequence, whose earlier positions the cache holds."""

    tokens: Sequence[int]
    cache: KvCache


class Llama:
    """The forward pass over given weights; holds no per-sequence state."""

    def __init__(self, shape: LlamaShape, weights: LlamaWeights) -> None:
        self.shape = shape
        self.weights = weights
        half = shape.head_width // 2
        frequencies = shape.rope_base ** (-np.arange(half, dtype=np.float64) / half)
        angles = np.arange(shape.context_tokens_max, dtype=np.float64)[:, None] * frequencies
        self._cos = np.cos(angles).astype(np.float32)
        self._sin = np.sin(angles).astype(np.float32)

    def hidden(self, segments: Sequence[Segment], layers: int) -> list[F32]:
        """Append the segments to their caches and return the residual stream.

        Runs the first ``layers`` blocks. Segments must have distinct caches
        made for at least ``layers`` blocks.

        Returns:
            float32 ``[len(tokens), width]`` per segment, before the output norm.

        Raises:
            ProtocolError: PREFIX_RANGE when a context is full.
        """
        rows = sum(len(segment.tokens) for segment in segments)
        if rows <= _PREFILL_ROWS:
            return self._hidden(segments, layers)
        results: list[F32] = []  # a long prefill: bounded memory, one segment at a time
        for segment in segments:
            parts = [
                self._hidden(
                    [Segment(segment.tokens[i : i + _PREFILL_ROWS], segment.cache)], layers
                )
                for i in range(0, len(segment.tokens), _PREFILL_ROWS)
            ]
            results.append(np.concatenate([part[0] for part in parts]))
        return results

    def logits(self, hidden: F32) -> F32:
        """Unscaled next-token logits ``[rows, vocabulary]`` of final residual rows."""
        result: F32 = self.final_state(hidden) @ self.weights.head
        return result

    def final_state(self, hidden: F32) -> F32:
        """The normalised state ``[rows, width]`` that the head is applied to."""
        return self._norm(hidden, self.weights.output_norm)

    def _hidden(self, segments: Sequence[Segment], layers: int) -> list[F32]:
        bounds = np.cumsum([0] + [len(segment.tokens) for segment in segments]).tolist()
        spans = list(zip(segments, bounds[:-1], bounds[1:], strict=True))
        for segment in segments:
            segment.cache.reserve(len(segment.tokens))
        ids = [token for segment in segments for token in segment.tokens]
        x = np.ascontiguousarray(self.weights.head[:, ids].T)
        positions = np.concatenate(
            [np.arange(s.cache.length, s.cache.length + end - start) for s, start, end in spans]
        )
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        with np.errstate(over="ignore"):  # exp in SiLU may reach inf, which is right there
            for index, layer in enumerate(self.weights.layers[:layers]):
                x += self._attention(index, layer, x, spans, cos, sin)
                x += self._feed_forward(layer, x)
        for segment, start, end in spans:
            segment.cache.length += end - start
        return [x[start:end] for _, start, end in spans]

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: F32,
        spans: Sequence[tuple[Segment, int, int]],
        cos: F32,
        sin: F32,
    ) -> F32:
        shape = self.shape
        qkv = self._norm(x, layer.attention_norm) @ layer.qkv
        rows = len(x)
        unturned = qkv[:, : shape.width + shape.kv_width].reshape(rows, -1, shape.head_width)
        turned = _rotate(unturned, cos, sin)
        values = qkv[:, shape.width + shape.kv_width :].reshape(rows, -1, shape.head_width)
        mixed = np.empty((rows, shape.width), np.float32)
        for segment, start, end in spans:
            cache = segment.cache
            total = cache.length + end - start
            keys = cache.keys[index, :, :total]
            held = cache.values[index, :, :total]
            keys[:, cache.length :] = turned[start:end, shape.heads :].transpose(1, 0, 2)
            held[:, cache.length :] = values[start:end].transpose(1, 0, 2)
            mixed[start:end] = self._attend(turned[start:end, : shape.heads], keys, held)
        result: F32 = mixed @ layer.attention_out
        return result

    def _attend(self, queries: F32, keys: F32, values: F32) -> F32:
        shape = self.shape
        rows, total = len(queries), keys.shape[1]
        group = shape.heads // shape.kv_heads
        grouped: F32 = queries.reshape(rows, shape.kv_heads, group, shape.head_width)
        grouped = grouped.transpose(1, 0, 2, 3).reshape(shape.kv_heads, rows * group, -1)
        scores = grouped @ keys.transpose(0, 2, 1)
        scores *= np.float32(shape.head_width**-0.5)
        if rows > 1:
            later = np.triu(np.ones((rows, rows), dtype=bool), 1)
            recent = scores.reshape(shape.kv_heads, rows, group, total)[..., total - rows :]
            np.copyto(recent, -np.inf, where=later[None, :, None, :])
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed: F32 = np.matmul(scores, values)
        apart = mixed.reshape(shape.kv_heads, rows, group, shape.head_width)
        result: F32 = apart.transpose(1, 0, 2, 3).reshape(rows, shape.width)
        return result

    def _feed_forward(self, layer: LayerWeights, x: F32) -> F32:
        both = self._norm(x, layer.feed_forward_norm) @ layer.gate_up
        gate, up = both[:, : self.shape.feed_forward], both[:, self.shape.feed_forward :]
        gate = gate / (np.float32(1) + np.exp(-gate))  # SiLU
        result: F32 = (gate * up) @ layer.down
        return result

    def _norm(self, x: F32, gain: F32) -> F32:
        return rms_norm(x, self.shape.norm_epsilon) * gain


def rms_norm(x: F32, epsilon: float) -> F32:
    """Each row of ``x`` over its root mean square (Zhang and Sennrich 2019), no gain."""
    mean = np.mean(np.square(x), axis=-1, keepdims=True)
    result: F32 = x / np.sqrt(mean + np.float32(epsilon))
    return result


def _rotate(x: F32, cos: F32, sin: F32) -> F32:
    even, odd = x[..., 0::2], x[..., 1::2]
    result = np.empty_like(x)
    result[..., 0::2] = even * cos - odd * sin
    result[..., 1::2] = even * sin + odd * cos
    return result
