"""The exact test law: known fractions, differing supports, deterministic."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from pp1.models.markov import MarkovLaw
from proto_v2.errors import Code, ProtocolError


@pytest.mark.parametrize("size", [4, 5, 16, 64])
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_rows_are_laws_with_differing_supports(size: int, seed: int) -> None:
    law = MarkovLaw(size, seed)
    for last in range(size):
        target, draft = law.target_law([last]), law.draft_law([last])
        assert sum(target) == sum(draft) == 1
        assert min(target) == min(draft) == 0
        only_target = [v for v in range(size) if target[v] and not draft[v]]
        only_draft = [v for v in range(size) if draft[v] and not target[v]]
        assert only_target and only_draft
        overlap = sum(min(p, q) for p, q in zip(target, draft, strict=True))
        assert Fraction(1, 4) < overlap < 1


def test_law_depends_on_the_last_token_only_and_on_the_seed() -> None:
    law = MarkovLaw(16, 3)
    assert law.target_weights([1, 2, 5]) == law.target_weights([5])
    assert law.target_weights([4]) != law.target_weights([5])
    assert law.target_weights([5]) != MarkovLaw(16, 4).target_weights([5])


def test_weights_are_pinned() -> None:
    """A changed law would silently change every test that relies on it."""
    law = MarkovLaw(16, 7)
    rows = repr([(law.target_weights([v]), law.draft_counts([v])) for v in range(16)])
    assert hashlib.blake2b(rows.encode(), digest_size=8).hexdigest() == "0c5f6c47dfa6d4b2"


def test_float_faces_agree_with_the_fractions() -> None:
    law = MarkovLaw(32, 9)
    for last in range(32):
        logits = law.target_logits([last])
        assert logits.dtype == np.float32
        softmax = np.exp(logits.astype(np.float64))
        softmax /= softmax.sum()
        exact = np.array([float(p) for p in law.target_law([last])])
        assert np.abs(softmax - exact).max() < 1e-6
        assert ((softmax == 0) == (exact == 0)).all()
        weights = law.draft_weights([last])
        assert weights.dtype == np.float64
        assert abs(weights.sum() - 1) < 1e-12
        assert np.allclose(weights, [float(q) for q in law.draft_law([last])], rtol=1e-15)


@pytest.mark.parametrize(
    ("size", "seed", "field"),
    [
        (3, 0, "vocabulary_size"),
        (65, 0, "vocabulary_size"),
        (16, -1, "seed"),
        (16, 1 << 64, "seed"),
    ],
)
def test_sizes_out_of_range_are_refused(size: int, seed: int, field: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        MarkovLaw(size, seed)
    assert caught.value.code is Code.CONFIG_INVALID and caught.value.field == field


def test_empty_and_illegal_contexts_are_refused() -> None:
    for context in ([], [16], [-1]):
        with pytest.raises(ProtocolError) as caught:
            MarkovLaw(16, 0).target_weights(context)
        assert caught.value.code is Code.PROMPT_TOKEN
