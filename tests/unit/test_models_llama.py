"""The forward pass on a small random model, against a plain reference."""

import numpy as np
import pytest
from numpy.typing import NDArray

from pp1.models.llama import KvCache, LayerWeights, Llama, LlamaShape, LlamaWeights, Segment
from pp1.models.sequence import CachedSequence
from proto_v2.errors import Code, ProtocolError

SHAPE = LlamaShape(
    layers=3,
    width=24,
    heads=6,
    kv_heads=2,
    feed_forward=40,
    vocabulary_size=50,
    context_tokens_max=700,
    rope_base=10_000.0,
    norm_epsilon=1e-5,
)
TOKENS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]


def make(seed: int = 0) -> Llama:
    random = np.random.default_rng(seed)

    def draw(*dims: int) -> NDArray[np.float32]:
        return (random.standard_normal(dims) * 0.3).astype(np.float32)

    s = SHAPE
    layers = tuple(
        LayerWeights(
            attention_norm=1 + draw(s.width),
            qkv=draw(s.width, s.width + 2 * s.kv_width),
            attention_out=draw(s.width, s.width),
            feed_forward_norm=1 + draw(s.width),
            gate_up=draw(s.width, 2 * s.feed_forward),
            down=draw(s.feed_forward, s.width),
        )
        for _ in range(s.layers)
    )
    return Llama(s, LlamaWeights(layers, 1 + draw(s.width), draw(s.width, s.vocabulary_size)))


def reference(llama: Llama, tokens: list[int]) -> NDArray[np.float64]:
    """Position by position, head by head, in float64; rotary as complex numbers."""
    s, w = llama.shape, llama.weights
    hw, group = s.head_width, s.heads // s.kv_heads
    angles = s.rope_base ** (-2 * np.arange(hw // 2) / hw)

    def norm(x: NDArray[np.float64], gain: NDArray[np.float32]) -> NDArray[np.float64]:
        return np.asarray(x / np.sqrt((x * x).mean() + s.norm_epsilon) * gain)

    def turn(v: NDArray[np.float64], position: int) -> NDArray[np.float64]:
        turned = (v[0::2] + 1j * v[1::2]) * np.exp(1j * position * angles)
        return np.stack([turned.real, turned.imag], axis=1).reshape(-1)

    rows = [w.head[:, token].astype(np.float64) for token in tokens]
    for layer in w.layers:
        qkv = [norm(x, layer.attention_norm) @ layer.qkv.astype(np.float64) for x in rows]
        for i, x in enumerate(list(rows)):
            heads = []
            for h in range(s.heads):
                k0 = s.width + (h // group) * hw
                v0 = k0 + s.kv_width
                q = turn(qkv[i][h * hw : (h + 1) * hw], i)
                scores = np.array([q @ turn(qkv[j][k0 : k0 + hw], j) for j in range(i + 1)])
                attention = np.exp(scores / np.sqrt(hw))
                attention /= attention.sum()
                heads.append(sum(attention[j] * qkv[j][v0 : v0 + hw] for j in range(i + 1)))
            rows[i] = x + np.concatenate(heads) @ layer.attention_out
        for i, x in enumerate(list(rows)):
            both = norm(x, layer.feed_forward_norm) @ layer.gate_up.astype(np.float64)
            gate, up = both[: s.feed_forward], both[s.feed_forward :]
            rows[i] = x + (gate / (1 + np.exp(-gate)) * up) @ layer.down
    return np.stack([norm(x, w.output_norm) @ w.head for x in rows])


def logits_of(llama: Llama, tokens: list[int]) -> NDArray[np.float32]:
    cache = KvCache(SHAPE, SHAPE.layers)
    return llama.logits(llama.hidden([Segment(tokens, cache)], SHAPE.layers)[0])


def test_forward_agrees_with_the_reference() -> None:
    llama = make()
    assert np.abs(logits_of(llama, TOKENS) - reference(llama, TOKENS)).max() < 1e-4


def test_one_by_one_all_at_once_and_after_a_rollback_agree() -> None:
    llama = make()
    whole = logits_of(llama, TOKENS)
    cache = KvCache(SHAPE, SHAPE.layers)
    for token in TOKENS[:6]:
        llama.hidden([Segment([token], cache)], SHAPE.layers)
    llama.hidden([Segment([1, 2, 3, 4], cache)], SHAPE.layers)
    cache.truncate(6)
    rest = llama.logits(llama.hidden([Segment(TOKENS[6:], cache)], SHAPE.layers)[0])
    assert np.abs(rest - whole[6:]).max() < 1e-4


def test_segments_of_several_sessions_do_not_mix() -> None:
    llama = make()
    first, second = KvCache(SHAPE, SHAPE.layers), KvCache(SHAPE, SHAPE.layers)
    llama.hidden([Segment(TOKENS[:4], first)], SHAPE.layers)
    together = llama.hidden([Segment(TOKENS[4:], first), Segment([7, 7, 1], second)], SHAPE.layers)
    assert np.abs(llama.logits(together[0]) - logits_of(llama, TOKENS)[4:]).max() < 1e-4
    assert np.abs(llama.logits(together[1]) - logits_of(llama, [7, 7, 1])).max() < 1e-4


def test_long_prefill_is_chunked_and_memory_grows() -> None:
    llama = make()
    tokens = [(7 * i) % 50 for i in range(600)]
    cache = KvCache(SHAPE, SHAPE.layers)
    whole = llama.hidden([Segment(tokens, cache)], SHAPE.layers)[0]
    assert whole.shape == (600, SHAPE.width) and cache.length == 600
    cache.truncate(500)
    again = llama.hidden([Segment(tokens[500:], cache)], SHAPE.layers)[0]
    assert np.abs(again - whole[500:]).max() < 1e-3
    with pytest.raises(ProtocolError) as caught:
        llama.hidden([Segment([1] * 101, cache)], SHAPE.layers)
    assert caught.value.code is Code.PREFIX_RANGE
    assert cache.length == 600


def test_cached_sequence_feeds_only_what_differs() -> None:
    llama = make()
    sequence = CachedSequence(SHAPE, SHAPE.layers)

    def last(tokens: list[int], rows: int) -> tuple[int, NDArray[np.float32]]:
        segment = sequence.segment(tokens, rows)
        hidden = llama.hidden([segment], SHAPE.layers)[0][-rows:]
        return len(segment.tokens), llama.logits(hidden)

    assert last(TOKENS[:5], 1)[0] == 5
    assert last(TOKENS[:7], 3)[0] == 3  # two new ones, and the row before them
    fed, logits = last([*TOKENS[:6], 49, 48], 1)
    assert fed == 2
    assert np.abs(logits - logits_of(llama, [*TOKENS[:6], 49, 48])[-1:]).max() < 1e-4
    assert last(TOKENS[:4], 2)[0] == 2


def test_cached_sequence_survives_a_pass_that_failed() -> None:
    llama = make()
    sequence = CachedSequence(SHAPE, SHAPE.layers)
    sequence.segment(TOKENS, 1)  # handed out, but the pass never ran
    segment = sequence.segment(TOKENS, 1)
    assert list(segment.tokens) == TOKENS
    hidden = llama.hidden([segment], SHAPE.layers)[0]
    assert np.abs(llama.logits(hidden) - logits_of(llama, TOKENS)).max() < 1e-5
