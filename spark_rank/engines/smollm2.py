"""Target engine: SmolLM2-135M-Instruct on the CPU, replicated on each rank."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pp1.models import smollm2
from pp1.models.cache import Progress, no_progress
from pp1.models.sequence import CachedSequence
from pp1.models.sessions import SessionTable, VerifiedTokens
from spark_rank.engine import TargetIdentity, VerifyItem


@dataclass(slots=True)
class _Session:
    verified: VerifiedTokens
    sequence: CachedSequence
    temperature: float


class SmolLM2Target:
    """A ``TargetEngine`` with the whole model in each rank.

    Ranks do not compute together, so an item that this rank does not own costs
    nothing and returns None; its tokens are kept, and its KV is built should
    this rank come to own it. All owned items of a call share one forward pass.
    """

    def __init__(
        self,
        path: str | None = None,
        cache: str | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._model = smollm2.load(path, cache=Path(cache) if cache else None, progress=progress)
        self._stop_tokens = self._model.stop_tokens
        self._sessions: SessionTable[_Session] = SessionTable()

    def identity(self) -> TargetIdentity:
        return TargetIdentity(
            checkpoint=self._model.checkpoint,
            processors=smollm2.PROCESSORS,
            vocabulary=self._model.vocabulary,
            context_tokens_max=self._model.llama.shape.context_tokens_max,
            stop_tokens=self._stop_tokens,
        )

    def open(self, session: bytes, prefix: Sequence[int], temperature: float) -> None:
        shape = self._model.llama.shape
        verified = VerifiedTokens(
            prefix, self._model.vocabulary.legal_size, shape.context_tokens_max
        )
        sequence = CachedSequence(shape, shape.layers)
        self._sessions.add(session, _Session(verified, sequence, temperature))

    def verify(self, items: Sequence[VerifyItem]) -> list[NDArray[np.float32] | None]:
        llama = self._model.llama
        owned, segments = [], []
        for index, item in enumerate(items):
            state = self._sessions.get(item.session)
            tokens = state.verified.begin(item.drafts)
            if item.owned:
                segments.append(state.sequence.segment(tokens, len(item.drafts) + 1))
                owned.append((index, state.temperature))
        results: list[NDArray[np.float32] | None] = [None] * len(items)
        if not owned:
            return results
        hidden = llama.hidden(segments, llama.shape.layers)
        tails = [
            rows[-len(items[i].drafts) - 1 :] for (i, _), rows in zip(owned, hidden, strict=True)
        ]
        logits = llama.logits(np.concatenate(tails))
        start = 0
        for (index, temperature), tail in zip(owned, tails, strict=True):
            rows = logits[start : start + len(tail)]
            results[index] = apply_temperature(rows, temperature)
            start += len(tail)
        return results

    def commit(self, session: bytes, tokens: Sequence[int]) -> None:
        self._sessions.get(session).verified.commit(tokens)

    def rollback(self, session: bytes) -> None:
        self._sessions.get(session).verified.rollback()

    def close(self, session: bytes) -> None:
        self._sessions.discard(session)


def apply_temperature(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
    """Processed logits ``[rows, V]``: divided by the temperature, or one-hot at 0.0.

    Greedy is a law like any other: zero at the largest logit, the lowest id on
    a tie, and -inf elsewhere.
    """
    if temperature > 0.0:
        return logits / np.float32(temperature)
    processed = np.full_like(logits, -np.inf)
    processed[np.arange(len(logits)), logits.argmax(axis=1)] = 0.0
    return processed
