"""TCP segments of a pcap or pcapng file, read record by record.

Formats: pcap in both byte orders with micro- or nanoseconds, pcapng (section
header, interface description, enhanced and simple packet blocks; others are
passed over). Links: Ethernet with VLAN tags, BSD and OpenBSD loopback, raw IP, Linux
cooked v1 and v2. IPv4 and IPv6 without fragments.
"""

import ipaddress
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pp1.inspect.stream import Source, Unreadable

# What tcpdump and Wireshark take at most.
_PACKET_BYTES_MAX: Final = 262_144
_BLOCK_BYTES_MAX: Final = 1 << 24
_INTERFACES_MAX: Final = 1024
_CHUNK_BYTES: Final = 1 << 16

_PCAP: Final = {  # magic as little endian: byte order, nanoseconds per tick
    0xA1B2C3D4: ("<", 1000),
    0xD4C3B2A1: (">", 1000),
    0xA1B23C4D: ("<", 1),
    0x4D3CB2A1: (">", 1),
}
_SECTION: Final = 0x0A0D0D0A
_BYTE_ORDER: Final = 0x1A2B3C4D
_INTERFACE, _SIMPLE, _ENHANCED = 1, 3, 6
_OPTION_RESOLUTION, _OPTION_OFFSET = 9, 14

_NULL, _ETHERNET, _RAW, _LOOP, _COOKED, _IPV4, _IPV6, _COOKED2 = (
    0, 1, 101, 108, 113, 228, 229, 276,
)  # fmt: skip
_LINKS: Final = frozenset({_NULL, _ETHERNET, _RAW, _LOOP, _COOKED, _IPV4, _IPV6, _COOKED2})
_ETHERTYPE_IP: Final = frozenset({0x0800, 0x86DD})
_ETHERTYPE_TAGS: Final = frozenset({0x8100, 0x88A8, 0x9100})
_PROTOCOL_TCP: Final = 6
_EXTENSIONS: Final = frozenset({0, 43, 60})  # hop-by-hop, routing, destination options
_SYN, _ACK = 2, 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a TCP connection."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Segment:
    """One TCP segment as recorded; ``time_ns`` counts from the Unix epoch."""

    time_ns: int
    source: Endpoint
    destination: Endpoint
    sequence: int
    syn: bool
    ack: bool
    data: bytes


def is_capture(start: bytes) -> bool:
    """Whether a file that starts so is a capture."""
    if len(start) < 4:
        return False
    magic = int.from_bytes(start[:4], "little")
    return magic in _PCAP or magic == _SECTION


def segments(source: Source) -> Iterator[Segment]:
    """Every TCP segment of a capture, in the order of the file.

    Raises:
        Unreadable: the file breaks its own format, or ends in the middle of a packet.
    """
    magic = int.from_bytes(_exactly(source, 4, "file header"), "little")
    if magic in _PCAP:
        packets = _pcap(source, *_PCAP[magic])
    elif magic == _SECTION:
        packets = _pcapng(source)
    else:
        raise Unreadable(f"capture: wanted a pcap or pcapng file, got magic 0x{magic:08x}")
    for time_ns, link, packet in packets:
        segment = _segment(time_ns, link, packet)
        if segment is not None:
            yield segment


def _exactly(source: Source, size: int, what: str) -> bytes:
    data = source.read(size)
    if len(data) < size:
        raise Unreadable(f"capture: wanted {size} bytes of a {what}, got {len(data)}")
    return data


def _link(number: int) -> int:
    if number not in _LINKS:
        wanted = ", ".join(str(known) for known in sorted(_LINKS))
        raise Unreadable(f"capture: wanted a link type of {wanted}, got {number}")
    return number


def _pcap(source: Source, order: str, tick_ns: int) -> Iterator[tuple[int, int, bytes]]:
    header = _exactly(source, 20, "file header")
    link = _link(struct.unpack(order + "HHiIII", header)[5] & 0x0FFF_FFFF)
    layout = struct.Struct(order + "IIII")
    while head := source.read(layout.size):
        if len(head) < layout.size:
            head += _exactly(source, layout.size - len(head), "packet header")
        seconds, fraction, size, _ = layout.unpack(head)
        if size > _PACKET_BYTES_MAX:
            raise Unreadable(f"capture: wanted packets of {_PACKET_BYTES_MAX} bytes, got {size}")
        packet = _exactly(source, size, "packet")
        yield seconds * 1_000_000_000 + fraction * tick_ns, link, packet


@dataclass(frozen=True, slots=True)
class _Interface:
    link: int
    ticks: int  # per second
    offset_s: int

    def time_ns(self, ticks: int) -> int:
        return self.offset_s * 1_000_000_000 + ticks * 1_000_000_000 // self.ticks


def _pcapng(source: Source) -> Iterator[tuple[int, int, bytes]]:
    order = ""
    interfaces: list[_Interface] = []
    head = _SECTION.to_bytes(4, "little") + _exactly(source, 4, "section header")
    while head:
        if int.from_bytes(head[:4], "little") == _SECTION:
            magic = _exactly(source, 4, "section header")
            order = next((o for o in "<>" if struct.unpack(o + "I", magic)[0] == _BYTE_ORDER), "")
            if not order:
                raise Unreadable("capture: wanted a byte order mark, got " + magic.hex())
            interfaces = []
            _rest_of_block(source, order, head, 12, keep=False)
        else:
            kind = struct.unpack(order + "I", head[:4])[0]
            keep = kind in (_INTERFACE, _SIMPLE, _ENHANCED)
            body = _rest_of_block(source, order, head, 8, keep=keep)
            if kind == _INTERFACE:
                if len(interfaces) == _INTERFACES_MAX:
                    raise Unreadable(f"capture: wanted at most {_INTERFACES_MAX} interfaces")
                interfaces.append(_interface(order, body))
            elif kind in (_SIMPLE, _ENHANCED):
                yield _packet(order, kind, body, interfaces)
        head = source.read(8)
        if head and len(head) < 8:
            head += _exactly(source, 8 - len(head), "block header")


def _rest_of_block(source: Source, order: str, head: bytes, taken: int, *, keep: bool) -> bytes:
    """The body of a block after its first ``taken`` bytes, without the length at its end."""
    size = struct.unpack(order + "I", head[4:8])[0]
    if size % 4 or not taken + 4 <= size <= _BLOCK_BYTES_MAX:
        raise Unreadable(f"capture: wanted a block of at most {_BLOCK_BYTES_MAX} bytes, got {size}")
    left = size - taken
    if keep:
        if left > _PACKET_BYTES_MAX + 4096:
            raise Unreadable(f"capture: wanted packets of {_PACKET_BYTES_MAX} bytes, got {left}")
        return _exactly(source, left, "block")[:-4]
    while left:
        left -= len(_exactly(source, min(left, _CHUNK_BYTES), "block"))
    return b""


def _interface(order: str, body: bytes) -> _Interface:
    if len(body) < 8:
        raise Unreadable(f"capture: wanted an interface of 8 bytes, got {len(body)}")
    link = _link(struct.unpack(order + "H", body[:2])[0])
    ticks, offset_s, at = 1_000_000, 0, 8
    while at + 4 <= len(body):
        option, size = struct.unpack(order + "HH", body[at : at + 4])
        value = body[at + 4 : at + 4 + size]
        if option == _OPTION_RESOLUTION and len(value) == 1:
            exponent = value[0] & 0x7F
            ticks = 2**exponent if value[0] & 0x80 else 10**exponent
        elif option == _OPTION_OFFSET and len(value) == 8:
            offset_s = struct.unpack(order + "q", value)[0]
        at += 4 + -(-size // 4) * 4
    return _Interface(link, ticks, offset_s)


def _packet(
    order: str, kind: int, body: bytes, interfaces: list[_Interface]
) -> tuple[int, int, bytes]:
    head = 20 if kind == _ENHANCED else 4
    if len(body) < head:
        raise Unreadable(f"capture: wanted a packet block of {head} bytes, got {len(body)}")
    if kind == _SIMPLE:
        number, ticks = 0, 0
        size = min(struct.unpack(order + "I", body[:4])[0], len(body) - head)
    else:
        number, high, low, size = struct.unpack(order + "IIII", body[:16])
        ticks = high << 32 | low
    if number >= len(interfaces):
        raise Unreadable(f"capture: wanted an interface below {len(interfaces)}, got {number}")
    if size > len(body) - head:
        raise Unreadable(f"capture: wanted a packet of {len(body) - head} bytes, got {size}")
    interface = interfaces[number]
    return interface.time_ns(ticks), interface.link, body[head : head + size]


def _segment(time_ns: int, link: int, packet: bytes) -> Segment | None:
    """The TCP segment in a packet, None for whatever else it is."""
    found = _tcp(_network(link, packet))
    if found is None:
        return None
    source, destination, tcp = found
    if len(tcp) < 20:
        return None
    ports = struct.unpack(">HH", tcp[:4])
    flags, head = tcp[13], (tcp[12] >> 4) * 4
    if head < 20:
        return None
    return Segment(
        time_ns,
        Endpoint(source, ports[0]),
        Endpoint(destination, ports[1]),
        int.from_bytes(tcp[4:8]),
        bool(flags & _SYN),
        bool(flags & _ACK),
        tcp[head:],
    )


def _network(link: int, packet: bytes) -> bytes:
    """What follows the link's own header; empty if that is not IP."""
    if link in (_RAW, _IPV4, _IPV6):
        return packet
    if link in (_NULL, _LOOP):
        return packet[4:]  # the IP version says the same as the address family
    if link == _COOKED:
        place, head = 14, 16
    elif link == _COOKED2:
        place, head = 0, 20
    else:
        place, head = 12, 14
        while int.from_bytes(packet[place : place + 2]) in _ETHERTYPE_TAGS:
            place, head = place + 4, head + 4
    return packet[head:] if int.from_bytes(packet[place : place + 2]) in _ETHERTYPE_IP else b""


def _tcp(packet: bytes) -> tuple[str, str, bytes] | None:
    """Source, destination and TCP bytes of an IP packet."""
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        head = (packet[0] & 0x0F) * 4
        # A length of zero means that the network card had yet to fill it in.
        size = int.from_bytes(packet[2:4]) or len(packet)
        fragment = int.from_bytes(packet[6:8]) & 0x3FFF
        if head < 20 or fragment or packet[9] != _PROTOCOL_TCP:
            return None
        return _host(packet[12:16]), _host(packet[16:20]), packet[head:size]
    if version == 6 and len(packet) >= 40:
        size = 40 + int.from_bytes(packet[4:6]) if packet[4:6] != b"\0\0" else len(packet)
        protocol, head = packet[6], 40
        while protocol in _EXTENSIONS and head + 2 <= len(packet):
            protocol, head = packet[head], head + 8 * (packet[head + 1] + 1)
        if protocol != _PROTOCOL_TCP:
            return None
        return _host(packet[8:24]), _host(packet[24:40]), packet[head:size]
    return None


def _host(address: bytes) -> str:
    return str(ipaddress.ip_address(address))
