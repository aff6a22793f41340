"""One message: its header, body and payload as fields, and the rules that it breaks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from pp1.inspect import rules
from pp1.inspect.body import Item, Path, Walked, walk
from pp1.inspect.link import Link
from pp1.inspect.rows import Field, judge
from pp1.inspect.rules import Broken, broken
from proto_v2 import codec, envelope
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import KINDS, AnyMessage

# specs/03, "Frames": name, offset, size. A test compares.
HEADER: Final = (
    ("magic", 0, 4),
    ("version", 4, 1),
    ("kind", 5, 1),
    ("payload_frames", 6, 1),
    ("reserved", 7, 1),
    ("body_bytes", 8, 4),
    ("payload_bytes", 12, 4),
    ("boot_id", 16, 16),
    ("link_epoch", 32, 8),
    ("body_checksum", 40, 8),
    ("reserved_tail", 48, 8),
    ("checksum", 56, 8),
)
_AS_BYTES: Final = frozenset({"magic", "boot_id"})
_KIND_AT: Final = 5
_BODY_PATH: Final = re.compile(r"at `\$((?:\[\d+\])*)`")


@dataclass(frozen=True, slots=True)
class Inspected:
    """A message as it is listed. ``kind`` is the header's, if it has one.

    ``offset`` is where it starts in its stream.
    """

    offset: int
    kind: int | None
    frames: tuple[int, ...]
    fields: list[Field]
    broken: list[Broken]

    @property
    def name(self) -> str:
        """What to call the message."""
        if self.kind is None:
            return "no kind"
        return KINDS[self.kind].__name__ if self.kind in KINDS else "unregistered kind"


def header_field(frame: bytes, name: str) -> int:
    """A number of a header frame, which need not be a whole or valid one; 0 where it is not."""
    offset, size = next((at, size) for known, at, size in HEADER if known == name)
    return int.from_bytes(frame[offset : offset + size].ljust(size, b"\0"), "little")


def inspect_message(
    frames: Sequence[bytes], link: Link, sender: object = None, offset: int = 0
) -> Inspected:
    """Annotate the frames of one message; what is learned from it stays in ``link``."""
    header, body = frames[0], frames[1] if len(frames) > 1 else None
    ours = header.startswith(envelope.MAGIC) and len(header) > _KIND_AT
    kind = header[_KIND_AT] if ours else None
    ours = ours and header_field(header, "version") == envelope.WIRE_VERSION
    fields = _header_fields(header)
    walked = None
    if body is not None:
        walked = walk(body, _type_of(kind) if ours else None)
        fields += _body_fields(walked, body, len(header))
    found: list[Broken] = []
    message, payload = _decode(frames, walked, found)
    start = len(header) + (0 if body is None else len(body))
    if message is None:
        for frame in frames[2:]:
            fields.append(Field("payload", start, len(frame), frame))
            start += len(frame)
    else:
        rows, faults = judge(link, message, payload, start)
        fields += rows
        found += faults
        link.remember(sender, message)
    return Inspected(offset, kind, tuple(len(frame) for frame in frames), fields, found)


def _type_of(kind: int | None) -> msgspec.inspect.StructType | None:
    if kind not in KINDS:
        return None
    info = msgspec.inspect.type_info(KINDS[kind])
    assert isinstance(info, msgspec.inspect.StructType)
    return info


def _header_fields(frame: bytes) -> list[Field]:
    other = len(frame) > 4 and frame[4] != envelope.WIRE_VERSION  # its layout is not known
    fields = []
    for name, offset, size in HEADER[:3] if other else HEADER:
        part = frame[offset : offset + size]
        if len(part) == size:
            value = part if name in _AS_BYTES else int.from_bytes(part, "little")
            fields.append(Field(f"header.{name}", offset, size, value))
    end = fields[-1].offset + fields[-1].size if fields else 0
    if end < len(frame):
        fields.append(Field("header.rest", end, len(frame) - end, frame[end:]))
    return fields


def _named(item: Item) -> str:
    if not item.name:
        return "body"
    return f"body{item.name}" if item.name.startswith("[") else f"body.{item.name}"


def _body_fields(walked: Walked, body: bytes, start: int) -> list[Field]:
    fields = [
        Field(_named(item), start + item.offset, item.size, item.value) for item in walked.items
    ]
    if walked.end < len(body):
        rest = body[walked.end :]
        fields.append(Field("body.rest", start + walked.end, len(rest), rest))
    return fields


def _decode(
    frames: Sequence[bytes], walked: Walked | None, found: list[Broken]
) -> tuple[AnyMessage | None, bytes]:
    """The message that the codec reads and its payload, empty if there is none; or a rule."""
    try:
        envelope.unseal(frames)
    except ProtocolError as error:
        found.append(broken(rules.ENVELOPE, error, _header_place(error, frames)))
        return None, b""
    try:
        received = codec.decode(frames)
    except ProtocolError as error:
        assert walked is not None, "an envelope that holds has a body"
        place = "header.kind" if error.code is Code.KIND_UNKNOWN else "body.kind"
        if error.code in (Code.MALFORMED, Code.NOT_CANONICAL):
            place = _body_place(error, walked, frames[1])
        elif error.code is Code.FRAME_COUNT:
            place = "payload"
        found.append(broken(rules.CODEC[error.code], error, place))
        return None, b""
    return received.message, b"" if received.payload is None else bytes(received.payload)


def _header_place(error: ProtocolError, frames: Sequence[bytes]) -> str:
    if error.field == "header.reserved" and not header_field(frames[0], "reserved"):
        return "header.reserved_tail"
    return error.field


def _body_place(error: ProtocolError, walked: Walked, body: bytes) -> str:
    """The item that the codec stumbled over, from its own words or from its own encoding."""
    if error.code is Code.NOT_CANONICAL:
        again = codec.encode_body(msgspec.msgpack.decode(body, type=AnyMessage))
        pairs = zip(body, again, strict=False)
        differs = next((at for at, (one, other) in enumerate(pairs) if one != other), len(again))
        before = [item for item in walked.items if item.offset <= differs]
        return _named(before[-1]) if before else "body"
    match = _BODY_PATH.search(str(error.got))
    if match is None:
        return "body.rest" if walked.end < len(body) else "body"
    path: Path = tuple(int(index) for index in re.findall(r"\d+", match.group(1)))
    known = {item.path: item for item in walked.items}
    while path and path not in known:
        path = path[:-1]
    return _named(known[path]) if path in known else "body"
