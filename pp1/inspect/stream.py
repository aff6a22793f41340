"""Bytes that are no capture: messages back to back, or one direction of a ZMTP connection."""

import io
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

from pp1.inspect import zmtp
from pp1.inspect.link import Link
from pp1.inspect.message import Inspected, header_field, inspect_message
from proto_v2 import limits
from proto_v2.envelope import MAGIC

Thing: TypeAlias = Inspected | zmtp.Greeting | zmtp.Command | zmtp.Remark

_CHUNK_BYTES: Final = 1 << 16


class Unreadable(Exception):
    """The input is not what it should be; the text is one line for a person."""


class Source(Protocol):
    """Where bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """``size`` bytes, or fewer where the input ends."""
        ...


class Rewound:
    """A source whose first bytes have been looked at already."""

    def __init__(self, start: bytes, rest: Source) -> None:
        self._start = io.BytesIO(start)
        self._rest = rest

    def read(self, size: int, /) -> bytes:
        """See ``Source``."""
        data = self._start.read(size)
        return data + self._rest.read(size - len(data)) if len(data) < size else data


def annotated(event: zmtp.Event, link: Link, sender: object) -> Thing:
    """What a listing shows of an event: messages field by field, the others as they are."""
    if isinstance(event, zmtp.Frames):
        return inspect_message(event.frames, link, sender, event.offset)
    return event


def connection(source: Source, link: Link) -> Iterator[Thing]:
    """One direction of a ZMTP connection."""
    reader = zmtp.Reader(whole=False)
    while data := source.read(_CHUNK_BYTES):
        for event in reader.feed(data):
            yield annotated(event, link, None)
    left = reader.end()
    if left:
        yield zmtp.Remark(reader.offset, f"the stream ends {left} bytes into a message", True)


def back_to_back(source: Source, link: Link) -> Iterator[Thing]:
    """Messages whose frames follow each other, cut as their headers say.

    What is no message ends the listing, since nothing tells where another begins.
    """
    offset = 0
    while header := source.read(limits.HEADER_BYTES):
        frames = [header]
        if header.startswith(MAGIC) and len(header) == limits.HEADER_BYTES:
            size = min(header_field(header, "body_bytes"), limits.BODY_BYTES_MAX)
            frames.append(source.read(size))
            if header_field(header, "payload_frames"):
                size = min(header_field(header, "payload_bytes"), limits.PAYLOAD_BYTES_MAX)
                frames.append(source.read(size))
        yield inspect_message(frames, link, offset=offset)
        if len(frames) == 1:
            return
        offset += sum(len(frame) for frame in frames)
