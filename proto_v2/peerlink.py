"""One side of one connection: handshake, link epoch, liveness, sealing.

Every machine keeps a ``PeerLink`` per connection and sees only what passed it:
canonical messages of the agreed link epoch from the process that agreed to it.
Everything else is counted, answered with Nak or Refuse where the registry says
so, and goes no further. A ZeroMQ reconnect is invisible, so the epoch and the
boot id of every single message are checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from .codec import Received, decode, encode
from .deadlines import Deadlines
from .effects import Buffer, Count, Effect, Note, Peer, Send
from .errors import Code, Disposition, ProtocolError
from .messages import (
    AnyMessage,
    Hello,
    Message,
    Nak,
    Ping,
    Pong,
    Refuse,
    TermsAgreed,
    kind_of_type,
    refusal_fields,
)
from .negotiate import Agreed, Handshake

_WARNING = 30  # the value of the logging module's level
_KIND_OFFSET = 5  # the kind's place is the same in every wire version
_HELLO_KIND = kind_of_type(Hello)
_NAK_KIND = kind_of_type(Nak)


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Nanoseconds: between hellos and pings, and of silence before a peer is lost."""

    hello_retry_ns: int = 500_000_000
    ping_every_ns: int = 1_000_000_000
    silence_max_ns: int = 10_000_000_000


class LinkEvent(Enum):
    """What ``receive`` or ``expire`` found out about the link itself."""

    AGREED = auto()
    REFUSED = auto()
    LOST = auto()


class PeerLink:
    """The negotiated view of one connection. ``calling`` is the connecting side."""

    def __init__(
        self,
        peer: Peer,
        boot_id: bytes,
        make_hello: Callable[[], Hello],
        out: list[Effect],
        *,
        calling: bool,
        timing: LinkTiming,
    ) -> None:
        self.peer = peer
        self.calling = calling
        self.refused: ProtocolError | None = None
        self._boot_id = boot_id
        self._make_hello = make_hello
        self._out = out
        self._timing = timing
        self._deadlines = Deadlines()
        self._handshake: Handshake | None = None
        self._peer_nonce = b""
        self._heard_ns = 0

    # --- state ---

    @property
    def agreed(self) -> Agreed | None:
        """The agreed terms, or None while there are none."""
        return None if self._handshake is None else self._handshake.agreed

    @property
    def negotiating(self) -> bool:
        """Whether a hello has been taken or sent: a stranger has left no state."""
        return self._handshake is not None

    def next_deadline(self) -> int | None:
        """When ``expire`` has something to do."""
        return self._deadlines.next()

    # --- connection ---

    def up(self, now_ns: int) -> None:
        """The connection stands: the calling side says hello, with a fresh nonce."""
        self._restart(now_ns)

    def down(self) -> None:
        """The connection is gone, and the agreement with it."""
        self._handshake = None
        self._peer_nonce = b""
        self._deadlines = Deadlines()

    def _restart(self, now_ns: int) -> None:
        self.down()
        self.refused = None
        self._handshake = Handshake(self._make_hello(), calling=self.calling)
        opening = self._handshake.opening()
        if opening is not None:
            self._send_plain(opening)
            self._deadlines.set("hello", now_ns + self._timing.hello_retry_ns)
        else:
            # A caller that starts a negotiation and does not end it is forgotten.
            self._deadlines.set("agree", now_ns + self._timing.silence_max_ns)

    # --- sending ---

    def send(self, message: Message, payload: Buffer | None = None) -> tuple[Buffer, ...]:
        """Send on the agreed link; returns the frames (for repeats of the same bytes)."""
        assert self.agreed is not None, "nothing is sent before the terms are agreed"
        frames = encode(message, self._boot_id, self.agreed.link_epoch, payload)
        self._out.append(Send(self.peer, frames))
        return frames

    def resend(self, frames: tuple[Buffer, ...]) -> None:
        """Send the same bytes again."""
        self._out.append(Send(self.peer, frames))

    def nak(self, error: ProtocolError, *, step: int = 0, session_id: bytes = b"") -> None:
        """Answer with a typed Nak and count it."""
        self._count(error)
        epoch = self.agreed.link_epoch if self.agreed is not None else 0
        message = Nak(*refusal_fields(error), step=step, session_id=session_id)
        self._out.append(Send(self.peer, encode(message, self._boot_id, epoch)))

    def _send_plain(self, message: Message) -> None:
        self._out.append(Send(self.peer, encode(message, self._boot_id, 0)))

    def _count(self, error: ProtocolError) -> None:
        self._out.append(
            Count(
                "pp1_messages_rejected_total",
                (("code", error.code.name), ("link", self.peer.link)),
            )
        )

    # --- receiving ---

    def receive(
        self, frames: Sequence[Buffer], now_ns: int
    ) -> tuple[AnyMessage, Buffer | None] | LinkEvent | None:
        """One message in; an application message, a link event, or nothing out."""
        try:
            received = decode(frames)
            return self._sort(received, now_ns)
        except ProtocolError as error:
            if error.code is Code.WIRE_VERSION:
                # Only a hello is answered: two versions that refused each other's
                # refusals would never end.
                if frames[0][_KIND_OFFSET : _KIND_OFFSET + 1] == bytes([_HELLO_KIND]):
                    self._send_plain(Refuse(*refusal_fields(error)))
                self._count(error)
                self._out.append(
                    Note(_WARNING, "peer_refused", {"link": self.peer.link, "error": str(error)})
                )
            elif (
                error.entry.disposition is Disposition.NAK and frames[0][_KIND_OFFSET] != _NAK_KIND
            ):
                self.nak(error)
            else:
                # Also a Nak that is not understood or not of this link: two peers that
                # answered each other's Naks with Naks would never end.
                self._count(error)
            return None

    def _sort(
        self, received: Received, now_ns: int
    ) -> tuple[AnyMessage, Buffer | None] | LinkEvent | None:
        message = received.message
        if isinstance(message, Hello):
            return self._on_hello(received.boot_id, message, now_ns)
        if isinstance(message, TermsAgreed):
            return self._on_terms(message, now_ns)
        if isinstance(message, Refuse):
            return self._on_refuse(message)
        agreed = self.agreed
        if isinstance(message, Nak) and self._is_forgotten(received.link_epoch, message):
            self._restart(now_ns)
            return LinkEvent.LOST
        if agreed is None:
            raise ProtocolError(
                Code.NOT_NEGOTIATED, "link_epoch", "a hello first", received.link_epoch
            )
        if received.boot_id != agreed.peer_boot_id:
            raise ProtocolError(
                Code.BOOT_CHANGED, "boot_id", agreed.peer_boot_id.hex(), received.boot_id.hex()
            )
        if received.link_epoch != agreed.link_epoch:
            raise ProtocolError(
                Code.LINK_UNKNOWN, "link_epoch", agreed.link_epoch, received.link_epoch
            )
        self._heard_ns = now_ns
        if isinstance(message, Ping):
            self.send(Pong(message.token))
            return None
        if isinstance(message, Pong):
            return None
        return message, received.payload

    def _on_hello(self, boot_id: bytes, hello: Hello, now_ns: int) -> LinkEvent | None:
        if self.calling:
            if self._handshake is None:
                return None
        elif hello.nonce != self._peer_nonce or self._handshake is None:
            # A new nonce is a new negotiation; what was agreed before is over.
            self._restart(now_ns)
            self._peer_nonce = hello.nonce
        assert self._handshake is not None
        was_refused = self._handshake.refused is not None
        for answer in self._handshake.on_hello(boot_id, hello):
            self._send_plain(answer)
        if self._handshake.refused is not None and not was_refused:
            return self._refuse(self._handshake.refused)
        return None

    def _on_terms(self, terms: TermsAgreed, now_ns: int) -> LinkEvent | None:
        if self._handshake is None or self._handshake.over:
            return None
        for answer in self._handshake.on_terms(terms):
            self._send_plain(answer)
        if self._handshake.refused is not None:
            return self._refuse(self._handshake.refused)
        if self._handshake.agreed is None:
            return None
        self._deadlines.clear("hello")
        self._deadlines.clear("agree")
        self._heard_ns = now_ns
        self._deadlines.set("ping", now_ns + self._timing.ping_every_ns)
        return LinkEvent.AGREED

    def _on_refuse(self, message: Refuse) -> LinkEvent | None:
        if self._handshake is None or self._handshake.over:
            return None
        self._handshake.on_refuse(message)
        assert self._handshake.refused is not None
        return self._refuse(self._handshake.refused)

    def _refuse(self, error: ProtocolError) -> LinkEvent:
        self.refused = error
        self._deadlines.clear("hello")
        self._count(error)
        self._out.append(
            Note(_WARNING, "negotiation_refused", {"link": self.peer.link, "error": str(error)})
        )
        return LinkEvent.REFUSED

    def _is_forgotten(self, epoch: int, nak: Nak) -> bool:
        """Whether the peer says that it does not know our agreement: it was restarted."""
        return (
            self.calling
            and self.agreed is not None
            and epoch != self.agreed.link_epoch
            and nak.code in (Code.NOT_NEGOTIATED, Code.LINK_UNKNOWN)
        )

    # --- time ---

    def expire(self, now_ns: int) -> LinkEvent | None:
        """Repeat a hello, ping, or notice silence."""
        for name in self._deadlines.expire(now_ns):
            if name == "hello":
                assert self._handshake is not None
                self._send_plain(self._handshake.hello)
                self._deadlines.set("hello", now_ns + self._timing.hello_retry_ns)
                continue
            if name == "agree":
                self.down()
                return LinkEvent.LOST
            if now_ns - self._heard_ns > self._timing.silence_max_ns:
                self._out.append(Note(_WARNING, "peer_silent", {"link": self.peer.link}))
                if self.calling:
                    self._restart(now_ns)
                else:
                    self.down()
                return LinkEvent.LOST
            self.send(Ping(now_ns))
            self._deadlines.set("ping", now_ns + self._timing.ping_every_ns)
        return None
