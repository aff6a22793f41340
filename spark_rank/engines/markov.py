"""Target engine over the exact Markov test law."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pp1.models.markov import CONTEXT_TOKENS_MAX, PROCESSORS, VOCABULARY_SIZE, MarkovLaw
from pp1.models.sessions import SessionTable, VerifiedTokens
from spark_rank.engine import TargetIdentity, VerifyItem


@dataclass(slots=True)
class _Session:
    verified: VerifiedTokens
    greedy: bool


class MarkovTarget:
    """A ``TargetEngine`` whose p is known exactly.

    The temperature is ignored, but 0.0 is greedy: one-hot at the largest
    weight, lowest id on a tie. ``stop_tokens`` are ids of the law that end a
    text; none by default.
    """

    def __init__(
        self,
        vocabulary_size: int = VOCABULARY_SIZE,
        seed: int = 0,
        stop_tokens: Sequence[int] = (),
    ) -> None:
        self.law = MarkovLaw(vocabulary_size, seed)
        self._stop_tokens = frozenset(stop_tokens)
        self._sessions: SessionTable[_Session] = SessionTable()

    def identity(self) -> TargetIdentity:
        return TargetIdentity(
            checkpoint=self.law.target_checkpoint(),
            processors=PROCESSORS,
            vocabulary=self.law.vocabulary(),
            context_tokens_max=CONTEXT_TOKENS_MAX,
            stop_tokens=self._stop_tokens,
        )

    def open(self, session: bytes, prefix: Sequence[int], temperature: float) -> None:
        verified = VerifiedTokens(prefix, self.law.vocabulary_size, CONTEXT_TOKENS_MAX)
        self._sessions.add(session, _Session(verified, greedy=temperature == 0.0))

    def verify(self, items: Sequence[VerifyItem]) -> list[NDArray[np.float32] | None]:
        results: list[NDArray[np.float32] | None] = []
        for item in items:
            state = self._sessions.get(item.session)
            tokens = state.verified.begin(item.drafts)
            results.append(
                self._logits(tokens, len(item.drafts), state.greedy) if item.owned else None
            )
        return results

    def _logits(self, tokens: list[int], drafts: int, greedy: bool) -> NDArray[np.float32]:
        committed = len(tokens) - drafts
        rows = [self.law.target_logits(tokens[: committed + i]) for i in range(drafts + 1)]
        logits = np.stack(rows)
        if greedy:
            best = logits.argmax(axis=1)
            logits.fill(-np.inf)
            logits[np.arange(drafts + 1), best] = 0.0
        return logits

    def commit(self, session: bytes, tokens: Sequence[int]) -> None:
        self._sessions.get(session).verified.commit(tokens)

    def rollback(self, session: bytes) -> None:
        self._sessions.get(session).verified.rollback()

    def close(self, session: bytes) -> None:
        self._sessions.discard(session)
