"""Row, completion, proposal and decision bindings: layout, and that every input counts."""

import struct
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
import xxhash

from proto_v2.binding import (
    completion_checksum,
    decision_digest,
    proposal_digest,
    row_checksum,
)
from proto_v2.codec import encode_body
from proto_v2.messages import Decision, StepEntry, tokens_to_bytes
from tests.proto_samples import SAMPLES, SESSION, step_entry

ENTRY = step_entry()
ROW: dict[str, Any] = {
    "entry": ENTRY,
    "index": 2,
    "preceding": (2, 3),
    "token": 4,
    "representation": 1,
    "entries": 12,
    "payload": b"payload bytes",
}
IN_A_ROW = ("session_id", "slot", "generation", "round", "position")


def changed(entry: StepEntry, field: str) -> StepEntry:
    """The entry with one field changed to a value that is as legal."""
    value: Any = getattr(entry, field)
    match value:
        case bytes():
            value = bytes([value[0] ^ 1]) + value[1:]
        case float():
            value /= 2
        case int():
            value += 1
    return msgspec.structs.replace(entry, **{field: value})


def test_the_row_layout_is_the_documented_one() -> None:
    packed = (
        SESSION
        + struct.pack("<IQIIIiII", 0, 3, 4, 9, 2, 4, 1, 12)
        + struct.pack("<2i", 2, 3)
        + b"payload bytes"
    )
    assert row_checksum(**ROW) == xxhash.xxh3_64_intdigest(packed)


def test_the_completion_layout_is_the_documented_one() -> None:
    packed = (
        SESSION
        + struct.pack("<IQIIIQ", 0, 3, 4, 502, 2, 1000)
        + struct.pack("<2Q", 7, (1 << 64) - 1)
    )
    found = completion_checksum(ENTRY, 502, 1000, [7, (1 << 64) - 1])
    assert found == xxhash.xxh3_64_intdigest(packed)


def test_the_proposal_digest_is_the_documented_one() -> None:
    data = encode_body(ENTRY) + tokens_to_bytes([4, 5]) + struct.pack("<2Q", 7, 8)
    expected = blake2b(data, digest_size=16, person=b"PP1-proposal-v2\0").digest()
    assert proposal_digest(ENTRY, [4, 5], [7, 8]) == expected


def test_the_decision_digest_is_the_documented_one() -> None:
    decision = SAMPLES[27]
    assert isinstance(decision, Decision)
    expected = blake2b(encode_body(decision), digest_size=16, person=b"PP1-decision-v2\0").digest()
    assert decision_digest(decision) == expected
    assert decision_digest(msgspec.structs.replace(decision, step=1)) != expected


@pytest.mark.parametrize("field", IN_A_ROW)
def test_a_row_is_bound_to_its_place(field: str) -> None:
    assert row_checksum(**{**ROW, "entry": changed(ENTRY, field)}) != row_checksum(**ROW)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index", 1),
        ("preceding", (3, 2)),
        ("preceding", (2,)),
        ("preceding", ()),
        ("token", 5),
        ("representation", 2),
        ("entries", 11),
        ("payload", b"payload bytez"),
        ("payload", b"payload byte"),
        ("payload", b""),
    ],
)
def test_a_row_is_bound_to_its_tokens_and_bytes(name: str, value: Any) -> None:
    assert row_checksum(**{**ROW, name: value}) != row_checksum(**ROW)


def test_tokens_cannot_be_taken_for_payload() -> None:
    shifted = {**ROW, "preceding": (2,), "payload": struct.pack("<i", 3) + b"payload bytes"}
    assert row_checksum(**shifted) != row_checksum(**ROW)


def test_payload_may_be_a_memoryview() -> None:
    assert row_checksum(**{**ROW, "payload": memoryview(b"payload bytes")}) == row_checksum(**ROW)


@pytest.mark.parametrize("field", ["session_id", "slot", "generation", "round"])
def test_a_completion_is_bound_to_its_place(field: str) -> None:
    base = completion_checksum(ENTRY, 0, 1000, [7, 8])
    assert completion_checksum(changed(ENTRY, field), 0, 1000, [7, 8]) != base


@pytest.mark.parametrize(
    ("status", "reply_bytes", "checksums"),
    [(502, 1000, [7, 8]), (0, 999, [7, 8]), (0, 1000, [8, 7]), (0, 1000, [7]), (0, 1000, [])],
)
def test_a_completion_is_bound_to_what_it_says(
    status: int, reply_bytes: int, checksums: list[int]
) -> None:
    base = completion_checksum(ENTRY, 0, 1000, [7, 8])
    assert completion_checksum(ENTRY, status, reply_bytes, checksums) != base


@pytest.mark.parametrize("field", StepEntry.__struct_fields__)
def test_the_ranks_compare_every_field_of_the_entry(field: str) -> None:
    assert proposal_digest(changed(ENTRY, field), [4], [7]) != proposal_digest(ENTRY, [4], [7])


def test_the_ranks_compare_tokens_and_rows() -> None:
    digests = {
        proposal_digest(ENTRY, tokens, checksums)
        for tokens, checksums in (
            ([], []),
            ([4], [7]),
            ([5], [7]),
            ([4], [8]),
            ([4, 5], [7, 8]),
            ([5, 4], [7, 8]),
            ([4, 5], [8, 7]),
        )
    }
    assert len(digests) == 7


def test_a_proposal_has_one_checksum_a_token() -> None:
    with pytest.raises(AssertionError):
        proposal_digest(ENTRY, [4, 5], [7])
