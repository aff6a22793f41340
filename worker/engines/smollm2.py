"""Draft engine: the first layers of SmolLM2 and a fitted low-rank read-out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pp1.models import readout, smollm2
from pp1.models.cache import Progress, no_progress
from pp1.models.sequence import CachedSequence
from pp1.models.sessions import CommittedTokens, SessionTable
from proto_v2.errors import Code, ProtocolError
from worker.engine import DraftIdentity


@dataclass(slots=True)
class _Session:
    committed: CommittedTokens
    sequence: CachedSequence


class SmolLM2Draft:
    """A ``DraftEngine`` adapted to SmolLM2-135M-Instruct.

    Positions of drafted tokens stay in the KV cache, so a chain costs one pass
    a token and an accepted draft is not computed again; what was rejected is
    truncated when the tokens no longer match.
    """

    def __init__(
        self,
        path: str | None = None,
        layers: int = readout.LAYERS,
        rank: int = readout.RANK,
        cache: str | None = None,
        progress: Progress = no_progress,
    ) -> None:
        root = Path(cache) if cache else None
        recipe = readout.Recipe.of(smollm2.checkpoint_of(path), layers, rank)
        self._model = smollm2.load(path, cache=root, progress=progress)
        self._readout = readout.load(self._model, recipe, cache=root, progress=progress)
        self._sessions: SessionTable[_Session] = SessionTable()

    def identity(self) -> DraftIdentity:
        return DraftIdentity(
            checkpoint=self._readout.recipe.checkpoint(),
            native=False,
            target_checkpoint=self._model.checkpoint,
            processors=smollm2.PROCESSORS,
            vocabulary=self._model.vocabulary,
        )

    def open(self, session: bytes, prefix: Sequence[int]) -> None:
        shape = self._model.llama.shape
        committed = CommittedTokens(
            prefix, self._model.vocabulary.legal_size, shape.context_tokens_max
        )
        sequence = CachedSequence(shape, self._readout.recipe.layers)
        self._sessions.add(session, _Session(committed, sequence))

    def extend(self, session: bytes, tokens: Sequence[int]) -> None:
        self._sessions.get(session).committed.extend(tokens)

    def rollback(self, session: bytes, length: int) -> None:
        self._sessions.get(session).committed.rollback(length)

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        if not temperature > 0.0:
            raise ProtocolError(Code.TEMPERATURE_RANGE, "temperature", "above zero", temperature)
        state = self._sessions.get(session)
        segment = state.sequence.segment(state.committed.with_chain(chain), rows=1)
        hidden = self._model.llama.hidden([segment], self._readout.recipe.layers)[0]
        return softmax(self._readout.logits(hidden[-1:])[0], temperature)

    def close(self, session: bytes) -> None:
        self._sessions.discard(session)


def softmax(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """float64 ``[V]``, summing to one: softmax of ``logits / temperature``."""
    weights = logits.astype(np.float64)
    weights -= weights.max()
    weights /= temperature
    np.exp(weights, out=weights)
    weights /= weights.sum()
    return weights
