"""Draft engine over the exact Markov test law."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pp1.models.markov import CONTEXT_TOKENS_MAX, PROCESSORS, VOCABULARY_SIZE, MarkovLaw
from pp1.models.sessions import CommittedTokens, SessionTable
from worker.engine import DraftIdentity


class MarkovDraft:
    """A ``DraftEngine`` whose q is known exactly; the temperature is ignored."""

    def __init__(self, vocabulary_size: int = VOCABULARY_SIZE, seed: int = 0) -> None:
        self.law = MarkovLaw(vocabulary_size, seed)
        self._sessions: SessionTable[CommittedTokens] = SessionTable()

    def identity(self) -> DraftIdentity:
        return DraftIdentity(
            checkpoint=self.law.draft_checkpoint(),
            native=True,
            target_checkpoint=self.law.target_checkpoint(),
            processors=PROCESSORS,
            vocabulary=self.law.vocabulary(),
        )

    def open(self, session: bytes, prefix: Sequence[int]) -> None:
        self._sessions.add(
            session, CommittedTokens(prefix, self.law.vocabulary_size, CONTEXT_TOKENS_MAX)
        )

    def extend(self, session: bytes, tokens: Sequence[int]) -> None:
        self._sessions.get(session).extend(tokens)

    def rollback(self, session: bytes, length: int) -> None:
        self._sessions.get(session).rollback(length)

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        return self.law.draft_weights(self._sessions.get(session).with_chain(chain))

    def close(self, session: bytes) -> None:
        self._sessions.discard(session)
