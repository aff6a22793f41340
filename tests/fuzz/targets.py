"""Every target by name: what it runs, how its inputs are mutated, what they start from."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha1
from pathlib import Path
from typing import Final

from proto_v2.codec import encode, encode_body
from proto_v2.messages import Role, Rows
from tests import proto_samples as samples
from tests.support.wire import Frames

from . import mutators, parsers
from .conversation import MACHINES, OPERATIONS, edit, machine, recording, script
from .frames import join

CORPUS: Final = Path(__file__).parent / "corpus"


@dataclass(frozen=True)
class Target:
    """``run`` raises nothing, whatever it is given."""

    run: Callable[[bytes], None]
    mutator: Callable[[mutators.Native], mutators.Mutator]
    seeds: Callable[[], Iterator[bytes]]
    most_bytes: int

    def inputs(self, name: str) -> list[bytes]:
        """The seeds, and what the tree keeps of earlier runs: regressions above all."""
        return [*self.seeds(), *(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))]

    def mutate(self, native: mutators.Native) -> mutators.Mutator:
        """The mutation of its inputs; now and then it starts afresh from one of its seeds.

        The decoder is not Python, so coverage cannot tell one kind of message from
        another, and the engine keeps few of them.
        """
        starts = list(self.seeds())
        mutator = self.mutator(native)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            seed = seed * 0x9E37_79B1 & 0xFFFF_FFFF
            if seed & 0xF000_0000 == 0:
                data = starts[(seed >> 12) % len(starts)]
            return mutator(data, most, seed)[:most]

        return mutate


def name_of(data: bytes) -> str:
    """The file name of an input in the corpus, as the engine names it."""
    return sha1(data).hexdigest()


@functools.cache
def golden() -> tuple[Frames, ...]:
    """One valid message of every kind, and every message of the recorded conversation."""
    found = [told.frames for _, told in recording()]
    for message in samples.SAMPLES.values():
        payload = b"" if isinstance(message, Rows) else None
        found.append(encode(message, samples.BOOT, samples.EPOCH, payload))
    return tuple(dict.fromkeys(tuple(bytes(frame) for frame in frames) for frames in found))


def _messages() -> Iterator[bytes]:
    yield from map(join, golden())


def _rows() -> Iterator[bytes]:
    for flags, entry in ((0, parsers.DENSE), (1, parsers.SPARSE)):
        descriptors, payloads = samples.chain(entry)
        for index, (row, payload) in enumerate(zip(descriptors, payloads, strict=True)):
            for spoilt in (0, 2, 4, 8, 16, 32):
                yield bytes([flags | spoilt, index, row.token, row.entries]) + payload


def _proposals() -> Iterator[bytes]:
    rows = [edit(0, which) for which in range(4)]
    yield b"".join(rows) + edit(5, 0)
    yield edit(4, 0) + edit(4, 1) + edit(5, 0) + edit(9, 0) + edit(9, 1) + edit(11, 0) + edit(10, 0)
    yield edit(2, 0, 0, b"\0\0\x80\x3f") + edit(7, 0)
    for operation in range(12):
        yield b"".join(rows[:3]) + edit(operation, 3, 4, b"\1") + edit(5, 0) + edit(9, 1)


def _negotiations() -> Iterator[bytes]:
    def told(operation: int, body: bytes = b"") -> bytes:
        return bytes([operation]) + len(body).to_bytes(2, "little") + body

    whole = (told(1), told(0), told(1), told(0))
    yield b"".join(whole)
    again = (told(3), told(2), told(3), told(2))
    yield b"".join(item + repeat for item, repeat in zip(whole, again, strict=True))
    for whom, role in ((1, Role.RANK_ZERO), (0, Role.WORKER)):
        hello = encode_body(samples.hello(role))
        yield told(whom | 4, hello)
        yield told(1) + told(whom | 4, hello) + b"".join(whole[1:])
    for place, kind in enumerate(parsers.HANDSHAKE_KINDS):
        yield b"".join(whole[:3]) + told(4 | place << 3, encode_body(samples.SAMPLES[kind]))


def _edits(name: str) -> Iterator[bytes]:
    yield b""
    for index in range(len(script(name))):
        for operation in range(OPERATIONS):
            yield edit(operation, index, (index * 7) % 30 + 1, bytes([1, index, 0x80]))


TARGETS: Final[dict[str, Target]] = {
    "envelope": Target(parsers.envelope, mutators.message, _messages, 768),
    "codec": Target(parsers.codec, mutators.message, _messages, 768),
    "rows": Target(parsers.rows, mutators.row, _rows, 128),
    "proposal": Target(parsers.proposal, mutators.records, _proposals, 512),
    "negotiation": Target(parsers.negotiation, mutators.handshake, _negotiations, 1024),
    **{
        name: Target(
            functools.partial(machine, name),
            mutators.records,
            functools.partial(_edits, name),
            1024,
        )
        for name in MACHINES
    },
}
