"""The face of a link: what the driver needs from a wire.

A link moves whole messages (lists of frames) and says when a connection
stands. It knows bytes, never what they mean. Nothing here blocks, and nothing
is promised: a message that was taken may still be lost with its connection.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from proto_v2.effects import Buffer


class SendResult(Enum):
    """What became of a message at the moment it was handed over."""

    SENT = "sent"  # queued whole for a standing connection
    UNREACHABLE = "unreachable"  # no connection on that route; nothing was kept
    FULL = "full"  # the route's queue is at its bound; nothing was kept


@dataclass(frozen=True, slots=True)
class Received:
    """One whole message. Every frame is read-only and owns its memory."""

    route: bytes
    frames: list[memoryview]


@dataclass(frozen=True, slots=True)
class Overlong:
    """A message of more than ``limits.FRAMES_MAX`` frames; its bytes are gone."""

    route: bytes
    frame_count: int


@dataclass(frozen=True, slots=True)
class Up:
    """A new connection stands on the route: a new link epoch."""

    route: bytes


@dataclass(frozen=True, slots=True)
class Down:
    """The connection on the route is over, with whatever was still in it."""

    route: bytes


@dataclass(frozen=True, slots=True)
class Refused:
    """Somebody listens there and would not have this connection; the link tries again."""

    route: bytes
    reason: str


LinkEvent: TypeAlias = Received | Overlong | Up | Down | Refused


class Link(Protocol):
    """A non-blocking message wire, owned by one thread."""

    @property
    def name(self) -> str:
        """What ``Peer.link`` calls this link."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when ``poll`` may have something.

        It stays the same for the link's life. It is edge triggered: after any
        ``poll`` or ``send`` it may stay silent although ``pending()`` is true.
        """

    def poll(self, limit: int) -> list[LinkEvent]:
        """Take what is there, at most ``limit`` messages; empty when nothing is."""

    def pending(self) -> bool:
        """Whether ``poll`` would find something now."""

    def wake_at(self) -> int | None:
        """When ``poll`` wants a call even if the descriptor stays silent.

        Nanoseconds of ``clock.monotonic_ns``, or None.
        """

    def send(self, route: bytes, frames: Sequence[Buffer]) -> SendResult:
        """Hand over one message, whole or not at all. The caller may reuse its buffers."""

    def close(self) -> None:
        """Let go of the wire; what was sent may get a bounded time to leave."""
