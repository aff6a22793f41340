"""What happens on the links between the machines, as rules of a test.

A ``Wire`` is the ``intercept`` of a ``Trio``. It records every message and
lets rules act on them: drop, repeat, hold, change and seal again as the sender
would, or flip a bit without sealing again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from proto_v2.codec import decode, encode
from proto_v2.effects import Buffer
from proto_v2.messages import AnyMessage, Message

Frames = tuple[Buffer, ...]
Kind = TypeVar("Kind", bound=Message)


@dataclass(frozen=True)
class Sent:
    """One message under way."""

    source: str
    destination: str
    frames: Frames
    boot_id: bytes
    link_epoch: int
    message: AnyMessage
    payload: Buffer | None

    def sealed(self, message: Message, payload: Buffer | None = None) -> Frames:
        """Another message in its place, as its sender would have sealed it."""
        return encode(message, self.boot_id, self.link_epoch, payload)


# None leaves the message to the next rule.
Rule = Callable[[Sent], list[Frames] | None]


@dataclass
class Wire:
    """The intercept. ``rules`` are asked in order; the first that answers decides."""

    rules: list[Rule] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)

    def __call__(self, source: str, destination: str, frames: Frames) -> list[Frames]:
        received = decode(frames)
        sent = Sent(
            source,
            destination,
            frames,
            received.boot_id,
            received.link_epoch,
            received.message,
            received.payload,
        )
        self.sent.append(sent)
        for rule in self.rules:
            answer = rule(sent)
            if answer is not None:
                return answer
        return [frames]

    def of(self, kind: type[Kind], source: str = "", destination: str = "") -> list[Kind]:
        """Every message of a kind that was sent, in order."""
        return [
            sent.message
            for sent in self.sent
            if isinstance(sent.message, kind)
            and source in ("", sent.source)
            and destination in ("", sent.destination)
        ]

    def when(
        self,
        kind: type[Kind],
        act: Callable[[Sent, Kind], list[Frames]],
        *,
        source: str = "",
        destination: str = "",
        skip: int = 0,
        times: int = 1,
    ) -> "Hits":
        """Let ``act`` decide over ``times`` messages of a kind, after the first ``skip``."""
        hits = Hits(skip, times)

        def rule(sent: Sent) -> list[Frames] | None:
            if (
                not isinstance(sent.message, kind)
                or source not in ("", sent.source)
                or destination not in ("", sent.destination)
            ):
                return None
            hits.seen += 1
            if not skip < hits.seen <= skip + times:
                return None
            hits.count += 1
            return act(sent, sent.message)

        self.rules.append(rule)
        return hits


@dataclass
class Hits:
    """How often a rule met its message, and how often it acted."""

    skip: int
    times: int
    seen: int = 0
    count: int = 0


def drop(sent: Sent, message: Message) -> list[Frames]:
    """The message is lost."""
    return []


def twice(sent: Sent, message: Message) -> list[Frames]:
    """The message arrives twice."""
    return [sent.frames, sent.frames]


def flip(frame: int, place: int) -> Callable[[Sent, Message], list[Frames]]:
    """One bit of a frame arrives wrong; ``place`` counts from the end when negative."""

    def act(sent: Sent, message: Message) -> list[Frames]:
        frames = [bytearray(part) for part in sent.frames]
        frames[frame][place % len(frames[frame])] ^= 0x10
        return [tuple(bytes(part) for part in frames)]

    return act


def change(make: Callable[[Kind], Message]) -> Callable[[Sent, Kind], list[Frames]]:
    """The sender says something else, with the same payload."""

    def act(sent: Sent, message: Kind) -> list[Frames]:
        return [sent.sealed(make(message), sent.payload)]

    return act


@dataclass
class Held:
    """Keeps messages back, to be delivered later with ``Trio.inject``."""

    sent: list[Sent] = field(default_factory=list)

    def __call__(self, sent: Sent, message: Message) -> list[Frames]:
        self.sent.append(sent)
        return []
