"""Markov engines that take their time, so that a signal lands inside a round."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from spark_rank.engine import VerifyItem
from spark_rank.engines.markov import MarkovTarget
from worker.engines.markov import MarkovDraft


class SlowDraft(MarkovDraft):
    """A Markov drafter that sleeps ``delay_ms`` for every position."""

    def __init__(self, vocabulary_size: int = 16, seed: int = 0, delay_ms: int = 0) -> None:
        super().__init__(vocabulary_size, seed)
        self._delay_s = delay_ms / 1000

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        time.sleep(self._delay_s)
        return super().next_weights(session, chain, temperature)


class SlowTarget(MarkovTarget):
    """A Markov target that sleeps ``delay_ms`` for every evaluation."""

    def __init__(self, vocabulary_size: int = 16, seed: int = 0, delay_ms: int = 0) -> None:
        super().__init__(vocabulary_size, seed)
        self._delay_s = delay_ms / 1000

    def verify(self, items: Sequence[VerifyItem]) -> list[NDArray[np.float32] | None]:
        time.sleep(self._delay_s)
        return super().verify(items)
