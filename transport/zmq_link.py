"""Links over ZeroMQ: a ROUTER that listens and a DEALER that connects.

What libzmq does by itself, and what is done here about it (seen on libzmq
4.3.5; see also the ZeroMQ guide, chapter 3, and ZMTP 3.1):

* Reconnection hides that a connection ended, and messages queued for the old
  one would reach whoever answers next. So ``ClientLink`` never lets libzmq
  reconnect: one socket has one connection, ever, and the next connection gets
  a new socket and a new routing id. Nothing sent in one link epoch can
  arrive in another, in either direction. ``ZMQ_IMMEDIATE`` would not do: it
  leaves the two epochs' messages in one socket, and at the end it throws away
  what had arrived but was not read yet.
* A ROUTER drops messages to unknown routes and at its queue bound without a
  word. ``ROUTER_MANDATORY`` turns both into errors. A listener still learns
  that a peer is gone only from ``UNREACHABLE`` or from silence: ``ServerLink``
  never reports ``Up`` or ``Down``, and liveness is the protocol's own message.
* ``MAXMSGSIZE`` bounds one frame, not a message, and a message is invisible
  until its last frame is there. An oversize frame ends its connection before
  memory is had for it. The number of frames is judged only once the message
  is whole, so a peer that never ends its message costs memory here until its
  connection ends: listen where only trusted peers can connect.
* Heartbeats show that the peer's host and IO thread live, no more.

Linux only: ``ClientLink`` joins its descriptors with epoll.
"""

import errno
import ipaddress
import itertools
import select
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from proto_v2 import limits
from proto_v2.effects import Buffer
from proto_v2.errors import Code, ProtocolError
from transport.clock import monotonic_ns
from transport.link import Down, LinkEvent, Overlong, Received, Refused, SendResult, Up
from transport.security import ConnectKeys, ListenKeys, guard, trust

# Messages queued per connection and direction. Two batches of dense rows are
# 40 messages; the bound leaves room for three times that and still keeps a
# stalled connection below 70 MB of the default dense rows.
HIGH_WATER: Final = 128
LINGER_MS: Final = 500
HANDSHAKE_MS: Final = 5_000
CONNECT_MS: Final = 3_000
HEARTBEAT_MS: Final = 1_000
HEARTBEAT_TIMEOUT_MS: Final = 5_000
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 2_000
# A pause that no socket outlives; -1 would mean the same to libzmq but, like
# IMMEDIATE, would drop unread messages when the connection ends.
_NEVER_MS: Final = 86_400_000
# libzmq copies smaller frames whatever it is told.
ZERO_COPY_BYTES: Final = 65_536
_NS_PER_MS: Final = 1_000_000
_TCP_KEEPALIVE: Final = ((zmq.TCP_KEEPALIVE, 1), (zmq.TCP_KEEPALIVE_IDLE, 30))
# What ends a client's attempt at a connection although somebody listens, and why.
_HANDSHAKE: Final = "the handshake fails: not ZeroMQ, CURVE at one end only, or another server key"
_REFUSALS: Final = {
    zmq.Event.HANDSHAKE_FAILED_AUTH: "the listener does not accept this public key",
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL: _HANDSHAKE,
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL: _HANDSHAKE,
}
# What ends a client's one connection, or the attempt at it.
_ENDINGS: Final = frozenset({zmq.Event.DISCONNECTED, zmq.Event.CLOSED, *_REFUSALS})
_WATCHED: Final = int(zmq.Event.HANDSHAKE_SUCCEEDED) | sum(int(event) for event in _ENDINGS)


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP endpoint. ``host`` is ``*`` (every interface), a name or an IP literal."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def ipv6(self) -> bool:
        """Whether the host is an IPv6 literal."""
        return ":" in self.host

    def __str__(self) -> str:
        host = f"[{self.host}]" if self.ipv6 else self.host
        return f"tcp://{host}:{self.port}"


def parse_address(text: str, field: str) -> Address:
    """Read ``tcp://host:port``; a port of 0 or ``*`` is any free port.

    Raises ``ProtocolError(CONFIG_INVALID)`` naming ``field``.
    """
    scheme, _, rest = text.partition("://")
    host, _, port = rest.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    port = "0" if port == "*" else port
    valid = (
        scheme == "tcp"
        and bool(host)
        and (":" in host) == bracketed
        and not any(character.isspace() or character in "/;@" for character in host)
        and port.isascii()
        and port.isdigit()
        and int(port) <= 65_535
    )
    if valid and bracketed:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            valid = False
    if not valid:
        raise ProtocolError(Code.CONFIG_INVALID, field, "tcp://host:port", repr(text))
    return Address(host, int(port))


def _configure(socket: "zmq.Socket[bytes]", address: Address, max_frame_bytes: int) -> None:
    """Set what both kinds of socket have in common. Every bound is finite."""
    socket.set(zmq.SNDHWM, HIGH_WATER)
    socket.set(zmq.RCVHWM, HIGH_WATER)
    socket.set(zmq.LINGER, LINGER_MS)
    socket.set(zmq.MAXMSGSIZE, max_frame_bytes)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.set(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.set(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    socket.set(zmq.IPV6, int(address.ipv6))
    for option, value in _TCP_KEEPALIVE:
        socket.set(option, value)


def _events(socket: "zmq.Socket[bytes]") -> int:
    """What the socket is ready for; reading it makes libzmq look at its mailbox."""
    return int(socket.get(zmq.EVENTS))


def _receive(socket: "zmq.Socket[bytes]") -> LinkEvent:
    """One whole message without waiting. Raises ``zmq.Again`` when none is there.

    The frames are libzmq's own memory, kept alive by the views; those beyond
    the bound are let go one by one.
    """
    route = b""
    if socket.type == zmq.ROUTER:
        route = socket.recv(zmq.NOBLOCK)
    frames: list[memoryview] = []
    count = 0
    more = True
    while more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        count += 1
        if count <= limits.FRAMES_MAX:
            frames.append(frame.buffer.toreadonly())
        more = frame.more
    return Received(route, frames) if count <= limits.FRAMES_MAX else Overlong(route, count)


def _receive_many(socket: "zmq.Socket[bytes]", limit: int, events: list[LinkEvent]) -> bool:
    """Append up to ``limit`` messages; true when there are no more for now."""
    try:
        for _ in range(limit):
            events.append(_receive(socket))
    except zmq.Again:
        return True
    return False


def _immutable(frame: Buffer) -> bool:
    """Whether nobody can change the bytes while libzmq still reads them."""
    if isinstance(frame, bytes):
        return True
    return type(frame.obj) is bytes


def _send(socket: "zmq.Socket[bytes]", frames: Sequence[Buffer]) -> None:
    """Send one message without waiting; libzmq takes all of it or raises at the first frame.

    A large frame goes without a copy only if it cannot change: a tracker from
    ``send_multipart`` would cover the last frame alone, and reusing the buffer
    after send puts overwritten bytes on the wire.
    """
    last = len(frames) - 1
    for index, given in enumerate(frames):
        flags = zmq.NOBLOCK if index == last else zmq.NOBLOCK | zmq.SNDMORE
        contiguous = isinstance(given, bytes) or given.c_contiguous
        frame = given if contiguous else bytes(given)
        size = frame.nbytes if isinstance(frame, memoryview) else len(frame)
        socket.send(frame, flags, copy=size < ZERO_COPY_BYTES or not _immutable(frame))


def _try_send(socket: "zmq.Socket[bytes]", frames: Sequence[Buffer]) -> SendResult:
    """Send, and tell the two ways apart in which libzmq refuses."""
    for last_try in (False, True):
        try:
            _send(socket, frames)
        except zmq.Again:
            # On its own libzmq looks only now and then; room may have appeared.
            if last_try or not _events(socket) & zmq.POLLOUT:
                return SendResult.FULL
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return SendResult.UNREACHABLE
        else:
            return SendResult.SENT
    raise AssertionError("the second try returns")


class ServerLink:
    """A listening link (ROUTER). Routes are ids that libzmq makes up, one per connection.

    With ``keys`` only their owners get in, by CURVE. Raises ``ProtocolError``:
    ``CONFIG_INVALID`` for an address that cannot be listened on, or that others
    can reach with neither ``keys`` nor ``allow_remote``; ``ADDRESS_IN_USE``
    when somebody listens there already.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        max_frame_bytes: int,
        allow_remote: bool = False,
        keys: ListenKeys | None = None,
    ) -> None:
        wanted = parse_address(address, name)
        if not wanted.loopback and keys is None and not allow_remote:
            raise ProtocolError(
                Code.CONFIG_INVALID,
                name,
                "a loopback address, or --allow-key, or --allow-remote",
                repr(address),
            )
        if wanted.host == "localhost":  # libzmq does not resolve names when it binds
            wanted = Address("127.0.0.1", wanted.port)
        self.name = name
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        _configure(self._socket, wanted, max_frame_bytes)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._door = None if keys is None else guard(name, self._context, self._socket, keys)
        try:
            self._socket.bind(str(wanted))
        except zmq.ZMQError as error:
            self._destroy(linger=0)
            code = Code.ADDRESS_IN_USE if error.errno == errno.EADDRINUSE else Code.CONFIG_INVALID
            reason = error.strerror
            raise ProtocolError(
                code, name, "an address to listen on", f"{wanted}: {reason}"
            ) from error
        self.address = self._socket.get_string(zmq.LAST_ENDPOINT)

    def fileno(self) -> int:
        """See ``Link``."""
        return self._socket.fileno()

    def poll(self, limit: int) -> list[LinkEvent]:
        """See ``Link``; libzmq takes the peers' messages in turn."""
        events: list[LinkEvent] = []
        _receive_many(self._socket, limit, events)
        return events

    def pending(self) -> bool:
        """See ``Link``."""
        return bool(_events(self._socket) & zmq.POLLIN)

    def wake_at(self) -> int | None:
        """See ``Link``: libzmq keeps a listener going by itself."""
        return None

    def send(self, route: bytes, frames: Sequence[Buffer]) -> SendResult:
        """See ``Link``."""
        return _try_send(self._socket, (route, *frames))

    def close(self) -> None:
        """See ``Link``; waits at most ``LINGER_MS`` for what was sent."""
        self._destroy(linger=LINGER_MS)

    def _destroy(self, linger: int) -> None:
        if self._door is not None:
            self._door.stop()
        self._context.destroy(linger=linger)


class _Epoch:
    """One DEALER socket, its monitor, and the only connection it will ever have."""

    def __init__(
        self,
        number: int,
        context: "zmq.Context[zmq.Socket[bytes]]",
        socket: "zmq.Socket[bytes]",
        readable: select.epoll,
    ) -> None:
        self.socket = socket
        self.up = False
        self.up_since = 0
        self.ended = False
        self.refusal: str | None = None
        endpoint = f"inproc://monitor-{number}"  # libzmq frees a used name only later
        socket.monitor(endpoint, _WATCHED)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.set(zmq.LINGER, 0)
        self._monitor.connect(endpoint)
        readable.register(socket, select.EPOLLIN)
        readable.register(self._monitor, select.EPOLLIN)

    def read_monitor(self) -> bool:
        """Take what the IO thread tells; true when the connection came to stand."""
        rose = False
        try:
            while True:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
                if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                    self.up = rose = True
                    self.up_since = monotonic_ns()
                else:
                    self.ended = True
                    self.refusal = _REFUSALS.get(zmq.Event(event), self.refusal)
        except zmq.Again:
            return rose

    def pending(self) -> bool:
        """Whether the socket or its monitor can be read, or the end is still to be told."""
        return self.ended or any(
            bool(_events(socket) & zmq.POLLIN) for socket in (self.socket, self._monitor)
        )

    def close(self, readable: select.epoll, linger_ms: int) -> None:
        """Close both sockets."""
        readable.unregister(self.socket)
        readable.unregister(self._monitor)
        self.socket.disable_monitor()
        self._monitor.close()
        self.socket.close(linger_ms)


class ClientLink:
    """A connecting link (DEALER) with one route, ``b""``.

    It tries for ever, with a pause that doubles up to ``RECONNECT_MAX_MS`` and
    starts anew once a connection has lasted that long. With ``keys`` it speaks
    CURVE. Raises ``ProtocolError(CONFIG_INVALID)`` for an address that is not one.
    """

    def __init__(
        self, name: str, address: str, *, max_frame_bytes: int, keys: ConnectKeys | None = None
    ) -> None:
        self._target = parse_address(address, name)
        if self._target.port == 0 or self._target.host == "*":
            raise ProtocolError(Code.CONFIG_INVALID, name, "a host and a port", repr(address))
        self.name = name
        self.address = str(self._target)
        self._max_frame_bytes = max_frame_bytes
        self._keys = keys
        self._context = zmq.Context(io_threads=1)
        # One descriptor for the socket and its monitor, the same over all epochs.
        self._readable = select.epoll()
        self._epoch: _Epoch | None = None
        self._numbers = itertools.count()
        self._pause_ms = RECONNECT_MS
        self._wake_at: int | None = None
        self._connect()

    def fileno(self) -> int:
        """See ``Link``."""
        return self._readable.fileno()

    def poll(self, limit: int) -> list[LinkEvent]:
        """See ``Link``. The last messages of a connection come before its ``Down``."""
        events: list[LinkEvent] = []
        if self._epoch is not None:
            self._poll_epoch(self._epoch, limit, events)
        if self._wake_at is not None and monotonic_ns() >= self._wake_at:
            if self._epoch is None:
                self._connect()
            else:  # neither connected nor refused in time
                self._disconnect(self._epoch)
        return events

    def _poll_epoch(self, epoch: _Epoch, limit: int, events: list[LinkEvent]) -> None:
        if epoch.read_monitor():
            self._wake_at = None
            events.append(Up(b""))
        # Judged before reading: what comes after an end belongs to nobody.
        ended = epoch.ended
        drained = _receive_many(epoch.socket, limit, events) if epoch.up else True
        if ended and drained:
            if epoch.up:
                events.append(Down(b""))
            elif epoch.refusal is not None:
                events.append(Refused(b"", epoch.refusal))
            self._disconnect(epoch)

    def pending(self) -> bool:
        """See ``Link``."""
        return self._epoch is not None and self._epoch.pending()

    def wake_at(self) -> int | None:
        """See ``Link``: when to try again, or when to give this attempt up."""
        return self._wake_at

    def send(self, route: bytes, frames: Sequence[Buffer]) -> SendResult:
        """See ``Link``; the only route is ``b""``."""
        epoch = self._epoch
        if route or epoch is None or not epoch.up or epoch.ended:
            return SendResult.UNREACHABLE
        return _try_send(epoch.socket, frames)

    def close(self) -> None:
        """See ``Link``; waits at most ``LINGER_MS`` for what was sent."""
        epoch = self._epoch
        if epoch is not None:
            epoch.close(self._readable, LINGER_MS if epoch.up and not epoch.ended else 0)
            self._epoch = None
        self._context.destroy(linger=LINGER_MS)
        self._readable.close()

    def _connect(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        _configure(socket, self._target, self._max_frame_bytes)
        socket.set(zmq.RECONNECT_IVL, _NEVER_MS)
        socket.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        if self._keys is not None:
            trust(socket, self._keys)
        self._epoch = _Epoch(next(self._numbers), self._context, socket, self._readable)
        self._wake_at = monotonic_ns() + (CONNECT_MS + HANDSHAKE_MS) * _NS_PER_MS
        socket.connect(self.address)

    def _disconnect(self, epoch: _Epoch) -> None:
        """Give the socket up with all it holds, and plan the next one."""
        now = monotonic_ns()
        epoch.close(self._readable, 0)
        self._epoch = None
        if epoch.up and now - epoch.up_since >= RECONNECT_MAX_MS * _NS_PER_MS:
            self._pause_ms = RECONNECT_MS
        self._wake_at = now + self._pause_ms * _NS_PER_MS
        self._pause_ms = min(2 * self._pause_ms, RECONNECT_MAX_MS)
