"""Prompt lookup: a legal law at every position, exact against a plain count."""

from fractions import Fraction

import numpy as np
import pytest

from pp1.models import checkpoints
from proto_v2.dyadic import full_support, top_k
from proto_v2.errors import Code, ProtocolError
from proto_v2.vocabulary import Vocabulary
from worker.engines import create
from worker.engines.ngram import NgramDraft

S = b"s" * 16
VOCABULARY = Vocabulary(12, 10, bytes(32))


def expected(text: list[int], ngram_max: int, size: int) -> list[Fraction]:
    unigram = [Fraction(text.count(v), len(text)) for v in range(size)]
    for length in range(min(ngram_max, len(text) - 1), 0, -1):
        suffix = text[-length:]
        after = [
            text[i + length] for i in range(len(text) - length) if text[i : i + length] == suffix
        ]
        if after:
            return [(after.count(v) + unigram[v]) / (len(after) + 1) for v in range(size)]
    return unigram


@pytest.mark.parametrize("ngram_max", [1, 2, 4])
def test_law_is_the_plain_count(ngram_max: int) -> None:
    print("seed 20")
    random = np.random.default_rng(20)
    engine = NgramDraft(VOCABULARY, "any", "none", ngram_max)
    for index in range(200):
        text = random.integers(0, int(random.integers(1, 10)), int(random.integers(1, 30)))
        tokens = [int(token) for token in text]
        cut = int(random.integers(1, len(tokens) + 1))
        session = index.to_bytes(16, "little")
        engine.open(session, tokens[:cut])
        weights = engine.next_weights(session, tokens[cut:], 0.7)
        want = [float(f) for f in expected(tokens, ngram_max, VOCABULARY.size)]
        assert weights.dtype == np.float64 and np.allclose(weights, want, rtol=1e-12, atol=0)
        assert abs(weights.sum() - 1.0) < 1e-12
        assert full_support(weights).counts.sum() == 1 << 24
        assert top_k(weights, 2).counts.sum() == 1 << 24


def test_longest_match_wins_and_rollback_forgets() -> None:
    engine = NgramDraft(VOCABULARY, "any", "none")
    engine.open(S, [1, 2, 3, 9, 2, 4, 1])
    engine.extend(S, [2])
    assert int(engine.next_weights(S, (), 1.0).argmax()) == 3  # after "1 2", not after "2"
    engine.rollback(S, 7)
    assert int(engine.next_weights(S, (), 1.0).argmax()) == 2
    engine.close(S)
    with pytest.raises(ProtocolError) as caught:
        engine.next_weights(S, (), 1.0)
    assert caught.value.code is Code.SESSION_UNKNOWN


def test_identity_names_the_target_it_is_used_with() -> None:
    options = {"target": "markov", "vocabulary_size": 8, "seed": 5, "ngram_max": 3}
    identity = create("ngram", **options).identity()
    assert identity.checkpoint == checkpoints.draft_checkpoint("ngram", options)
    assert identity.checkpoint == "ngram-smoothed-v1/max3"
    assert identity.native is checkpoints.draft_native("ngram") is False
    assert identity.target_checkpoint == checkpoints.target_checkpoint("markov", options)
    assert identity.vocabulary == checkpoints.target_vocabulary("markov", options)
    with pytest.raises(ProtocolError):
        create("ngram", target="markov", ngram_max=0)
