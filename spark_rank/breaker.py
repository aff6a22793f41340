"""Circuit breaker: after repeated failures go target-only, then probe.

Counts rounds, not time, so that a run can be replayed. Nothing in it looks at
a drawn token: whether a round may speculate is known before anything is drawn.
"""

from enum import Enum, auto


class BreakerState(Enum):
    """CLOSED speculates, OPEN does not, PROBING lets one round try."""

    CLOSED = auto()
    OPEN = auto()
    PROBING = auto()


class Breaker:
    """Opens after ``failures_max`` failed rounds in a row, for ``rounds_open`` rounds."""

    def __init__(self, failures_max: int = 3, rounds_open: int = 16) -> None:
        assert failures_max >= 1 and rounds_open >= 1
        self.state = BreakerState.CLOSED
        self._failures_max = failures_max
        self._rounds_open = rounds_open
        self._failures = 0
        self._rounds_left = 0

    def allows(self) -> bool:
        """Whether the next round may speculate."""
        return self.state is not BreakerState.OPEN

    def round_skipped(self) -> None:
        """A round has been planned target-only because the breaker is open."""
        if self.state is BreakerState.OPEN:
            self._rounds_left -= 1
            if self._rounds_left <= 0:
                self.state = BreakerState.PROBING

    def succeeded(self) -> None:
        """A proposal was whole and both ranks used it."""
        self._failures = 0
        self.state = BreakerState.CLOSED

    def failed(self) -> None:
        """A proposal was discarded."""
        self._failures += 1
        if self.state is BreakerState.PROBING or self._failures >= self._failures_max:
            self.state = BreakerState.OPEN
            self._rounds_left = self._rounds_open
            self._failures = 0
