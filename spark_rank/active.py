"""A request as rank 0 serves it: its client, its worker side, its statistics."""

from dataclasses import dataclass, field
from enum import Enum, auto

from proto_v2 import limits
from proto_v2.effects import Peer
from proto_v2.errors import Code
from proto_v2.messages import DecisionEntry, Finished, Generate, Open
from proto_v2.session import Ledger

from .request import Request


class WorkerSide(Enum):
    """What the worker holds of the current generation."""

    NOTHING = auto()
    RESET_SENT = auto()
    READY = auto()


@dataclass(slots=True)
class Stats:
    """Counts of one request, as reported in Finished."""

    rounds_speculative: int = 0
    rounds_target_only: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    unverified: int = 0
    accepted_at: list[int] = field(default_factory=lambda: [0] * limits.DEPTH_MAX)
    drafted_at: list[int] = field(default_factory=lambda: [0] * limits.DEPTH_MAX)

    def add(self, entry: DecisionEntry) -> None:
        """Add one committed decision."""
        assert entry.accepted + entry.rejected + entry.unverified == entry.depth
        if entry.depth == 0:
            self.rounds_target_only += 1
            return
        self.rounds_speculative += 1
        self.drafted += entry.depth
        self.accepted += entry.accepted
        self.rejected += entry.rejected
        self.unverified += entry.unverified
        for index in range(entry.depth):
            self.drafted_at[index] += 1
            self.accepted_at[index] += index < entry.accepted


@dataclass(slots=True)
class Active:
    """One request in one of rank 0's lanes.

    ``out_of_step`` is set when the worker can no longer be in this generation;
    the next step then ends the generation on both ranks before a new one
    begins. ``acknowledged`` is a prefix length that the worker is known to
    hold, so that a Reset may carry only what comes after it. ``opening`` is the
    Open that rank 1 has not been sent yet: a request that may speculate waits
    for the worker's first Ready, at most until ``held_until_ns``, so that its
    rounds do not depend on how fast a message travels.
    """

    request: Request
    client: Peer
    params: Generate
    worker: WorkerSide = WorkerSide.NOTHING
    out_of_step: Code | None = None
    acknowledged: int = 0
    opening: Open | None = None
    held_until_ns: int = 0
    cancelled: Code | None = None
    stats: Stats = field(default_factory=Stats)

    @property
    def ledger(self) -> Ledger:
        """The committed prefix."""
        return self.request.ledger

    @property
    def generated(self) -> int:
        """Tokens committed after the prompt."""
        return self.ledger.length - self.request.prompt_length

    def lose_worker(self, code: Code, *, forget: bool) -> None:
        """The worker's state of this generation is gone or wrong.

        ``forget`` when it may hold nothing at all (a new process, a failed
        engine), so that the next Reset carries the whole prefix.
        """
        if self.worker is not WorkerSide.NOTHING:
            self.worker = WorkerSide.NOTHING
            self.out_of_step = code
        if forget:
            self.acknowledged = 0

    def finished(self, finish: int) -> Finished:
        """The final message to the client."""
        stats = self.stats
        return Finished(
            key=self.params.key,
            finish=finish,
            token_count=self.generated,
            rounds_speculative=stats.rounds_speculative,
            rounds_target_only=stats.rounds_target_only,
            drafted=stats.drafted,
            accepted=stats.accepted,
            rejected=stats.rejected,
            unverified=stats.unverified,
            accepted_at=tuple(stats.accepted_at),
            drafted_at=tuple(stats.drafted_at),
        )
