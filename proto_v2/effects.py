"""What a machine is, and what it hands back to whoever drives it.

A machine owns no socket, clock or thread. It is fed frames, link events,
finished jobs and the time; after every call the driver drains ``effects()``
and carries them out in order. The asyncio driver and the in-process test
harness are the two drivers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | memoryview
Labels: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a message came from or goes to.

    ``link`` is the name of one of the driver's links. ``route`` is the routing
    id on a ROUTER and ``b""`` on a DEALER, which has one peer.
    """

    link: str
    route: bytes = b""


@dataclass(frozen=True, slots=True)
class Send:
    """Send these frames as one message; never blocks, may be dropped."""

    peer: Peer
    frames: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Run slow work off the event loop; it comes back as ``completed(job_id, ...)``."""

    job_id: int
    job: object


@dataclass(frozen=True, slots=True)
class Count:
    """Add ``value`` to a counter."""

    name: str
    labels: Labels = ()
    value: int = 1


@dataclass(frozen=True, slots=True)
class Note:
    """One structured log line at a ``logging`` level."""

    level: int
    event: str
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stop:
    """End the process in an orderly way with this exit code and message."""

    exit_code: int
    message: str


Effect: TypeAlias = Send | Run | Count | Note | Stop


class Machine(Protocol):
    """One protocol party without IO. Time is an argument in nanoseconds."""

    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        """Take one whole message."""

    def link_up(self, peer: Peer, now_ns: int) -> None:
        """A connection stands; nothing is negotiated on it yet."""

    def link_down(self, peer: Peer, now_ns: int) -> None:
        """The connection is gone; nothing sent on it is known to have arrived."""

    def completed(self, job_id: int, result: object, now_ns: int) -> None:
        """A job ended; ``result`` is an ``Exception`` instance when it raised."""

    def expire(self, now_ns: int) -> None:
        """Act on every deadline at or before ``now_ns``."""

    def next_deadline(self) -> int | None:
        """The earliest time at which ``expire`` has something to do."""

    def effects(self) -> list[Effect]:
        """Everything to carry out since the last call, in order."""
