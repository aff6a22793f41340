"""Fault kinds E (transport and memory), as far as the contract alone decides them."""

import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from proto_v2 import codec, limits
from proto_v2.envelope import MAGIC
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Ping, Role, Rows
from proto_v2.negotiate import derive_terms
from proto_v2.validate import check_row, read_row, split_payload
from tests.proto_samples import (
    BOOT,
    EPOCH,
    chain,
    hello,
    reseal,
    row,
    sparse_entry,
    step,
    step_entry,
    terms,
)

TERMS = terms()


@pytest.mark.parametrize("field", ["body", "payload"])
@pytest.mark.parametrize("claimed", [1 << 24, (1 << 32) - 1])
def test_e08_claimed_sizes_are_checked_before_anything_is_allocated(
    field: str, claimed: int
) -> None:
    """E8: a header that claims more than the bounds is refused from its 64 bytes alone."""
    header = bytearray(codec.encode(Rows(1, ()), BOOT, EPOCH, b"")[0])
    struct.pack_into("<I", header, 8 if field == "body" else 12, claimed)
    with pytest.raises(ProtocolError) as caught:
        codec.decode([reseal(header), b"", b""])
    assert caught.value.code in (Code.BODY_LENGTH, Code.PAYLOAD_LENGTH)
    assert caught.value.got == claimed


def test_e08_rows_that_claim_more_than_their_payload_are_refused_whole() -> None:
    """E8: the sum of claimed row sizes must be the payload that came, whatever it is."""
    rows, payloads = chain(step_entry())
    rows[1] = msgspec.structs.replace(rows[1], byte_length=(1 << 32) - 1)
    with pytest.raises(ProtocolError) as caught:
        split_payload(step(step_entry()), Rows(1, tuple(rows)), b"".join(payloads))
    assert caught.value.code is Code.ROW_BYTES


@pytest.mark.parametrize("version", [1, 3])
def test_e09_another_wire_version_is_named_from_its_first_message(version: int) -> None:
    """E9: v1 and v3 peers are named by version, whatever the rest of their header means."""
    header = bytearray(codec.encode(Ping(1), BOOT, EPOCH)[0])
    header[4] = version
    for frame in (bytes(header), reseal(header), MAGIC + bytes([version]), bytes(header) + b"more"):
        with pytest.raises(ProtocolError) as caught:
            codec.decode([frame, b"whatever follows"])
        assert (caught.value.code, caught.value.got) == (Code.WIRE_VERSION, version)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("wire_max", 1, Code.WIRE_RANGE),
        ("wire_min", 3, Code.WIRE_RANGE),
        ("vocabulary_size", 129_281, Code.VOCABULARY_SIZE_MISMATCH),
        ("legal_size", 9, Code.VOCABULARY_SIZE_MISMATCH),
        ("vocabulary_hash", bytes(32), Code.VOCABULARY_HASH_MISMATCH),
        ("precision", "bf16-le", Code.PRECISION_MISMATCH),
        ("semantics", "dyadic23-standard-v1", Code.SEMANTICS_MISMATCH),
        ("verifier", "standard-fp32-v1", Code.VERIFIER_MISMATCH),
        ("rng_abi", "philox4x32-10/blake2b-v2", Code.RNG_ABI_MISMATCH),
        ("draft_checkpoint", "draft-a@other", Code.DRAFT_MISMATCH),
        ("target_checkpoint", "target-a@other", Code.TARGET_MISMATCH),
        ("processors", "policy-a+1", Code.PROCESSORS_MISMATCH),
    ],
)
def test_e09_same_version_other_identity_is_refused_by_name(
    field: str, value: Any, code: Code
) -> None:
    """E9: two builds that speak one version but mean different things are refused at HELLO."""
    with pytest.raises(ProtocolError) as caught:
        derive_terms(hello(), hello(Role.WORKER, **{field: value}))
    assert caught.value.code is code
    assert caught.value.field == ("wire_version" if field.startswith("wire") else field)


def test_e10_half_the_bytes_are_refused_by_length() -> None:
    """E10: bf16 bytes under the f32 representation fail on the length the entry count implies."""
    entry = step_entry()
    _, payloads = chain(entry)
    halves = np.frombuffer(payloads[0], dtype="<u4").astype(np.uint32) >> 16
    payload = halves.astype("<u2").tobytes()
    assert len(payload) * 2 == len(payloads[0])
    with pytest.raises(ProtocolError) as caught:
        check_row(TERMS, entry, 0, row(entry, 0, payload))
    assert caught.value.code is Code.ROW_BYTES


def test_e10_half_the_bytes_under_an_honest_length_are_refused_by_checksum() -> None:
    """E10: a descriptor for f32 bytes over any other bytes of that length does not verify."""
    entry = step_entry()
    rows, payloads = chain(entry)
    half = payloads[0][: len(payloads[0]) // 2]
    with pytest.raises(ProtocolError) as caught:
        read_row(TERMS, entry, 0, (), rows[0], half + bytes(len(half)))
    assert caught.value.code is Code.ROW_CHECKSUM
    with pytest.raises(ProtocolError) as caught:
        read_row(TERMS, entry, 0, (), rows[0], half)
    assert caught.value.code is Code.ROW_CHECKSUM


@pytest.mark.parametrize("number", [0, 2, 3, 4, 255])
def test_e10_another_representation_id_is_refused_by_name(number: int) -> None:
    """E10: the representation is the one of the step; no other number is ever interpreted."""
    rows, _ = chain(step_entry())
    wrong = msgspec.structs.replace(rows[0], representation=number)
    with pytest.raises(ProtocolError) as caught:
        check_row(TERMS, step_entry(), 0, wrong)
    assert caught.value.code is Code.REPRESENTATION_MISMATCH


def test_e10_ids_and_values_cannot_be_counted_differently() -> None:
    """E10: a sparse row of n entries is 8n bytes, so six bytes an entry never pass."""
    entry = sparse_entry()
    rows, payloads = chain(entry)
    assert len(payloads[0]) == rows[0].entries * limits.SPARSE_ENTRY_BYTES
    wrong = msgspec.structs.replace(rows[0], byte_length=rows[0].entries * 6)
    with pytest.raises(ProtocolError) as caught:
        check_row(TERMS, entry, 0, wrong)
    assert caught.value.code is Code.ROW_BYTES
