"""What the wire vectors are about: one agreement, one session, its steps, rows and completions."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import pack, philox
from .layout import KIND_OF, MESSAGES, RECORDS

MASS: Final = 1 << 24
DENSE, SPARSE = 1, 2

SESSION: Final = bytes(range(0x64, 0x74))
OTHER_SESSION: Final = bytes(range(0x84, 0x94))
SEED: Final = bytes(range(32))
REQUEST_ID: Final = 7
PREFIX: Final = (3, 1, 4, 1, 5, 9, 2)

# A vocabulary of ten tokens in rows of twelve.
VOCABULARY_SIZE, LEGAL_SIZE = 12, 10
TERMS: Final = {
    "representations": [DENSE, SPARSE],
    "vocabulary_size": VOCABULARY_SIZE,
    "legal_size": LEGAL_SIZE,
    "requests_max": 4,
    "depth_max": 5,
    "support_max": 6,
}

Values = dict[str, Any]


def terms(**changes: Any) -> Values:
    """The agreed terms that the rules look at."""
    return {**TERMS, **changes}


def record(name: str, values: Mapping[str, Any]) -> list[Any]:
    """A record's elements in order."""
    return [values[field.name] for field in RECORDS[name]]


def body(name: str, **values: Any) -> bytes:
    """The canonical body of a message; records are given as lists."""
    kind = KIND_OF[name]
    return pack.packed([kind, *(values[field.name] for field in MESSAGES[kind][1])])


# --- steps ---------------------------------------------------------------------------------


def entry(**changes: Any) -> Values:
    """A step entry: depth five, dense, after a prefix of seven tokens."""
    return {
        "session_id": SESSION,
        "slot": 0,
        "generation": 3,
        "round": 4,
        "position": len(PREFIX),
        "digest": pack.prefix_digest(changes.get("session_id", SESSION), PREFIX),
        "depth": 5,
        "temperature": 1.0,
        "representation": DENSE,
        "support": 0,
        "context": 99,
        **changes,
    }


def sparse_entry(**changes: Any) -> Values:
    """The same entry with sparse rows of at most four ids."""
    return entry(**{"representation": SPARSE, "support": 4, **changes})


def step(*entries: Values, number: int = 1) -> bytes:
    """The body of a ``Step``."""
    return body("Step", step=number, entries=[record("StepEntry", one) for one in entries])


def worker_key(one: Values) -> bytes:
    """The worker's key of an entry's session and generation."""
    return philox.derive_key(SEED, one["session_id"], REQUEST_ID, one["generation"], philox.WORKER)


# --- rows ----------------------------------------------------------------------------------


def fp32(count: int) -> bytes:
    """A count of the draft's mass as it travels."""
    return struct.pack("<f", count / MASS)


def bits(*values: int) -> bytes:
    """FP32 values by their bits."""
    return struct.pack(f"<{len(values)}I", *values)


def ids(*values: int) -> bytes:
    """Support ids."""
    return struct.pack(f"<{len(values)}i", *values)


def sparse(counts: Mapping[int, int]) -> bytes:
    """A sparse payload of these counts, in the order given."""
    return ids(*counts) + b"".join(fp32(count) for count in counts.values())


def dense(counts: Mapping[int, int], size: int = VOCABULARY_SIZE) -> bytes:
    """A dense payload of these counts."""
    return b"".join(fp32(counts.get(token, 0)) for token in range(size))


def counts_of(index: int) -> dict[int, int]:
    """The q of row ``index`` of every sample chain: half of it and more on id 2 + index."""
    return {1: 1 << 22, 2 + index: MASS - (1 << 22) - 1, 9: 1}


def payload_of(one: Values, counts: Mapping[int, int], size: int = VOCABULARY_SIZE) -> bytes:
    """A row's payload in the entry's representation."""
    return sparse(counts) if one["representation"] == SPARSE else dense(counts, size)


def token_of(counts: Mapping[int, int], ticket: int) -> int:
    """The first id whose cumulative count is above the ticket."""
    for token in sorted(counts):
        if ticket < counts[token]:
            return token
        ticket -= counts[token]
    raise AssertionError("a ticket is below the mass")


def draw(one: Values, index: int, counts: Mapping[int, int]) -> int:
    """The token that the ABI draws for row ``index``."""
    ticket = philox.ticket(
        worker_key(one), 24, philox.PROPOSAL, one["position"] + index, one["round"]
    )
    return token_of(counts, ticket)


def seal(
    one: Values, index: int, preceding: Sequence[int], token: int, payload: bytes, **changes: Any
) -> Values:
    """A row's descriptor; the checksum is over what the descriptor says, unless it is given."""
    representation = changes.get("representation", one["representation"])
    width = 8 if representation == SPARSE else 4
    values = {
        "entry": 0,
        "position": one["position"] + index,
        "token": token,
        "representation": representation,
        "entries": len(payload) // width,
        "byte_length": len(payload),
        **changes,
    }
    values.setdefault(
        "checksum",
        pack.row_checksum(
            one["session_id"],
            one["slot"],
            one["generation"],
            one["round"],
            one["position"] + index,
            preceding,
            values["token"],
            values["representation"],
            values["entries"],
            payload,
        ),
    )
    return values


def rows(*described: Values, number: int = 1) -> bytes:
    """The body of a ``Rows``."""
    return body("Rows", step=number, rows=[record("Row", one) for one in described])


def chain(one: Values, place: int = 0) -> tuple[list[Values], list[bytes]]:
    """A whole chain as the ABI draws it: descriptors and payloads."""
    described: list[Values] = []
    payloads: list[bytes] = []
    drawn: list[int] = []
    for index in range(one["depth"]):
        counts = counts_of(index)
        payload = payload_of(one, counts)
        token = draw(one, index, counts)
        described.append(seal(one, index, drawn, token, payload, entry=place))
        payloads.append(payload)
        drawn.append(token)
    return described, payloads


# --- completions ---------------------------------------------------------------------------


def completed(
    one: Values, checksums: Sequence[int], reply_bytes: int, status: int = 0, **changes: Any
) -> Values:
    """A completion entry, sealed over what came before the changes."""
    return {
        "session_id": one["session_id"],
        "generation": one["generation"],
        "round": one["round"],
        "status": status,
        "row_count": len(checksums),
        "reply_bytes": reply_bytes,
        "checksum": pack.completion_checksum(
            one["session_id"],
            one["slot"],
            one["generation"],
            one["round"],
            status,
            reply_bytes,
            checksums,
        ),
        **changes,
    }


def completion(*entries: Values, number: int = 1) -> bytes:
    """The body of a ``Completion``."""
    made = [record("CompletionEntry", one) for one in entries]
    return body("Completion", step=number, entries=made)
