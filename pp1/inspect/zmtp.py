"""One direction of a ZMTP 3.x connection: greeting, commands, messages. (ZeroMQ RFC 23 and 37.)

Bytes go in as they come, events come out. No frame is kept that is larger than
a payload may be, and of a message no more frames than a message may have. Where
the stream has no beginning, a gap or an impossible frame, the next PP1 header
frame is searched for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from proto_v2 import limits
from proto_v2.envelope import MAGIC

GREETING_BYTES: Final = 64
_SIGNATURE: Final = (0xFF, 0x7F)  # the first and the tenth byte
_SIGNATURE_BYTES: Final = 10
_MORE, _LONG, _COMMAND = 1, 2, 4
_COMMAND_BYTES_MAX: Final = 1 << 16
# A short frame with more to come, of the size and with the start of a header.
_MARK: Final = bytes([_MORE, limits.HEADER_BYTES]) + MAGIC


@dataclass(frozen=True, slots=True)
class Greeting:
    """The first 64 bytes."""

    offset: int
    version: tuple[int, int]
    mechanism: str
    as_server: bool


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the transport: READY, ERROR, PING, PONG and what mechanisms add."""

    offset: int
    name: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Frames:
    """A whole message. Of one with too many frames, one more than is allowed is kept."""

    offset: int
    frames: list[bytes]


@dataclass(frozen=True, slots=True)
class Remark:
    """Something about the stream itself; ``fault`` when it breaks the transport's rules."""

    offset: int
    text: str
    fault: bool


Event: TypeAlias = Greeting | Command | Frames | Remark


def is_greeting(data: bytes | bytearray) -> bool:
    """Whether a stream that starts so is ZMTP."""
    return len(data) >= _SIGNATURE_BYTES and (data[0], data[9]) == _SIGNATURE


def is_first_frame(data: bytes) -> bool:
    """Whether a stream that starts so is at the first frame of a message."""
    return data.startswith(_MARK)


class _State(Enum):
    START = 0
    FRAMES = 1
    LOST = 2  # looking for the next header
    OPAQUE = 3  # nothing more can be read, for instance because it is encrypted


@dataclass(slots=True)
class Reader:
    """The bytes of one direction. ``whole`` says that the first byte fed is the first sent."""

    whole: bool
    offset: int = 0
    _state: _State = _State.START
    _buffer: bytearray = field(default_factory=bytearray)
    _frames: list[bytes] = field(default_factory=list)
    _first: int = 0

    @property
    def buffered(self) -> int:
        """Bytes held."""
        return len(self._buffer) + sum(len(frame) for frame in self._frames)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Take the next bytes."""
        if self._state is _State.OPAQUE:
            self.offset += len(data)
            return
        self._buffer += data
        while (event := self._next()) is not None:
            if event is not _NOTHING:
                yield event

    def gap(self, count: int) -> Iterator[Event]:
        """``count`` bytes are not known."""
        yield Remark(self.offset, f"{count} bytes are missing in the recording", False)
        self._lose()
        self.offset += len(self._buffer) + count
        self._buffer.clear()

    def end(self) -> int:
        """The recording ends: how many bytes of a message have come that is not whole."""
        if self._state in (_State.LOST, _State.OPAQUE):
            return 0
        return self.buffered

    def _lose(self) -> None:
        if self._state is not _State.OPAQUE:
            self._state = _State.LOST
        self._frames = []

    def _take(self, size: int) -> bytes:
        part = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.offset += size
        return part

    def _next(self) -> Event | None:
        """The next event, ``_NOTHING`` for a step without one, None when more bytes are needed."""
        if self._state is _State.START:
            return self._start()
        if self._state is _State.LOST:
            return self._search()
        return self._frame() if self._state is _State.FRAMES else None

    def _start(self) -> Event | None:
        buffer = self._buffer
        if not buffer or (buffer[0] == _SIGNATURE[0] and len(buffer) < _SIGNATURE_BYTES):
            return None
        if not is_greeting(buffer):
            # Perhaps a connection that was there before the recording.
            self._state = _State.OPAQUE if self.whole else _State.LOST
            return _NOTHING
        if len(buffer) < GREETING_BYTES:
            return None
        offset = self.offset
        greeting = self._take(GREETING_BYTES)
        mechanism = greeting[12:32].rstrip(b"\0").decode("ascii", errors="backslashreplace")
        readable = greeting[10] >= 3 and mechanism in ("NULL", "PLAIN")
        self._state = _State.FRAMES if readable else _State.OPAQUE
        return Greeting(offset, (greeting[10], greeting[11]), mechanism, bool(greeting[32]))

    def _search(self) -> Event | None:
        at = self._buffer.find(_MARK)
        if at < 0:
            self._take(max(0, len(self._buffer) - len(_MARK) + 1))
            return None
        self._take(at)
        self._state = _State.FRAMES
        return Remark(self.offset, "reading begins at a PP1 header frame", False)

    def _frame(self) -> Event | None:
        buffer, offset = self._buffer, self.offset
        if not buffer:
            return None
        flags = buffer[0]
        if flags & ~(_MORE | _LONG | _COMMAND) or (flags & _COMMAND and flags & _MORE):
            self._lose()
            return Remark(offset, f"not a ZMTP frame: flags 0x{flags:02x}", True)
        head = 9 if flags & _LONG else 2
        if len(buffer) < head:
            return None
        size = int.from_bytes(buffer[1:head])
        most = _COMMAND_BYTES_MAX if flags & _COMMAND else limits.PAYLOAD_BYTES_MAX
        if size > most:
            # Every peer closes the connection here; the bytes are passed over unseen.
            self._lose()
            return Remark(offset, f"a frame of {size} bytes, where {most} are allowed", True)
        if len(buffer) < head + size:
            return None
        self._take(head)
        frame = self._take(size)
        if flags & _COMMAND:
            return _command(offset, frame)
        if not self._frames:
            self._first = offset
        if len(self._frames) <= limits.FRAMES_MAX:
            self._frames.append(frame)
        if flags & _MORE:
            return _NOTHING
        message = Frames(self._first, self._frames)
        self._frames = []
        return message


# A step of the reader that has nothing to tell.
_NOTHING: Final = Remark(0, "", False)


def _command(offset: int, frame: bytes) -> Event:
    size = frame[0] if frame else 0
    if not 0 < size < len(frame):
        return Remark(offset, "a ZMTP command without a name", True)
    name = frame[1 : 1 + size].decode("ascii", errors="backslashreplace")
    return Command(offset, name, frame[1 + size :])


def properties(data: bytes) -> list[tuple[str, bytes]]:
    """The metadata of a READY command, as far as it makes sense."""
    found: list[tuple[str, bytes]] = []
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        value_at = name_end + 4
        value_end = value_at + int.from_bytes(data[name_end:value_at])
        if value_end > len(data):
            break
        name = data[at + 1 : name_end].decode("ascii", errors="backslashreplace")
        found.append((name, data[value_at:value_end]))
        at = value_end
    return found
