"""Real sessions recorded without privileges: a proxy that writes down what it passes on.

The packets are those that a recording of the loopback interface would have, one
for each piece that was read. ``pcap`` and ``pcapng`` make files of them.
"""

import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from types import TracebackType

from pp1.client import Client
from pp1.processes import Daemon
from proto_v2.messages import Finished
from proto_v2.representation import Representation

FIN, SYN, ACK = 1, 2, 16
_PIECE = 32_000
_START_S = 60.0
# No deadline of a round passes on a slow machine, and no peer is taken for lost.
_PATIENT = ["--silence-ms", "60000"]
_PATIENT_ZERO = ["--step-ms", "20000", "--pair-ms", "20000", "--target-ms", "30000"]


@dataclass(frozen=True)
class Packet:
    """One TCP segment between two ports of 127.0.0.1."""

    time_ns: int
    source: int
    destination: int
    flags: int
    sequence: int
    acknowledged: int
    data: bytes = b""

    def tcp(self) -> bytes:
        head = struct.pack(
            ">HHIIBBHHH",
            self.source,
            self.destination,
            self.sequence % (1 << 32),
            self.acknowledged % (1 << 32),
            5 << 4,
            self.flags,
            65_535,
            0,
            0,
        )
        return head + self.data

    def ipv4(self) -> bytes:
        tcp = self.tcp()
        host = bytes([127, 0, 0, 1])
        return (
            struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + 2 * host + tcp
        )

    def ipv6(self) -> bytes:
        tcp = self.tcp()
        host = bytes(15) + b"\x01"
        return struct.pack(">IHBB", 6 << 28, len(tcp), 6, 64) + 2 * host + tcp

    def ethernet(self) -> bytes:
        return bytes(12) + b"\x08\x00" + self.ipv4()


def pcap(packets: Sequence[Packet], order: str = "<", *, nanoseconds: bool = False) -> bytes:
    """A pcap file of Ethernet frames."""
    magic, tick_ns = (0xA1B23C4D, 1) if nanoseconds else (0xA1B2C3D4, 1000)
    parts = [struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 262_144, 1)]
    for packet in packets:
        frame = packet.ethernet()
        seconds, rest = divmod(packet.time_ns, 1_000_000_000)
        parts.append(struct.pack(order + "IIII", seconds, rest // tick_ns, len(frame), len(frame)))
        parts.append(frame)
    return b"".join(parts)


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """One block of a pcapng file."""
    body += bytes(-len(body) % 4)
    size = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + size + body + size


def pcapng(packets: Sequence[tuple[int, bytes]], link: int, order: str = "<") -> bytes:
    """A pcapng file of (time in ns, packet) on one interface with nanoseconds."""
    section = struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1)
    option = struct.pack(order + "HHB3xHH", 9, 1, 9, 0, 0)
    parts = [
        block(0x0A0D0D0A, section, order),
        block(5, b"statistics, which nobody reads", order),
        block(1, struct.pack(order + "HHI", link, 0, 0) + option, order),
    ]
    for time_ns, packet in packets:
        head = struct.pack(
            order + "IIIII", 0, time_ns >> 32, time_ns & 0xFFFF_FFFF, len(packet), len(packet)
        )
        parts.append(block(6, head + packet, order))
    return b"".join(parts)


class Recorder:
    """Packets in the order in which they were seen, from any number of proxies."""

    def __init__(self) -> None:
        self.packets: list[Packet] = []
        self._lock = threading.Lock()

    def add(
        self, source: "End", destination: "End", flags: int, data: bytes = b"", length: int = 0
    ) -> None:
        with self._lock:
            self.packets.append(
                Packet(
                    time.time_ns(),
                    source.port,
                    destination.port,
                    flags,
                    source.sent,
                    destination.sent if flags & ACK else 0,
                    data,
                )
            )
            source.sent += len(data) + length


@dataclass
class End:
    """One end of a recorded connection: its port and its next sequence number."""

    port: int
    sent: int


class Proxy:
    """Listens on loopback and passes every connection on to an address, recording it."""

    def __init__(self, recorder: Recorder, address: str) -> None:
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._target = (host, int(port))
        self._recorder = recorder
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self._port}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                caller, (_, port) = self._listener.accept()
            except OSError:  # closed
                return
            called = socket.create_connection(self._target)
            self._sockets += [caller, called]
            # Far from zero, so that sequence numbers wrap around.
            ends = End(port, (1 << 32) - 500), End(self._port, (1 << 32) - 900)
            self._recorder.add(ends[0], ends[1], SYN, length=1)
            self._recorder.add(ends[1], ends[0], SYN | ACK, length=1)
            self._recorder.add(ends[0], ends[1], ACK)
            for way in ((caller, called, *ends), (called, caller, *reversed(ends))):
                thread = threading.Thread(target=self._pass_on, args=way)
                thread.start()
                self._threads.append(thread)

    def _pass_on(
        self, source: socket.socket, destination: socket.socket, sender: End, receiver: End
    ) -> None:
        with suppress(OSError):  # either end has gone away
            while data := source.recv(_PIECE):
                self._recorder.add(sender, receiver, ACK, data)
                destination.sendall(data)
        self._recorder.add(sender, receiver, FIN | ACK, length=1)
        with suppress(OSError):
            destination.shutdown(socket.SHUT_WR)

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Waking a blocked accept needs more than closing its descriptor.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(10)
        for end in self._sockets:
            end.close()


def record_session() -> list[Packet]:
    """Three daemons with the exact test engines, and requests of every kind."""
    engine = ["--engine", "markov", *_PATIENT]
    ranks = [*engine, "--draft-engine", "markov"]
    recorder = Recorder()
    with ExitStack() as stack:

        def start(name: str, module: str, args: list[str], link: str) -> str:
            daemon = Daemon(name, module, args)
            stack.callback(daemon.stop)
            return stack.enter_context(Proxy(recorder, daemon.address(link, _START_S))).address

        anywhere = "tcp://127.0.0.1:*"
        worker = start("worker", "worker", ["--listen", anywhere, *engine], "leader")
        pair = start("rank 1", "spark_rank", ["--rank", "1", "--pair", anywhere, *ranks], "pair")
        rank_zero = ["--rank", "0", "--pair", pair, "--worker", worker, "--requests", anywhere]
        rank_zero += [*ranks, *_PATIENT_ZERO]
        requests = start("rank 0", "spark_rank", rank_zero, "requests")
        with Client(requests) as client:
            client.wait_ready(_START_S, worker=True)
            for representation, depth in (
                (Representation.SPARSE_F32, 5),
                (Representation.DENSE_F32, 3),
                (Representation.SPARSE_F32, 0),
            ):
                key = client.start(
                    [1, 2, 3],
                    tokens_max=12,
                    temperature=1.0,
                    depth=depth,
                    representation=representation,
                    support=4,
                    seed=bytes(32),
                )
                assert isinstance(list(client.stream(key, _START_S))[-1], Finished)
    return recorder.packets
