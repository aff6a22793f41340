"""Drafting by prompt lookup: what followed the last tokens when they came before.

For text that repeats itself (code edits, quotations, summaries) the committed
text is its own best drafter, and no model has to run (Saxena 2023, "prompt
lookup decoding"; ``ngram`` in vLLM). It knows nothing of the target but the
vocabulary, so it serves any target.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp1.models.checkpoints import (
    NGRAM_MAX,
    ngram_checkpoint,
    target_checkpoint,
    target_processors,
    target_vocabulary,
)
from pp1.models.sessions import CommittedTokens, SessionTable
from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from proto_v2.vocabulary import Vocabulary
from worker.engine import DraftIdentity


class NgramDraft:
    """A ``DraftEngine`` over the committed text alone.

    The longest suffix, of at most ``ngram_max`` tokens, that occurred before is
    looked up in the committed tokens and the chain. When there is one, q is
    the smoothed law of its continuations::

        q(v) = (count of v after the suffix + u(v)) / (occurrences + 1)

    where ``u`` is the unigram law of the committed tokens and the chain; when
    there is none, q is ``u``. So q is a real categorical at every position,
    zero outside the text so far, and never a stand-in for "no draft". The
    temperature is ignored: counts carry no logits that it could scale.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        target_checkpoint: str,
        processors: str,
        ngram_max: int = NGRAM_MAX,
    ) -> None:
        if not 1 <= ngram_max <= 16:
            raise ProtocolError(Code.CONFIG_INVALID, "ngram_max", "1..16", ngram_max)
        self._vocabulary = vocabulary
        self._target_checkpoint = target_checkpoint
        self._processors = processors
        self._ngram_max = ngram_max
        self._sessions: SessionTable[CommittedTokens] = SessionTable()

    def identity(self) -> DraftIdentity:
        return DraftIdentity(
            checkpoint=ngram_checkpoint(self._ngram_max),
            native=False,
            target_checkpoint=self._target_checkpoint,
            processors=self._processors,
            vocabulary=self._vocabulary,
        )

    def open(self, session: bytes, prefix: Sequence[int]) -> None:
        tokens = CommittedTokens(prefix, self._vocabulary.legal_size, limits.PREFIX_TOKENS_MAX)
        self._sessions.add(session, tokens)

    def extend(self, session: bytes, tokens: Sequence[int]) -> None:
        self._sessions.get(session).extend(tokens)

    def rollback(self, session: bytes, length: int) -> None:
        self._sessions.get(session).rollback(length)

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        text = np.array(self._sessions.get(session).with_chain(chain), dtype=np.int64)
        size = self._vocabulary.size
        unigram = np.bincount(text, minlength=size) / len(text)
        followers = _followers(text, self._ngram_max)
        weights: NDArray[np.float64] = unigram
        if len(followers):
            counts = np.bincount(followers, minlength=size)
            weights = (counts + unigram) / (len(followers) + 1)
        return weights

    def close(self, session: bytes) -> None:
        self._sessions.discard(session)


def for_target(target: str = "smollm2", ngram_max: int = NGRAM_MAX, **options: Any) -> NgramDraft:
    """Prompt lookup for a built-in target, named with that target's options."""
    return NgramDraft(
        target_vocabulary(target, options),
        target_checkpoint(target, options),
        target_processors(target),
        ngram_max,
    )


def _followers(text: NDArray[np.int64], ngram_max: int) -> NDArray[np.int64]:
    """The tokens that followed earlier occurrences of the longest repeated suffix."""
    ends = np.flatnonzero(text[:-1] == text[-1])  # where an earlier occurrence ends
    for length in range(2, ngram_max + 1):
        inside = ends[ends >= length - 1]
        if not len(inside):
            break
        longer = inside[text[inside - length + 1] == text[-length]]
        if not len(longer):
            break
        ends = longer
    return text[ends + 1]
