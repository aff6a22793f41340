"""Bytes to messages and back, canonical.

The decoder always works over the whole tagged union (a decoder for one type
would accept a missing tag), then encodes what it read again and compares: the
MessagePack decoder alone takes non-minimal integers and headers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from . import envelope
from .effects import Buffer
from .errors import Code, ProtocolError
from .messages import KINDS, AnyMessage, Message, Rows, kind_of

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AnyMessage)


@dataclass(frozen=True, slots=True)
class Received:
    """One well-formed message and whom it says it is from."""

    boot_id: bytes
    link_epoch: int
    message: AnyMessage
    payload: Buffer | None


def encode_body(message: msgspec.Struct) -> bytes:
    """The canonical body of a message (also used for digests of records)."""
    return _ENCODER.encode(message)


def encode(
    message: Message, boot_id: bytes, link_epoch: int, payload: Buffer | None = None
) -> tuple[Buffer, ...]:
    """The frames of one message. Only ``Rows`` has a payload, and always has one."""
    assert (payload is not None) == isinstance(message, Rows), "payload goes with Rows"
    return envelope.seal(kind_of(message), boot_id, link_epoch, encode_body(message), payload)


def decode(frames: Sequence[Buffer]) -> Received:
    """Read one message.

    Raises:
        ProtocolError: 10x from the envelope (not our bytes), 108 or 12x when
            the envelope holds but the body is not a canonical message.
    """
    header, body, payload = envelope.unseal(frames)
    expected = KINDS.get(header.kind)
    if expected is None:
        raise ProtocolError(Code.KIND_UNKNOWN, "header.kind", "a registered kind", header.kind)
    try:
        message = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        # The text and not the exception: its traceback would keep the frames alive.
        raise ProtocolError(Code.MALFORMED, expected.__name__, "a valid body", str(error)) from None
    if type(message) is not expected:
        raise ProtocolError(
            Code.KIND_MISMATCH, "body.kind", expected.__name__, type(message).__name__
        )
    if _ENCODER.encode(message) != body:
        raise ProtocolError(
            Code.NOT_CANONICAL, expected.__name__, "the shortest encoding", "another one"
        )
    if isinstance(message, Rows):
        # Ids without their q frame are a fault of the proposal, and not of the envelope:
        # validation answers an empty payload with Q_MISSING and discards the whole chain.
        payload = b"" if payload is None else payload
    elif payload is not None:
        raise ProtocolError(
            Code.FRAME_COUNT, expected.__name__, "a payload with Rows only", len(frames)
        )
    return Received(header.boot_id, header.link_epoch, message, payload)
