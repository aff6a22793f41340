"""ZeroMQ links on loopback: what arrives, what is refused, and when a link is down."""

import select
from collections.abc import Callable, Iterator

import pytest
import zmq

from proto_v2.errors import Code, ProtocolError
from transport import zmq_link
from transport.clock import monotonic_ns
from transport.link import Down, Link, LinkEvent, Overlong, Received, SendResult, Up
from transport.zmq_link import ClientLink, ServerLink, parse_address

FRAME_BYTES = 1 << 20
PATIENCE_MS = 20_000


def listen(address: str = "tcp://127.0.0.1:0") -> ServerLink:
    return ServerLink("listen", address, max_frame_bytes=FRAME_BYTES)


def connect(address: str) -> ClientLink:
    return ClientLink("connect", address, max_frame_bytes=FRAME_BYTES)


def events_until(link: Link, enough: Callable[[list[LinkEvent]], bool]) -> list[LinkEvent]:
    """Poll as the driver does, by descriptor, ``pending`` and ``wake_at``."""
    events: list[LinkEvent] = []
    deadline = monotonic_ns() + PATIENCE_MS * 1_000_000
    while not enough(events):
        now = monotonic_ns()
        assert now < deadline, f"still waiting, with {events}"
        events += link.poll(8)
        if not link.pending() and not enough(events):
            wake = link.wake_at()
            wait_ms = 1_000 if wake is None else max(0, (wake - now) // 1_000_000 + 1)
            select.select([link.fileno()], [], [], min(wait_ms, 1_000) / 1_000)
    return events


def take(link: Link, count: int = 1) -> list[LinkEvent]:
    return events_until(link, lambda events: len(events) >= count)


def frames_of(event: LinkEvent) -> list[bytes]:
    assert isinstance(event, Received), event
    return [bytes(frame) for frame in event.frames]


@pytest.fixture
def server() -> Iterator[ServerLink]:
    link = listen()
    yield link
    link.close()


@pytest.fixture
def client(server: ServerLink) -> Iterator[ClientLink]:
    link = connect(server.address)
    assert take(link) == [Up(b"")]
    yield link
    link.close()


def test_a_message_goes_there_and_back(server: ServerLink, client: ClientLink) -> None:
    assert client.send(b"", [b"head", b"", bytes(70_000)]) is SendResult.SENT
    (request,) = take(server)
    assert frames_of(request) == [b"head", b"", bytes(70_000)]
    assert server.send(request.route, [memoryview(b"reply")]) is SendResult.SENT
    (reply,) = take(client)
    assert reply.route == b""
    assert frames_of(reply) == [b"reply"]


def test_received_frames_are_read_only_and_outlive_the_link() -> None:
    server = listen()
    client = connect(server.address)
    take(client)
    client.send(b"", [b"x" * 100_000])
    (event,) = take(server)
    client.close()
    server.close()
    assert isinstance(event, Received)
    assert event.frames[0].readonly
    assert event.frames[0] == b"x" * 100_000


def test_each_connection_has_its_own_route(server: ServerLink) -> None:
    clients = [connect(server.address) for _ in range(3)]
    for index, client in enumerate(clients):
        take(client)
        client.send(b"", [bytes([index])])
    routes = {event.route: frames_of(event) for event in take(server, 3)}
    assert sorted(routes.values()) == [[b"\0"], [b"\1"], [b"\2"]]
    for client in clients:
        client.close()


def test_poll_takes_no_more_than_its_limit(server: ServerLink, client: ClientLink) -> None:
    for index in range(20):
        client.send(b"", [bytes([index])])
    events = take(server)
    while len(events) < 20:
        select.select([server.fileno()], [], [], 0 if server.pending() else 1)
        batch = server.poll(3)
        assert len(batch) <= 3
        events += batch
    assert [frames_of(event) for event in events] == [[bytes([index])] for index in range(20)]
    assert not server.pending()


def test_an_unknown_route_is_unreachable(server: ServerLink, client: ClientLink) -> None:
    assert server.send(b"nobody", [b"x"]) is SendResult.UNREACHABLE
    assert client.send(b"other", [b"x"]) is SendResult.UNREACHABLE


def test_a_closed_client_becomes_unreachable(server: ServerLink) -> None:
    client = connect(server.address)
    take(client)
    client.send(b"", [b"hello"])
    (event,) = take(server)
    client.close()
    deadline = monotonic_ns() + PATIENCE_MS * 1_000_000
    while server.send(event.route, [b"x"]) is not SendResult.UNREACHABLE:
        assert monotonic_ns() < deadline
        select.select([server.fileno()], [], [], 0.05)


def test_a_peer_that_does_not_read_makes_its_route_full_and_no_other(server: ServerLink) -> None:
    stalled, reading = connect(server.address), connect(server.address)
    for client, word in ((stalled, b"stalled"), (reading, b"reading")):
        take(client)
        client.send(b"", [word])
    routes = {frames_of(event)[0]: event.route for event in take(server, 2)}
    payload = bytes(FRAME_BYTES)
    results = [server.send(routes[b"stalled"], [payload]) for _ in range(600)]
    assert results[0] is SendResult.SENT
    assert results[-1] is SendResult.FULL
    assert server.send(routes[b"reading"], [b"still here"]) is SendResult.SENT
    assert frames_of(take(reading)[0]) == [b"still here"]
    stalled.close()
    reading.close()


@pytest.mark.parametrize("count", [4, 50])
def test_too_many_frames_are_dropped_whole(
    server: ServerLink, client: ClientLink, count: int
) -> None:
    client.send(b"", [b"f"] * count)
    client.send(b"", [b"f"] * 3)
    overlong, good = take(server, 2)
    assert overlong == Overlong(good.route, count)
    assert frames_of(good) == [b"f"] * 3
    server.send(good.route, [b"f"] * count)
    server.send(good.route, [b"f"])
    overlong, good = take(client, 2)
    assert overlong == Overlong(b"", count)
    assert frames_of(good) == [b"f"]


def test_an_oversize_frame_ends_only_its_own_connection(server: ServerLink) -> None:
    big, small = connect(server.address), connect(server.address)
    take(big)
    take(small)
    assert big.send(b"", [bytes(FRAME_BYTES + 1)]) is SendResult.SENT
    assert take(big) == [Down(b"")]
    small.send(b"", [b"fine"])
    assert frames_of(take(server)[0]) == [b"fine"]
    big.close()
    small.close()


def test_reconnecting_is_down_then_up_and_nothing_is_delivered_late() -> None:
    first = listen()
    client = connect(first.address)
    take(client)
    client.send(b"", [b"hello"])
    (hello,) = take(first)
    # Nobody reads these: they stay in the queues of the first connection.
    assert {client.send(b"", [b"late", bytes(100_000)]) for _ in range(100)} == {SendResult.SENT}
    first.close()
    client.send(b"", [b"late"])  # the client may not know yet
    second = listen(first.address)
    # As long as nobody polls the client, nobody connects again behind its back.
    select.select([], [], [], 0.4)
    assert client.send(b"", [b"late"]) is not SendResult.UNREACHABLE
    select.select([], [], [], 0.1)
    assert second.poll(8) == []
    assert take(client) == [Down(b"")]
    assert client.wake_at() is not None
    assert client.send(b"", [b"late"]) is SendResult.UNREACHABLE
    assert take(client) == [Up(b"")]
    assert client.wake_at() is None
    assert client.send(b"", [b"new"]) is SendResult.SENT
    (event,) = take(second)
    assert frames_of(event) == [b"new"]
    assert second.poll(8) == []
    # The route of the earlier connection leads nowhere, not to the new one.
    assert second.send(hello.route, [b"for the old one"]) is SendResult.UNREACHABLE
    client.close()
    second.close()


def test_what_came_before_the_end_is_received_before_down(
    server: ServerLink, client: ClientLink
) -> None:
    client.send(b"", [b"hello"])
    (hello,) = take(server)
    for index in range(20):
        server.send(hello.route, [bytes([index])])
    server.close()
    events = take(client, 21)
    assert [frames_of(event) for event in events[:-1]] == [[bytes([index])] for index in range(20)]
    assert events[-1] == Down(b"")


def test_an_end_that_does_not_fit_the_limit_is_pending(
    server: ServerLink, client: ClientLink
) -> None:
    client.send(b"", [b"hello"])
    (hello,) = take(server)
    for index in range(8):
        server.send(hello.route, [bytes([index])])
    server.close()
    events = take(client, 8)
    deadline = monotonic_ns() + PATIENCE_MS * 1_000_000
    while Down(b"") not in events:
        assert monotonic_ns() < deadline
        if client.pending():
            events += client.poll(8)
        select.select([client.fileno()], [], [], 0.01)
    assert len(events) == 9


def test_a_client_waits_for_its_server() -> None:
    placeholder = listen()
    address = placeholder.address
    placeholder.close()
    client = connect(address)
    events_until(client, lambda _: client.wake_at() is not None and not client.pending())
    assert client.send(b"", [b"x"]) is SendResult.UNREACHABLE
    server = listen(address)
    assert take(client) == [Up(b"")]
    client.close()
    server.close()


def test_the_pause_between_attempts_doubles_up_to_its_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placeholder = listen()
    address = placeholder.address
    placeholder.close()
    now = 0
    monkeypatch.setattr(zmq_link, "monotonic_ns", lambda: now)
    client = connect(address)
    pauses: list[int] = []
    while len(pauses) < 7:
        attempt_until = client.wake_at()
        while client.wake_at() == attempt_until:  # until it is refused
            select.select([client.fileno()], [], [], 5)
            assert client.poll(8) == []
        wake = client.wake_at()
        assert wake is not None
        pauses.append((wake - now) // 1_000_000)
        now = wake
        assert client.poll(8) == []  # the next attempt
    assert pauses == [100, 200, 400, 800, 1_600, 2_000, 2_000]
    client.close()


def test_a_silent_listener_is_given_up() -> None:
    """A port that accepts and never answers the ZMTP greeting."""
    with zmq.Context() as context, context.socket(zmq.STREAM) as mute:
        port = mute.bind_to_random_port("tcp://127.0.0.1")
        client = connect(f"tcp://127.0.0.1:{port}")
        wake = client.wake_at()
        assert wake is not None
        assert client.poll(8) == []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(zmq_link, "monotonic_ns", lambda: wake)
            assert client.poll(8) == []
        later = client.wake_at()
        assert later == wake + zmq_link.RECONNECT_MS * 1_000_000
        client.close()


def test_a_port_in_use_is_refused_in_one_line(server: ServerLink) -> None:
    with pytest.raises(ProtocolError) as caught:
        listen(server.address)
    assert caught.value.code is Code.ADDRESS_IN_USE
    assert caught.value.field == "listen"
    assert server.address in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_address_of_another_host_cannot_be_listened_on() -> None:
    with pytest.raises(ProtocolError) as caught:
        ServerLink("listen", "tcp://192.0.2.1:5600", max_frame_bytes=1, allow_remote=True)
    assert caught.value.code is Code.CONFIG_INVALID


@pytest.mark.parametrize(
    "text",
    [
        "",
        "127.0.0.1:5600",
        "ipc:///tmp/x",
        "tcp://127.0.0.1",
        "tcp://:5600",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:-1",
        "tcp://127.0.0.1:٣",
        "tcp://::1:5600",
        "tcp://[127.0.0.1]:5600",
        "tcp://a b:5600",
        "tcp://eth0;127.0.0.1:5600",
    ],
)
def test_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_address(text, "listen")
    assert (caught.value.code, caught.value.field) == (Code.CONFIG_INVALID, "listen")


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("tcp://127.0.0.1:5600", True),
        ("tcp://127.8.8.8:5600", True),
        ("tcp://localhost:5600", True),
        ("tcp://[::1]:5600", True),
        ("tcp://*:5600", False),
        ("tcp://0.0.0.0:5600", False),
        ("tcp://[::]:5600", False),
        ("tcp://192.168.1.2:5600", False),
        ("tcp://spark-1:5600", False),
    ],
)
def test_addresses(text: str, loopback: bool) -> None:
    address = parse_address(text, "listen")
    assert str(address) == text
    assert address.loopback is loopback


@pytest.mark.parametrize("text", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:*", "tcp://*:5600"])
def test_a_client_needs_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        connect(text)
    assert caught.value.code is Code.CONFIG_INVALID


def test_localhost_can_be_listened_on() -> None:
    server = listen("tcp://localhost:*")
    assert server.address.startswith("tcp://127.0.0.1:")
    server.close()
