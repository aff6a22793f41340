"""Fault kinds E (transport and memory), on real sockets.

Several tests speak ZMTP 3.0 themselves, over a plain TCP socket, to send what
no ZeroMQ library would. https://rfc.zeromq.org/spec/23/
"""

import asyncio
import os
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import uvloop

from proto_v2.effects import Effect, Peer
from proto_v2.errors import ExitCode
from transport.clock import monotonic_ns
from transport.driver import Driver
from transport.link import Down, Link, LinkEvent, Received, SendResult, Up
from transport.logs import Log
from transport.metrics import Metrics
from transport.zmq_link import ClientLink, ServerLink

FRAME_BYTES = 1 << 20
ROW_BYTES = 517_120
PATIENCE_S = 20
MORE, LONG, COMMAND = 1, 2, 4


def take(link: Link, count: int = 1) -> list[LinkEvent]:
    """The next ``count`` events, waiting by descriptor as the driver does."""
    events: list[LinkEvent] = []
    deadline = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while len(events) < count:
        assert monotonic_ns() < deadline, f"still waiting, with {events}"
        events += link.poll(8)
        if len(events) < count and not link.pending():
            select.select([link.fileno()], [], [], 0.1)
    return events


def frames_of(event: LinkEvent) -> list[bytes]:
    assert isinstance(event, Received), event
    return [bytes(frame) for frame in event.frames]


@pytest.fixture
def server() -> Iterator[ServerLink]:
    link = ServerLink("listen", "tcp://127.0.0.1:0", max_frame_bytes=FRAME_BYTES)
    yield link
    link.close()


@pytest.fixture
def client(server: ServerLink) -> Iterator[ClientLink]:
    link = ClientLink("connect", server.address, max_frame_bytes=FRAME_BYTES)
    assert take(link) == [Up(b"")]
    yield link
    link.close()


def zmtp_frame(flags: int, body: bytes) -> bytes:
    if len(body) > 255:
        return struct.pack(">BQ", flags | LONG, len(body)) + body
    return struct.pack("BB", flags, len(body)) + body


ZMTP_HELLO = (
    b"\xff" + bytes(8) + b"\x7f" + b"\3\0" + b"NULL".ljust(20, b"\0") + b"\0" + bytes(31)
) + zmtp_frame(COMMAND, b"\5READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER")


@pytest.fixture
def raw(server: ServerLink) -> Iterator[socket.socket]:
    host, port = server.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield connection


def shake_hands(connection: socket.socket, *, segment: int = 4096) -> None:
    """Send the greeting and READY in segments; wait for the peer's READY."""
    for start in range(0, len(ZMTP_HELLO), segment):
        connection.sendall(ZMTP_HELLO[start : start + segment])
    heard = b""
    while b"READY" not in heard:
        heard += connection.recv(4096)


def ended(connection: socket.socket) -> bool:
    """Whether the peer closes the connection; takes whatever it still says."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_e1_a_large_frame_is_sent_as_it_was_when_its_buffer_is_reused(
    server: ServerLink, client: ClientLink
) -> None:
    buffer = bytearray(ROW_BYTES)
    view = memoryview(buffer)
    sent = 40
    for index in range(sent):
        buffer[:] = bytes([index]) * ROW_BYTES
        result = client.send(b"", [b"header", view, struct.pack("<Q", index)])
        buffer[:] = b"\xff" * ROW_BYTES  # at once, while libzmq may still read
        assert result is SendResult.SENT
    for index, event in enumerate(take(server, sent)):
        assert frames_of(event) == [
            b"header",
            bytes([index]) * ROW_BYTES,
            struct.pack("<Q", index),
        ]


def test_e1_views_of_immutable_bytes_are_whole_too(server: ServerLink, client: ClientLink) -> None:
    rows = bytes(range(256)) * (2 * ROW_BYTES // 256)
    client.send(b"", [memoryview(rows)[ROW_BYTES:], memoryview(rows)[: 2 * 70_000 : 2], b"end"])
    (event,) = take(server)
    assert frames_of(event) == [rows[ROW_BYTES:], rows[: 2 * 70_000 : 2], b"end"]


def test_e3_a_request_without_an_answer_does_not_block_the_next(
    server: ServerLink, client: ClientLink
) -> None:
    for request in (b"never answered", b"nor this", b"answered"):
        assert client.send(b"", [request]) is SendResult.SENT
    last = take(server, 3)[-1]
    server.send(last.route, [b"answer"])
    assert frames_of(take(client)[0]) == [b"answer"]


class Fragile:
    """Breaks on the message ``break``; takes every other."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        self.received.append(bytes(frames[0]))
        if self.received[-1] == b"break":
            raise KeyError("a state that cannot be")

    def link_up(self, peer: Peer, now_ns: int) -> None: ...

    def link_down(self, peer: Peer, now_ns: int) -> None: ...

    def completed(self, job_id: int, result: object, now_ns: int) -> None: ...

    def expire(self, now_ns: int) -> None: ...

    def next_deadline(self) -> int | None:
        return None

    def effects(self) -> list[Effect]:
        return []


def test_e6_a_dead_receive_loop_is_not_ready_and_ends_the_process(
    server: ServerLink, client: ClientLink, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    log = Log("fragile", file=path, format="json")
    metrics = Metrics()
    machine = Fragile()
    driver = Driver(machine, [server], print, metrics=metrics, log=log, signals=())
    client.send(b"", [b"f"] * 50)  # one bad message does not end the service
    client.send(b"", [b"fine"])
    client.send(b"", [b"break"])
    client.send(b"", [b"not read any more"])

    async def serve() -> int:
        async with asyncio.timeout(PATIENCE_S):
            return await driver.run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(serve()) == ExitCode.INVARIANT
    log.close()
    assert machine.received == [b"fine", b"break"]
    assert not driver.ready
    counts = metrics.snapshot()
    assert counts["pp1_ready"] == 0
    assert counts['pp1_link_dropped_total{link="listen",reason="frame_count"}'] == 1
    assert "a state that cannot be" in path.read_text()
    assert take(client) == [Down(b"")]  # the peers notice as well


def virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("announced", [FRAME_BYTES + 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
def test_e8_an_announced_size_beyond_the_bound_gets_no_memory(
    server: ServerLink, client: ClientLink, raw: socket.socket, announced: int
) -> None:
    before = virtual_bytes()
    shake_hands(raw)
    raw.sendall(struct.pack(">BQ", LONG, announced) + b"the beginning")
    assert ended(raw)
    assert virtual_bytes() - before < 1 << 30
    client.send(b"", [b"served"])
    assert [frames_of(event) for event in take(server)] == [[b"served"]]


@pytest.mark.parametrize(
    "begun",
    [
        zmtp_frame(MORE, b"header"),
        zmtp_frame(MORE, b"header") + zmtp_frame(MORE, bytes(ROW_BYTES)),
        zmtp_frame(MORE, b"header") + zmtp_frame(0, bytes(ROW_BYTES))[:-1],
        zmtp_frame(MORE, b"header") + struct.pack(">BQ", LONG, ROW_BYTES)[:4],
    ],
    ids=["after a frame", "after the row", "a byte short", "within a length"],
)
def test_e11_a_part_of_a_message_is_never_seen(
    server: ServerLink, client: ClientLink, raw: socket.socket, begun: bytes
) -> None:
    shake_hands(raw)
    raw.sendall(zmtp_frame(0, b"whole") + begun)
    (whole,) = take(server)
    assert frames_of(whole) == [b"whole"]
    raw.close()
    # The close is known when the route is gone; then the part must be, too.
    deadline = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while server.send(whole.route, [b"?"]) is not SendResult.UNREACHABLE:
        assert server.poll(8) == []
        assert monotonic_ns() < deadline
        select.select([server.fileno()], [], [], 0.01)
    assert server.poll(8) == []
    client.send(b"", [b"served"])
    assert [frames_of(event) for event in take(server)] == [[b"served"]]


def test_e12_framing_does_not_depend_on_segments(server: ServerLink, raw: socket.socket) -> None:
    message = zmtp_frame(MORE, b"header") + zmtp_frame(MORE, b"") + zmtp_frame(0, bytes(300))
    shake_hands(raw, segment=1)
    for byte in message:
        raw.send(bytes([byte]))
    raw.sendall(message * 3 + zmtp_frame(0, bytes(ROW_BYTES)))
    events = [frames_of(event) for event in take(server, 5)]
    assert events == [[b"header", b"", bytes(300)]] * 4 + [[bytes(ROW_BYTES)]]


def test_e12_other_protocols_get_nothing(
    server: ServerLink, client: ClientLink, raw: socket.socket
) -> None:
    raw.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(200))
    assert ended(raw)
    client.send(b"", [b"served"])
    assert [frames_of(event) for event in take(server)] == [[b"served"]]
