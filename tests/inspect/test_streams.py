"""ZMTP streams and captures: cut anywhere, reordered, repeated, with gaps, and hostile."""

import io
import random
import struct
from collections.abc import Iterable

import pytest

from pp1.inspect import capture, zmtp
from pp1.inspect.capture import segments
from pp1.inspect.connections import Connections, Seen
from pp1.inspect.link import Link
from pp1.inspect.message import Inspected
from pp1.inspect.stream import Thing, Unreadable, back_to_back, connection
from proto_v2 import limits
from proto_v2.codec import encode
from proto_v2.errors import Code
from proto_v2.messages import Ping, Pong
from tests.inspect.recording import ACK, Packet, block, pcap, pcapng
from tests.inspect.samples import (
    MESSAGES,
    NAMES,
    SECOND,
    STREAM,
    framed,
    greeting,
    packets,
)
from tests.proto_samples import BOOT, EPOCH


def names(things: Iterable[Thing]) -> list[str]:
    return [thing.name for thing in things if isinstance(thing, Inspected)]


def feed(pieces: Iterable[bytes], *, whole: bool = True) -> list[zmtp.Event]:
    reader = zmtp.Reader(whole=whole)
    return [event for piece in pieces for event in reader.feed(piece)]


def test_a_stream_may_be_cut_anywhere() -> None:
    at_once = feed([STREAM])
    assert isinstance(at_once[0], zmtp.Greeting)
    assert at_once[0].mechanism == "NULL"
    assert isinstance(at_once[1], zmtp.Command)
    assert zmtp.properties(at_once[1].data) == [("Socket-Type", b"DEALER")]
    assert [len(e.frames) for e in at_once if isinstance(e, zmtp.Frames)] == [2, 2, 3, 2]
    for size in (1, 2, 3, 7, 63, 64, 65):
        assert feed(STREAM[at : at + size] for at in range(0, len(STREAM), size)) == at_once


def test_offsets_are_those_of_the_stream() -> None:
    for event in feed([STREAM]):
        if isinstance(event, zmtp.Frames):
            assert STREAM[event.offset : event.offset + 6] == b"\x01\x40PP1q"


@pytest.mark.parametrize("mechanism", [b"CURVE", b"GSSAPI", b"\xff"])
def test_what_is_encrypted_is_left_alone(mechanism: bytes) -> None:
    (only,) = feed([greeting(mechanism) + framed([b"x"])])
    assert isinstance(only, zmtp.Greeting)


def test_an_older_transport_is_left_alone() -> None:
    (only,) = feed([greeting(major=2) + framed(MESSAGES[0])])
    assert isinstance(only, zmtp.Greeting)
    assert only.version == (2, 1)


def test_another_protocol_is_left_alone() -> None:
    assert feed([b"GET / HTTP/1.1\r\n", framed(MESSAGES[0])]) == []


def test_reading_begins_at_the_next_header() -> None:
    late = STREAM[STREAM.index(b"\x01\x40PP1q") + 3 :]
    first, *rest = feed([late], whole=False)
    assert isinstance(first, zmtp.Remark)
    assert not first.fault
    assert [type(event) for event in rest] == [zmtp.Frames] * 3


@pytest.mark.parametrize(
    "wrong",
    [
        b"\x08\x00",
        b"\x05\x01x",
        b"\x02" + struct.pack(">Q", limits.PAYLOAD_BYTES_MAX + 1),
        b"\x02" + b"\xff" * 8,
        b"\x06" + struct.pack(">Q", (1 << 16) + 1),
    ],
)
def test_an_impossible_frame_costs_one_remark(wrong: bytes) -> None:
    reader = zmtp.Reader(whole=True)
    events = list(reader.feed(greeting() + wrong))
    assert isinstance(events[1], zmtp.Remark)
    assert events[1].fault
    assert list(reader.feed(bytes(100_000))) == []
    assert reader.buffered < 64
    after = list(reader.feed(framed(MESSAGES[0])))
    assert [type(event) for event in after] == [zmtp.Remark, zmtp.Frames]


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x05PING"])
def test_a_command_without_a_name(data: bytes) -> None:
    (_, remark) = feed([greeting() + bytes([4, len(data)]) + data])
    assert isinstance(remark, zmtp.Remark)
    assert remark.fault


def test_a_message_that_never_ends_keeps_few_frames() -> None:
    reader = zmtp.Reader(whole=True)
    list(reader.feed(greeting()))
    for _ in range(1000):
        assert list(reader.feed(b"\x01\x40" + bytes(64))) == []
    assert reader.buffered == 4 * 64
    (event,) = reader.feed(b"\x00\x00")
    assert isinstance(event, zmtp.Frames)
    assert len(event.frames) == 4


def test_one_direction_of_a_connection_is_a_stream() -> None:
    assert names(connection(io.BytesIO(STREAM), Link())) == NAMES
    *_, last = connection(io.BytesIO(STREAM[:-1]), Link())
    assert isinstance(last, zmtp.Remark)
    assert last.fault


def test_messages_back_to_back() -> None:
    raw = b"".join(bytes(frame) for frames in MESSAGES for frame in frames)
    things = list(back_to_back(io.BytesIO(raw), Link()))
    assert names(things) == NAMES
    assert [raw[thing.offset : thing.offset + 4] for thing in things] == [b"PP1q"] * 4
    for end in range(1, len(raw)):
        cut = list(back_to_back(io.BytesIO(raw[:end]), Link()))
        whole = sum(isinstance(thing, Inspected) and not thing.broken for thing in cut)
        ends = [thing.offset for thing in things[1:]] + [len(raw)]
        assert whole == sum(place <= end for place in ends)


def test_what_is_no_message_ends_the_listing() -> None:
    raw = b"".join(bytes(frame) for frame in MESSAGES[3])
    first, second = back_to_back(io.BytesIO(raw + bytes(1000)), Link())
    assert isinstance(first, Inspected) and isinstance(second, Inspected)
    assert (first.broken, [fault.code for fault in second.broken]) == ([], [Code.NOT_OURS])


# --- captures --------------------------------------------------------------------------------


def read(file: bytes) -> list[Seen]:
    connections = Connections()
    seen = [one for segment in segments(io.BytesIO(file)) for one in connections.feed(segment)]
    return [*seen, *connections.end()]


def read_names(file: bytes) -> list[str]:
    return names(seen.what for seen in read(file))


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("nanoseconds", [False, True])
def test_a_pcap_of_either_byte_order(order: str, nanoseconds: bool) -> None:
    seen = read(pcap(packets(STREAM), order, nanoseconds=nanoseconds))
    assert names(one.what for one in seen) == NAMES
    assert {str(one.source) for one in seen} == {"127.0.0.1:1000"}
    assert {str(one.destination) for one in seen} == {"127.0.0.1:2000"}
    assert seen[0].time_ns == 2 * SECOND + 50 * 1000
    assert seen[-1].roles == ("rank zero", None)


VLAN = bytes(12) + b"\x81\x00\x00\x01\x08\x00"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(
    ("link", "head", "ipv6"),
    [
        (1, bytes(12) + b"\x08\x00", False),
        (1, bytes(12) + b"\x86\xdd", True),
        (1, VLAN, False),
        (0, b"\x02\x00\x00\x00", False),
        (108, b"\x00\x00\x00\x02", False),
        (101, b"", True),
        (228, b"", False),
        (229, b"", True),
        (113, bytes(14) + b"\x08\x00", False),
        (276, b"\x08\x00" + bytes(18), False),
    ],
)
def test_a_pcapng_of_every_link(order: str, link: int, head: bytes, ipv6: bool) -> None:
    made = [
        (packet.time_ns, head + (packet.ipv6() if ipv6 else packet.ipv4()))
        for packet in packets(STREAM)
    ]
    seen = read(pcapng(made, link, order))
    assert names(one.what for one in seen) == NAMES
    assert seen[0].time_ns == 2 * SECOND + 50 * 1000
    assert str(seen[0].source) == ("[::1]:1000" if ipv6 else "127.0.0.1:1000")


def test_simple_packets_have_no_time() -> None:
    head = [
        block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        block(1, struct.pack("<HHI", 228, 0, 0)),
    ]
    body = [block(3, struct.pack("<I", len(p.ipv4())) + p.ipv4()) for p in packets(STREAM)]
    seen = read(b"".join([*head, *body]))
    assert names(one.what for one in seen) == NAMES
    assert seen[0].time_ns == 0


@pytest.mark.parametrize("start", [0, (1 << 32) - 60])
def test_segments_that_come_late_twice_or_overlapping(start: int) -> None:
    seed = 30
    draw = random.Random(seed)
    made = packets(STREAM, start=start)
    body = made[2:]
    wide = packets(STREAM, size=130, start=start)[2:]
    for _ in range(20):
        mixed = [*body, *draw.sample(body, 5), *draw.sample(wide, 3)]
        # The first piece has the greeting; what is behind may come in any order.
        draw.shuffle(mixed)
        assert read_names(pcap([*made[:2], *mixed])) == NAMES, f"seed {seed}"


def test_a_repeated_call_is_the_same_connection_and_a_new_one_is_another() -> None:
    made = packets(STREAM)
    assert read_names(pcap([made[0], *made])) == NAMES
    again = packets(STREAM, start=500_000)
    assert read_names(pcap([*made, *again])) == NAMES * 2


def test_a_capture_may_begin_late() -> None:
    at = STREAM.index(framed(MESSAGES[1]))
    seen = read(pcap(packets(STREAM[at - 30 :])[2:]))
    assert names(one.what for one in seen) == NAMES[1:]


def test_what_was_not_recorded_is_a_gap() -> None:
    made = packets(STREAM)
    lost = 2 + STREAM.index(framed(MESSAGES[1])) // 50 + 1
    seen = read(pcap([*made[:lost], *made[lost + 1 :]]))
    remarks = [one.what.text for one in seen if isinstance(one.what, zmtp.Remark)]
    assert remarks == [
        "50 bytes are missing in the recording",
        "reading begins at a PP1 header frame",
    ]
    assert names(one.what for one in seen) == ["Hello", "Rows", "Ping"]


def test_a_gap_is_given_up_before_it_costs_memory() -> None:
    ping = framed(encode(Ping(1), BOOT, EPOCH))
    behind = 1 + len(STREAM) + 1000
    made = packets(STREAM)
    for index in range(1100):
        made.append(Packet(9 * SECOND, 1000, 2000, ACK, 77 + behind + index * len(ping), 6, ping))
    connections = Connections()
    seen: list[Seen] = []
    for segment in segments(io.BytesIO(pcap(made))):
        seen += connections.feed(segment)
    assert len(names(one.what for one in seen)) == len(NAMES) + 1100


def test_the_recording_may_end_within_a_message() -> None:
    *_, last = read(pcap(packets(STREAM[:-3])))
    assert isinstance(last.what, zmtp.Remark)
    assert not last.what.fault


def test_both_directions_are_one_link() -> None:
    back = greeting() + framed(encode(Pong(5), BOOT, EPOCH))
    made = packets(STREAM)
    made.append(Packet(3 * SECOND, 2000, 1000, ACK, 6, 0, back))
    seen = read(pcap(made))
    assert names(one.what for one in seen) == [*NAMES, "Pong"]
    assert seen[-1].roles == (None, "rank zero")


def test_other_packets_are_passed_over() -> None:
    good = packets(STREAM)
    ip = good[0].ipv4()
    other = [
        b"",
        ip[:10],
        ip[:9] + b"\x11" + ip[10:],  # UDP
        ip[:6] + b"\x20\x00" + ip[8:],  # a fragment
        b"\x41" + ip[1:],
        ip[:25],
        ip[:32] + b"\x10" + ip[33:],
        b"\x60" + bytes(39),
        b"\x60" + bytes(5) + b"\x00" + bytes(33),
        b"\x90" * 60,
    ]
    made = [(0, packet) for packet in other] + [(p.time_ns, p.ipv4()) for p in good]
    assert read_names(pcapng(made, 101)) == NAMES


FILE = pcap(packets(STREAM))
NG = pcapng([(p.time_ns, p.ipv4()) for p in packets(STREAM)], 101)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "wanted 4 bytes of a file header, got 0"),
        (b"abcd", "got magic 0x64636261"),
        (FILE[:10], "wanted 20 bytes of a file header, got 6"),
        (FILE[:30], "wanted 10 bytes of a packet header, got 0"),
        (FILE[:-1], "packet, got"),
        (FILE[:20] + b"\x93\x00\x00\x00" + FILE[24:], "got 147"),
        (FILE[:32] + b"\xff\xff\xff\xff" + FILE[36:], "got 4294967295"),
        (NG[:8] + b"\0\0\0\0" + NG[12:], "wanted a byte order mark"),
        (NG[:4] + b"\xff\xff\xff\xff" + NG[8:], "got 4294967295"),
        (NG[:4] + b"\x0d\0\0\0" + NG[8:], "got 13"),
        (NG[:-1], "of a block, got"),
        (NG[:28] + NG[NG.index(struct.pack("<I", 6)) :], "wanted an interface below 0"),
    ],
)
def test_a_file_that_breaks_its_own_format(file: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        list(segments(io.BytesIO(file)))


def test_bent_captures_are_read_or_refused() -> None:
    seed = 31
    draw = random.Random(seed)
    for _ in range(600):
        bent = bytearray(draw.choice((FILE, NG)))
        for _ in range(draw.choice((1, 3, 30))):
            bent[draw.randrange(len(bent))] ^= 1 << draw.randrange(8)
        if draw.random() < 0.2:
            del bent[draw.randrange(len(bent)) :]
        try:
            read(bytes(bent))
        except Unreadable as error:
            assert "\n" not in str(error), f"seed {seed}"


def test_bent_streams_are_read() -> None:
    seed = 32
    draw = random.Random(seed)
    for _ in range(600):
        bent = bytearray(STREAM)
        for _ in range(draw.choice((1, 3, 30))):
            bent[draw.randrange(len(bent))] ^= 1 << draw.randrange(8)
        list(connection(io.BytesIO(bytes(bent)), Link()))
        list(back_to_back(io.BytesIO(bytes(bent[100:])), Link()))
        feed([draw.randbytes(200), bytes(bent)], whole=draw.random() < 0.5)


def test_captures_are_known_by_their_start() -> None:
    assert capture.is_capture(FILE) and capture.is_capture(NG)
    assert not capture.is_capture(STREAM) and not capture.is_capture(b"")
