"""From TCP segments to the messages of each connection, in the order of the recording.

Segments that come twice, late or overlapping are put in place; what never comes
is a gap. Memory is bounded over all connections together: the one that has been
quiet the longest makes room.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pp1.inspect import zmtp
from pp1.inspect.capture import Endpoint, Segment
from pp1.inspect.link import Link
from pp1.inspect.stream import Thing, annotated

# A hole in front of as much is taken for lost.
_PENDING_BYTES_MAX: Final = 1 << 20
_PENDING_MAX: Final = 1024
_BUFFERED_BYTES_MAX: Final = 1 << 28
_CONNECTIONS_MAX: Final = 4096
_SEQUENCES: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class Seen:
    """One thing that travelled: when, from whom to whom, and what they said that they are."""

    time_ns: int
    source: Endpoint
    destination: Endpoint
    roles: tuple[str | None, str | None]
    what: Thing


@dataclass(slots=True)
class _Direction:
    """The bytes that one end sends, in order."""

    reader: zmtp.Reader
    expected: int | None = None
    pending: dict[int, bytes] = field(default_factory=dict)
    pending_bytes: int = 0

    @property
    def buffered(self) -> int:
        return self.pending_bytes + self.reader.buffered

    def take(self, sequence: int, data: bytes) -> Iterator[zmtp.Event]:
        if self.expected is None:
            self.expected = sequence
        if not data:
            return
        if self._ahead(sequence) > 0:
            known = self.pending.get(sequence, b"")
            if len(data) > len(known):
                self.pending[sequence] = data
                self.pending_bytes += len(data) - len(known)
        else:
            yield from self._deliver(sequence, data)
        yield from self._follow(_PENDING_BYTES_MAX, _PENDING_MAX)

    def flush(self) -> Iterator[zmtp.Event]:
        """Nothing more comes: what is missing stays missing."""
        yield from self._follow(0, 0)

    def _ahead(self, sequence: int) -> int:
        """How far a sequence number is ahead of the next byte; negative when it is behind."""
        assert self.expected is not None
        distance = (sequence - self.expected) % _SEQUENCES
        return distance if distance < _SEQUENCES // 2 else distance - _SEQUENCES

    def _deliver(self, sequence: int, data: bytes) -> Iterator[zmtp.Event]:
        fresh = data[-self._ahead(sequence) :]
        if fresh:
            assert self.expected is not None
            self.expected = (self.expected + len(fresh)) % _SEQUENCES
            yield from self.reader.feed(fresh)

    def _follow(self, most_bytes: int, most: int) -> Iterator[zmtp.Event]:
        """Deliver what waits for nothing more; over a gap if more than this waits behind it."""
        while self.pending:
            sequence = min(self.pending, key=self._ahead)
            ahead = self._ahead(sequence)
            if ahead > 0:
                if self.pending_bytes <= most_bytes and len(self.pending) <= most:
                    return
                self.expected = sequence
                yield from self.reader.gap(ahead)
            data = self.pending.pop(sequence)
            self.pending_bytes -= len(data)
            yield from self._deliver(sequence, data)


@dataclass(slots=True)
class _Connection:
    link: Link
    directions: dict[Endpoint, _Direction] = field(default_factory=dict)
    opened_at: int | None = None  # sequence number of the caller's SYN

    @property
    def buffered(self) -> int:
        return sum(direction.buffered for direction in self.directions.values())


class Connections:
    """Feed segments, get what they complete; ``end`` gives the rest."""

    def __init__(self, given: dict[str, int] | None = None) -> None:
        self._given = given
        self._open: OrderedDict[frozenset[Endpoint], _Connection] = OrderedDict()
        self._buffered = 0
        self._time_ns = 0
        self.count = 0
        """Connections seen, ZMTP or not."""

    def feed(self, segment: Segment) -> Iterator[Seen]:
        """Take the next segment of the recording."""
        self._time_ns = segment.time_ns
        key = frozenset({segment.source, segment.destination})
        connection = self._open.get(key)
        calls = segment.syn and not segment.ack
        if connection is not None and calls and segment.sequence != connection.opened_at:
            yield from self._close(key)  # the ports are used again
            connection = None
        if connection is None:
            connection = self._open[key] = _Connection(Link(self._given))
            self.count += 1
        if calls:
            connection.opened_at = segment.sequence
        self._open.move_to_end(key)
        before = connection.buffered
        direction = connection.directions.get(segment.source)
        if direction is None:
            reader = zmtp.Reader(whole=segment.syn)
            direction = connection.directions[segment.source] = _Direction(reader)
        sequence = (segment.sequence + segment.syn) % _SEQUENCES
        for event in direction.take(sequence, segment.data):
            yield self._seen(connection, segment.source, segment.destination, event)
        self._buffered += connection.buffered - before
        while self._buffered > _BUFFERED_BYTES_MAX or len(self._open) > _CONNECTIONS_MAX:
            yield from self._close(next(iter(self._open)))

    def end(self) -> Iterator[Seen]:
        """The recording is over."""
        for key in list(self._open):
            yield from self._close(key)

    def _seen(
        self, connection: _Connection, source: Endpoint, destination: Endpoint, event: zmtp.Event
    ) -> Seen:
        link = connection.link
        what = annotated(event, link, source)
        roles = link.role(source), link.role(destination)
        return Seen(self._time_ns, source, destination, roles, what)

    def _close(self, key: frozenset[Endpoint]) -> Iterator[Seen]:
        connection = self._open.pop(key)
        self._buffered -= connection.buffered
        for source, direction in connection.directions.items():
            (destination,) = key - {source} or {source}
            for event in direction.flush():
                yield self._seen(connection, source, destination, event)
            left = direction.reader.end()
            if left:
                text = f"the recording ends {left} bytes into a message"
                remark = zmtp.Remark(direction.reader.offset, text, False)
                yield self._seen(connection, source, destination, remark)
