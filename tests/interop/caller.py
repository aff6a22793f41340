"""A calling side written from the specification alone, that may say anything.

It builds header and body itself, from lists of fields in the order of the
text, so a test can send what no well-behaved rank would.
"""

import os
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
import xxhash
import zmq

from pp1.models.markov import MarkovLaw

HELLO, TERMS_AGREED, REFUSE, PING, PONG, NAK = range(1, 7)
RESET, READY, STEP, ROWS, COMPLETION, COMMIT, CANCEL = range(10, 17)
RANK_ZERO: Final = 2
SESSION: Final = bytes(range(16))
KEY: Final = bytes(range(8))
CONTEXT: Final = 77

HELLO_FIELDS: Final = (
    "role", "wire_min", "wire_max", "nonce", "semantics", "verifier", "rng_abi", "representations",
    "vocabulary_size", "legal_size", "vocabulary_hash", "draft_checkpoint", "draft_native",
    "target_checkpoint", "processors", "precision", "requests_max", "depth_max", "support_max",
    "frame_bytes_max", "staging_bytes",
)  # fmt: skip
RESET_FIELDS: Final = (
    "session_id", "request_id", "slot", "generation", "round", "reason", "base_length",
    "base_digest", "suffix", "digest", "key", "context",
)  # fmt: skip
ENTRY_FIELDS: Final = (
    "session_id", "slot", "generation", "round", "position", "digest", "depth", "temperature",
    "representation", "support", "context",
)  # fmt: skip


class Answer(NamedTuple):
    """One message that came."""

    kind: int
    fields: list[Any]
    payload: bytes
    epoch: int
    frames: tuple[bytes, ...]


def person_hash(person: str, message: bytes, size: int) -> bytes:
    return blake2b(message, digest_size=size, person=person.encode().ljust(16, b"\0")).digest()


def prefix_digest(session_id: bytes, tokens: Sequence[int]) -> bytes:
    digest = person_hash("PP1-prefix-v2", session_id, 16)
    for token in tokens:
        digest = person_hash("PP1-prefix-v2", digest + struct.pack("<i", token), 16)
    return digest


def packed(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def header(
    kind: int,
    body: bytes,
    *,
    boot_id: bytes,
    epoch: int,
    payload: bytes | None = None,
    magic: bytes = b"PP1q",
    version: int = 2,
    reserved: int = 0,
    payload_frames: int | None = None,
    payload_length: int | None = None,
    body_length: int | None = None,
    body_sum: int | None = None,
) -> bytes:
    """The 64 bytes before ``body``; what is named stands in place of the truth."""
    frames = int(payload is not None) if payload_frames is None else payload_frames
    length = len(payload or b"") if payload_length is None else payload_length
    start = struct.pack(
        "<4sBBBBII16sQQQ",
        magic, version, kind, frames, reserved,
        len(body) if body_length is None else body_length, length,
        boot_id, epoch, xxhash.xxh3_64_intdigest(body) if body_sum is None else body_sum, 0,
    )  # fmt: skip
    return start + struct.pack("<Q", xxhash.xxh3_64_intdigest(start))


class Caller:
    """One DEALER. Use as a context manager."""

    def __init__(self, address: str) -> None:
        self.boot_id = os.urandom(16)
        self.epoch = 0
        self.pings = 1 << 40
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(address)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send_frames(self, frames: Sequence[bytes]) -> None:
        self._socket.send_multipart(list(frames))

    def send_body(self, kind: int, body: bytes, payload: bytes | None = None, **wrong: Any) -> None:
        """Send a body as it is; ``wrong`` are header fields."""
        described: dict[str, Any] = {
            "boot_id": self.boot_id,
            "epoch": self.epoch,
            "payload": payload,
            **wrong,
        }
        frames = [header(kind, body, **described), body]
        self.send_frames(frames if payload is None else [*frames, payload])

    def send(self, kind: int, *fields: Any, **wrong: Any) -> None:
        self.send_body(kind, msgspec.msgpack.encode([kind, *fields]), **wrong)

    def receive(self, timeout_s: float = 10.0) -> Answer | None:
        """The next message but the peer's own pings; None if none comes in time."""
        while self._socket.poll(int(timeout_s * 1000)):
            frames = self._socket.recv_multipart()
            kind, *fields = msgspec.msgpack.decode(frames[1])
            if kind != PING:
                epoch = int.from_bytes(frames[0][32:40], "little")
                payload = frames[2] if len(frames) > 2 else b""
                return Answer(kind, fields, payload, epoch, tuple(frames))
        return None

    def answers(self, timeout_s: float = 10.0) -> list[Answer]:
        """What came in answer to all that was sent: a ping behind it shows the end."""
        self.pings += 1
        self.send(PING, self.pings)
        found: list[Answer] = []
        while (answer := self.receive(timeout_s)) is not None:
            if answer.kind == PONG and answer.fields == [self.pings]:
                return found
            found.append(answer)
        raise AssertionError(f"no Pong; before it came {found}")

    def agree(self, hello: dict[str, Any]) -> None:
        """Negotiate with this hello to the end."""
        self.epoch = 0
        self.send(HELLO, *hello.values())
        own = self.receive()
        assert own is not None and own.kind == HELLO, own
        called = dict(zip(HELLO_FIELDS, own.fields, strict=True))
        digest = terms_digest(hello, called)
        self.send(TERMS_AGREED, called["nonce"], digest)
        agreed = self.receive()
        assert agreed is not None and agreed.kind == TERMS_AGREED, agreed
        assert agreed.fields == [hello["nonce"], digest]
        seal = person_hash("PP1-epoch-v2", hello["nonce"] + called["nonce"] + digest, 8)
        self.epoch = int.from_bytes(seal, "little") or 1


def terms_digest(caller: dict[str, Any], called: dict[str, Any]) -> bytes:
    """The digest of what these two hellos agree on."""
    bounds = {
        name: min(caller[name], called[name])
        for name in ("requests_max", "depth_max", "support_max", "frame_bytes_max", "staging_bytes")
    }
    representations = sorted({*caller["representations"]} & {*called["representations"]})
    size = called["vocabulary_size"]
    row_bytes = {1: 4 * size, 2: 8 * min(bounds["support_max"], size)}
    terms = [
        2, *(called[name] for name in ("semantics", "verifier", "rng_abi", "precision")),
        representations, size,
        *(called[name] for name in ("legal_size", "vocabulary_hash", "draft_checkpoint",
                                    "draft_native", "target_checkpoint", "processors")),
        *bounds.values(), max(row_bytes[one] for one in representations),
    ]  # fmt: skip
    return person_hash("PP1-terms-v2", msgspec.msgpack.encode(terms), 32)


def law_hello(law: MarkovLaw, **changes: Any) -> dict[str, Any]:
    """A rank 0's hello for the Markov law, with a fresh nonce."""
    fields = {
        "role": RANK_ZERO,
        "wire_min": 2,
        "wire_max": 2,
        "nonce": os.urandom(16),
        "semantics": "dyadic24-standard-v1",
        "verifier": "standard-int48-v1",
        "rng_abi": "philox4x32-10/blake2b-v1",
        "representations": [1, 2],
        "vocabulary_size": law.vocabulary_size,
        "legal_size": law.vocabulary_size,
        "vocabulary_hash": vocabulary_hash(law.vocabulary_size),
        "draft_checkpoint": law.draft_checkpoint(),
        "draft_native": True,
        "target_checkpoint": law.target_checkpoint(),
        "processors": "none",
        "precision": "f32-le",
        "requests_max": 4,
        "depth_max": 5,
        "support_max": 16160,
        "frame_bytes_max": 4194304,
        "staging_bytes": 1 << 40,
    }
    assert tuple(fields) == HELLO_FIELDS and not changes.keys() - fields.keys()
    return {**fields, **changes}


def vocabulary_hash(size: int) -> bytes:
    tokens = [b"m%d" % token for token in range(size)]
    lengths = [struct.pack("<I", len(token)) + token for token in tokens]
    return person_hash("PP1-vocab-v2", struct.pack("<I", size) + b"".join(lengths), 32)


def reset(tokens: Sequence[int], **changes: Any) -> list[Any]:
    """The fields of a Reset of generation 1 that sends these tokens."""
    fields: dict[str, Any] = {
        "session_id": SESSION,
        "request_id": 1,
        "slot": 0,
        "generation": 1,
        "round": 0,
        "reason": 0,
        "base_length": 0,
        "base_digest": None,
        "suffix": packed(tokens),
        "digest": None,
        "key": KEY,
        "context": CONTEXT,
    }
    assert tuple(fields) == RESET_FIELDS and not changes.keys() - fields.keys()
    fields |= changes
    if fields["base_digest"] is None:
        fields["base_digest"] = prefix_digest(fields["session_id"], [])
    if fields["digest"] is None:
        fields["digest"] = prefix_digest(fields["session_id"], tokens)
    return list(fields.values())


def entry(tokens: Sequence[int], **changes: Any) -> list[Any]:
    """A step entry of generation 1, round 1, behind these tokens."""
    fields: dict[str, Any] = {
        "session_id": SESSION,
        "slot": 0,
        "generation": 1,
        "round": 1,
        "position": len(tokens),
        "digest": None,
        "depth": 3,
        "temperature": 1.0,
        "representation": 2,
        "support": 0,
        "context": CONTEXT,
    }
    assert tuple(fields) == ENTRY_FIELDS and not changes.keys() - fields.keys()
    fields |= changes
    if fields["digest"] is None:
        fields["digest"] = prefix_digest(fields["session_id"], tokens)
    return list(fields.values())
