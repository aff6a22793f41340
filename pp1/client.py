"""A client of rank 0's request endpoint, blocking, for the command line and tests."""

import select
import time
from collections.abc import Iterator, Sequence
from typing import Final

from proto_v2.codec import decode, encode
from proto_v2.errors import Code, ProtocolError, known_code
from proto_v2.messages import (
    Abort,
    AnyMessage,
    Failed,
    Finished,
    Generate,
    Info,
    Message,
    Nak,
    Query,
    Tokens,
    tokens_to_bytes,
)
from proto_v2.representation import Representation
from transport.link import Down, Received, Refused, Up
from transport.security import ConnectKeys
from transport.service import frame_bytes, fresh_id
from transport.zmq_link import ClientLink

_QUERY_EVERY_S: Final = 0.2


class Client:
    """Talks to one rank 0. Use as a context manager; requests are told apart by key."""

    def __init__(self, address: str, keys: ConnectKeys | None = None) -> None:
        """Begin to connect, with ``keys`` by CURVE. Raises ``CONFIG_INVALID``."""
        self.address = address
        self._link = ClientLink("connect", address, max_frame_bytes=frame_bytes(1), keys=keys)
        self._boot_id = fresh_id()
        self._up = False
        self._key = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; rank 0 cancels what is still running when it notices."""
        self._link.close()

    def _send(self, message: Message) -> None:
        self._link.send(b"", encode(message, self._boot_id, 0))

    def messages(self, silence_s: float) -> Iterator[AnyMessage]:
        """Every message that comes, until nothing has come for ``silence_s``.

        Raises:
            ProtocolError: PEER_UNREACHABLE when the connection breaks.
        """
        deadline = time.monotonic() + silence_s
        while True:
            for event in self._link.poll(64):
                if isinstance(event, Up):
                    self._up = True
                elif isinstance(event, Down):
                    if self._up:
                        raise self._unreachable("a connection that lasts")
                elif isinstance(event, Refused):
                    raise self._unreachable(f"a listener that lets us in ({event.reason})")
                elif isinstance(event, Received):
                    yield decode(event.frames).message
                    deadline = time.monotonic() + silence_s
            left = deadline - time.monotonic()
            if left <= 0:
                return
            if not self._link.pending():
                wake = self._link.wake_at()
                if wake is not None:
                    left = min(left, max(0.0, wake / 1e9 - time.monotonic()))
                select.select([self._link.fileno()], [], [], left)

    def _unreachable(self, wanted: str) -> ProtocolError:
        return ProtocolError(Code.PEER_UNREACHABLE, "connect", wanted, self.address)

    def wait_ready(self, timeout_s: float, *, worker: bool = False) -> Info:
        """Wait until the pair (and, if asked, the worker) is agreed; what it serves.

        Raises:
            ProtocolError: PEER_UNREACHABLE after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._up:
                self._send(Query())
            for message in self.messages(_QUERY_EVERY_S):
                if isinstance(message, Info):
                    if message.pair_ready and (message.worker_ready or not worker):
                        return message
                    break
        raise self._unreachable(f"a rank 0 that is ready within {timeout_s:g} s")

    def start(
        self,
        prompt: Sequence[int],
        *,
        tokens_max: int,
        temperature: float,
        draft_temperature: float | None = None,
        seed: bytes = b"",
        stop_tokens: Sequence[int] = (),
        depth: int = 5,
        representation: Representation = Representation.SPARSE_F32,
        support: int = 32,
    ) -> int:
        """Send one request; the key under which its answers come."""
        self._key += 1
        self._send(
            Generate(
                key=self._key,
                prompt=tokens_to_bytes(prompt),
                tokens_max=tokens_max,
                temperature=temperature,
                draft_temperature=draft_temperature or proposal_temperature(temperature),
                seed=seed,
                stop_tokens=tuple(stop_tokens),
                depth=depth,
                representation=int(representation),
                support=support,
            )
        )
        return self._key

    def abort(self, key: int) -> None:
        """Give a request up."""
        self._send(Abort(key))

    def stream(self, key: int, silence_s: float) -> Iterator[Tokens | Finished]:
        """The answers of one request, to its end.

        Raises:
            ProtocolError: the request's own error, or PEER_UNREACHABLE when
                nothing comes for ``silence_s``.
        """
        for message in self.messages(silence_s):
            if isinstance(message, Failed) and message.key in (key, 0):
                raise ProtocolError(
                    known_code(message.code, Code.PEER_UNREACHABLE),
                    message.field,
                    message.wanted,
                    message.got,
                )
            if isinstance(message, Nak):
                raise ProtocolError(
                    known_code(message.code, Code.PEER_UNREACHABLE),
                    message.field,
                    message.wanted,
                    message.got,
                )
            if isinstance(message, (Tokens, Finished)) and message.key == key:
                yield message
                if isinstance(message, Finished):
                    return
        raise self._unreachable(f"an answer within {silence_s:g} s")


def proposal_temperature(target_temperature: float) -> float:
    """The drafter's temperature for a target's: the same, and near-greedy for greedy."""
    return target_temperature if target_temperature > 0 else 0.05
