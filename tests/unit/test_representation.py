"""Counts to bytes and back: byte for byte, every value rule with its code, first failure wins."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import limits
from proto_v2.dyadic import Categorical, full_support, top_k
from proto_v2.errors import Code, ProtocolError
from proto_v2.representation import NAMES, Representation, decode, encode, row_bytes, row_entries
from tests.proto_samples import deterministic

DENSE, SPARSE = Representation.DENSE_F32, Representation.SPARSE_F32
ROW, LEGAL, BITS = 8, 6, 3  # a row of eight ids, two of them padding; a mass of eight tickets


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def patterns(*bits: int) -> bytes:
    return struct.pack(f"<{len(bits)}I", *bits)


def ids(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def eighths(*counts: int) -> bytes:
    return floats(*(count / 8 for count in counts))


def read(representation: Representation, payload: bytes | memoryview, entries: int) -> Categorical:
    return decode(
        representation, payload, entries, vocabulary_size=ROW, legal_size=LEGAL, mass_bits=BITS
    )


def refusal_of(representation: Representation, payload: bytes, entries: int) -> ProtocolError:
    with pytest.raises(ProtocolError) as refusal:
        read(representation, payload, entries)
    return refusal.value


# --- layout --------------------------------------------------------------------------------


def test_names_and_numbers() -> None:
    assert {int(number): name for number, name in NAMES.items()} == {
        1: "dense-f32",
        2: "sparse-f32",
    }


def test_sizes() -> None:
    assert row_bytes(DENSE, 129_280, 129_280) == 517_120
    assert [row_bytes(SPARSE, k, 129_280) for k in limits.SUPPORTS_NAMED] == [128, 256, 512, 2048]
    assert row_entries(DENSE, bytes(517_120)) == 129_280
    assert row_entries(SPARSE, bytes(256)) == 32


def test_dense_bytes_are_counts_over_the_mass_in_id_order() -> None:
    row = Categorical(4, None, np.array([0, 3, 4, 1]), 3)
    assert encode(row, DENSE) == bytes.fromhex("00000000 0000c03e 0000003f 0000003e")


def test_sparse_bytes_are_ascending_ids_and_then_their_q() -> None:
    row = Categorical(300, np.array([1, 258], dtype=np.int32), np.array([3, 5]), 3)
    assert encode(row, SPARSE) == bytes.fromhex("01000000 02010000 0000c03e 0000203f")


def test_a_representation_does_not_depend_on_how_the_counts_are_held() -> None:
    weights = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    dense, sparse = full_support(weights), top_k(weights, 5)
    for representation in Representation:
        assert encode(dense, representation) == encode(sparse, representation)


def test_a_mass_that_fp32_cannot_hold_is_a_fault_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        encode(Categorical(1, None, np.array([1 << 25]), 25), DENSE)


# --- there and back ------------------------------------------------------------------------


def same(left: Categorical, right: Categorical) -> bool:
    return (
        left.vocabulary_size == right.vocabulary_size
        and left.mass_bits == right.mass_bits
        and left.dense().tolist() == right.dense().tolist()
    )


@deterministic
@given(
    weights=st.lists(st.integers(0, 5) | st.integers(0, 1 << 30), min_size=1, max_size=20),
    padding=st.integers(0, 3),
    support=st.integers(0, 20),
    mass_bits=st.integers(1, 24),
)
def test_what_arrives_is_what_was_sent(
    weights: list[int], padding: int, support: int, mass_bits: int
) -> None:
    """For every representation, and the bytes of what arrived are the bytes again."""
    if not any(weights):
        weights = [*weights, 1]
    q = np.array([*weights, *[0] * padding], dtype=np.float64)
    q /= q.sum()
    sent = top_k(q, support, mass_bits) if support else full_support(q, mass_bits)
    for representation in Representation:
        payload = encode(sent, representation)
        entries = row_entries(representation, payload)
        assert len(payload) == row_bytes(representation, entries, q.size)
        arrived = decode(
            representation,
            payload,
            entries,
            vocabulary_size=q.size,
            legal_size=len(weights),
            mass_bits=mass_bits,
        )
        assert same(arrived, sent)
        assert (arrived.ids is None) == (representation is DENSE)
        assert arrived.counts.dtype == np.int64
        assert encode(arrived, representation) == payload


@deterministic
@given(
    representation=st.sampled_from(Representation),
    entries=st.integers(0, 9),
    words=st.lists(
        st.sampled_from([0, 1, 2, 5, 6, 7, 0x3E000000, 0x3E800000, 0x3F000000, 0x3F800000])
        | st.integers(0, 0xFFFF_FFFF),
        max_size=17,
    ),
    cut=st.integers(0, 3),
)
def test_any_bytes_are_refused_with_a_row_code_or_are_canonical(
    representation: Representation, entries: int, words: list[int], cut: int
) -> None:
    payload = patterns(*words)
    payload = payload[: len(payload) - cut]
    try:
        row = read(representation, payload, entries)
    except ProtocolError as refusal:
        assert 400 <= refusal.code < 500
    else:
        assert encode(row, representation) == payload
        assert int(row.counts.sum()) == 1 << BITS


@pytest.mark.parametrize("representation", list(Representation))
@pytest.mark.parametrize("mass_bits", [1, 2, 8, 23, 24])
def test_every_power_of_two_of_a_count_and_its_neighbours_are_exact(
    representation: Representation, mass_bits: int
) -> None:
    mass = 1 << mass_bits
    edges = {(1 << power) + step for power in range(mass_bits + 1) for step in (-1, 0, 1)}
    for count in sorted(edge for edge in edges if 1 <= edge <= mass):
        counts = [count, mass - count] if count < mass else [mass]
        row = Categorical(len(counts), None, np.array(counts), mass_bits)
        payload = encode(row, representation)
        values = np.frombuffer(payload, dtype="<f4")[-len(counts) :]
        assert [float(value) * mass for value in values] == counts
        arrived = decode(
            representation,
            payload,
            len(counts),
            vocabulary_size=len(counts),
            legal_size=len(counts),
            mass_bits=mass_bits,
        )
        assert arrived.dense().tolist() == counts


def test_every_count_of_the_full_mass_is_exact_in_fp32() -> None:
    """All 2**24 + 1 of them, a megacount at a time."""
    step = 1 << 20
    for first in range(0, limits.MASS + 1, step):
        counts = np.arange(first, min(first + step, limits.MASS + 1), dtype=np.int64)
        values = (counts / float(limits.MASS)).astype("<f4")
        assert (values.astype(np.float64) * limits.MASS == counts).all()


def test_the_full_vocabulary_there_and_back() -> None:
    size = limits.VOCABULARY_SIZE_DEFAULT
    q = np.arange(1.0, size + 1) ** -1.2
    q /= q.sum()
    for sent in (full_support(q), top_k(q, 256)):
        for representation in Representation:
            payload = encode(sent, representation)
            entries = row_entries(representation, payload)
            arrived = decode(
                representation, payload, entries, vocabulary_size=size, legal_size=size
            )
            assert same(arrived, sent)


# --- the value rules -----------------------------------------------------------------------

GOOD_DENSE = eighths(1, 0, 3, 0, 0, 4, 0, 0)
GOOD_SPARSE = ids(0, 2, 5) + eighths(1, 3, 4)


def test_the_rows_that_the_refusals_bend_are_good() -> None:
    for row in (read(DENSE, GOOD_DENSE, 8), read(SPARSE, GOOD_SPARSE, 3)):
        assert row.dense().tolist() == [1, 0, 3, 0, 0, 4, 0, 0]


@pytest.mark.parametrize("entries", [0, 1, 7, 9, 1 << 31])
def test_a_dense_row_has_an_entry_for_each_id(entries: int) -> None:
    assert refusal_of(DENSE, GOOD_DENSE, entries).code is Code.ROW_ENTRIES


@pytest.mark.parametrize("entries", [-1, 0, 7, 8, 1 << 31])
def test_a_sparse_row_has_one_entry_to_as_many_as_there_are_legal_ids(entries: int) -> None:
    assert refusal_of(SPARSE, GOOD_SPARSE, entries).code is Code.ROW_ENTRIES


def test_a_support_of_every_legal_id_is_good() -> None:
    row = read(SPARSE, ids(0, 1, 2, 3, 4, 5) + eighths(1, 1, 1, 1, 1, 3), 6)
    assert row.counts.tolist() == [1, 1, 1, 1, 1, 3]


@pytest.mark.parametrize(
    ("representation", "payload", "entries"),
    [
        (DENSE, b"", 8),
        (DENSE, GOOD_DENSE[:-1], 8),
        (DENSE, GOOD_DENSE[:16], 8),
        (DENSE, GOOD_DENSE + b"\0", 8),
        (DENSE, GOOD_DENSE + bytes(4), 8),
        (SPARSE, b"", 3),
        (SPARSE, GOOD_SPARSE[:-4], 3),
        (SPARSE, GOOD_SPARSE + bytes(8), 3),
        (SPARSE, GOOD_SPARSE, 2),
        (SPARSE, GOOD_SPARSE, 4),
    ],
)
def test_the_byte_length_follows_from_the_entries(
    representation: Representation, payload: bytes, entries: int
) -> None:
    assert refusal_of(representation, payload, entries).code is Code.ROW_BYTES


@pytest.mark.parametrize(
    ("support", "place"),
    [
        ((0, 2, LEGAL), 2),
        ((0, 2, ROW - 1), 2),
        ((0, 2, ROW), 2),
        ((0, 2, 0x7FFFFFFF), 2),
        ((-1, 2, 5), 0),
        ((-0x80000000, 2, 5), 0),
        ((0, 9, 5), 1),
        ((0, -1, -2), 1),
    ],
)
def test_ids_outside_the_legal_vocabulary_are_refused(
    support: tuple[int, int, int], place: int
) -> None:
    """Padding ids are outside it; the value of an id is looked at before its order."""
    refusal = refusal_of(SPARSE, ids(*support) + eighths(1, 3, 4), 3)
    assert (refusal.code, refusal.field) == (Code.ID_RANGE, f"ids[{place}]")


@pytest.mark.parametrize(
    ("support", "place"),
    [((0, 0, 5), 1), ((0, 5, 5), 2), ((2, 0, 5), 1), ((5, 2, 0), 1), ((0, 5, 2), 2)],
)
def test_ids_that_do_not_ascend_strictly_are_refused(
    support: tuple[int, int, int], place: int
) -> None:
    refusal = refusal_of(SPARSE, ids(*support) + eighths(1, 3, 4), 3)
    assert (refusal.code, refusal.field) == (Code.ID_ORDER, f"ids[{place}]")


BAD_BITS = {
    "NaN": 0x7FC00000,
    "negative NaN": 0xFFC00000,
    "signalling NaN": 0x7F800001,
    "infinity": 0x7F800000,
    "negative infinity": 0xFF800000,
    "negative zero": 0x80000000,
    "negative": 0xBE000000,
    "negative subnormal": 0x80000001,
    "the next above one": 0x3F800001,
    "two": 0x40000000,
}


@pytest.mark.parametrize("bits", BAD_BITS.values(), ids=BAD_BITS)
def test_patterns_outside_zero_to_one_are_refused(bits: int) -> None:
    """Wherever they stand, also in padding."""
    for place in range(ROW):
        payload = bytearray(GOOD_DENSE)
        payload[4 * place : 4 * place + 4] = patterns(bits)
        refusal = refusal_of(DENSE, bytes(payload), 8)
        assert (refusal.code, refusal.field) == (Code.VALUE_BITS, f"q[{place}]")
    for place in range(3):
        payload = bytearray(GOOD_SPARSE)
        payload[12 + 4 * place : 16 + 4 * place] = patterns(bits)
        refusal = refusal_of(SPARSE, bytes(payload), 3)
        assert (refusal.code, refusal.field) == (Code.VALUE_BITS, f"q[{place}]")


def test_a_sparse_entry_has_mass() -> None:
    refusal = refusal_of(SPARSE, ids(0, 2, 5) + eighths(4, 0, 4), 3)
    assert (refusal.code, refusal.field) == (Code.VALUE_ZERO, "q[1]")


NOT_DYADIC = {
    "least subnormal": 0x00000001,
    "greatest subnormal": 0x007FFFFF,
    "least normal": 0x00800000,
    "half a ticket": 0x3D800000,
    "one and a half tickets": 0x3E400000,
    "the next above a ticket": 0x3E000001,
    "the next below one": 0x3F7FFFFF,
    "a tenth": 0x3DCCCCCD,
}


@pytest.mark.parametrize("bits", NOT_DYADIC.values(), ids=NOT_DYADIC)
def test_values_between_tickets_are_refused(bits: int) -> None:
    payload = eighths(1, 0, 3, 0) + patterns(bits) + eighths(4, 0, 0)
    refusal = refusal_of(DENSE, payload, 8)
    assert (refusal.code, refusal.field) == (Code.VALUE_DYADIC, "q[4]")
    refusal = refusal_of(SPARSE, ids(0, 2, 5) + eighths(1, 3) + patterns(bits), 3)
    assert (refusal.code, refusal.field) == (Code.VALUE_DYADIC, "q[2]")


def test_values_between_tickets_that_sum_to_the_mass_are_refused() -> None:
    """Two halves of a ticket are not a ticket."""
    payload = floats(0.875, 1 / 16, 1 / 16, 0, 0, 0, 0, 0)
    assert refusal_of(DENSE, payload, 8).code is Code.VALUE_DYADIC


@pytest.mark.parametrize(
    "counts",
    [(0,) * 8, (1, 0, 3, 0, 0, 3, 0, 0), (1, 0, 3, 0, 0, 5, 0, 0), (8, 8, 8, 8, 8, 8, 8, 8)],
)
def test_another_total_than_the_mass_is_refused(counts: Sequence[int]) -> None:
    refusal = refusal_of(DENSE, eighths(*counts), 8)
    assert (refusal.code, refusal.got) == (Code.MASS_WRONG, sum(counts))
    support = [token for token in range(LEGAL) if counts[token]]
    if support:
        values = eighths(*(counts[token] for token in support))
        refusal = refusal_of(SPARSE, ids(*support) + values, len(support))
        assert refusal.code is Code.MASS_WRONG


def test_a_total_beyond_32_bits_does_not_wrap_to_the_mass() -> None:
    """A sum in 32 bits would see the mass here: 257 ones are 2**32 + 2**24."""
    with pytest.raises(ProtocolError) as refusal:
        decode(DENSE, floats(*[1.0] * 257), 257, vocabulary_size=257, legal_size=257)
    assert (refusal.value.code, refusal.value.got) == (Code.MASS_WRONG, 257 << 24)


@pytest.mark.parametrize("token", [LEGAL, ROW - 1])
def test_dense_padding_has_no_mass(token: int) -> None:
    counts = [1, 0, 3, 0, 0, 3, 0, 0]
    counts[token] = 1
    assert refusal_of(DENSE, eighths(*counts), 8).code is Code.PADDING_NOT_ZERO


def test_a_row_without_padding() -> None:
    row = decode(
        DENSE, eighths(0, 0, 0, 0, 0, 0, 0, 8), 8, vocabulary_size=8, legal_size=8, mass_bits=3
    )
    assert row.counts.tolist() == [0, 0, 0, 0, 0, 0, 0, 8]


# Each step mends the first fault of the row before it; the next one is then seen.
DENSE_STAIRS = [
    (7, bytes(3), Code.ROW_ENTRIES),
    (8, bytes(3), Code.ROW_BYTES),
    (8, floats(0.1, 0, 0, 0, 0, 0.5, 0.5, np.nan), Code.VALUE_BITS),
    (8, floats(0.1, 0, 0, 0, 0, 0.5, 0.5, 0), Code.VALUE_DYADIC),
    (8, floats(0.125, 0, 0, 0, 0, 0.5, 0.5, 0), Code.MASS_WRONG),
    (8, floats(0, 0, 0, 0, 0, 0.5, 0.5, 0), Code.PADDING_NOT_ZERO),
    (8, floats(0.5, 0, 0, 0, 0, 0.5, 0, 0), None),
]
SPARSE_STAIRS = [
    (0, bytes(3), Code.ROW_ENTRIES),
    (4, bytes(3), Code.ROW_BYTES),
    (4, ids(2, 2, 1, 6) + floats(0.1, 0, 0.5, np.nan), Code.ID_RANGE),
    (4, ids(2, 2, 1, 5) + floats(0.1, 0, 0.5, np.nan), Code.ID_ORDER),
    (4, ids(0, 1, 2, 5) + floats(0.1, 0, 0.5, np.nan), Code.VALUE_BITS),
    (4, ids(0, 1, 2, 5) + floats(0.1, 0, 0.5, 0.5), Code.VALUE_ZERO),
    (4, ids(0, 1, 2, 5) + floats(0.1, 0.125, 0.5, 0.5), Code.VALUE_DYADIC),
    (4, ids(0, 1, 2, 5) + floats(0.125, 0.125, 0.5, 0.5), Code.MASS_WRONG),
    (4, ids(0, 1, 2, 5) + floats(0.125, 0.125, 0.25, 0.5), None),
]


@pytest.mark.parametrize("representation", list(Representation))
def test_the_first_rule_that_fails_is_the_one_that_is_named(
    representation: Representation,
) -> None:
    stairs = DENSE_STAIRS if representation is DENSE else SPARSE_STAIRS
    for entries, payload, code in stairs:
        if code is None:
            assert read(representation, payload, entries).token_at(7) == 5
        else:
            assert refusal_of(representation, payload, entries).code is code


# --- memory --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("representation", "payload", "entries"), [(DENSE, GOOD_DENSE, 8), (SPARSE, GOOD_SPARSE, 3)]
)
def test_a_decoded_row_does_not_hold_its_payload(
    representation: Representation, payload: bytes, entries: int
) -> None:
    """Read at an odd address of a larger buffer, which is then overwritten and resized."""
    buffer = bytearray(b"x" + payload + b"x")
    view = memoryview(buffer)[1:-1]
    row = read(representation, view, entries)
    before = row.dense().tolist()
    view[:] = bytes(len(view))
    view.release()
    buffer.clear()
    assert row.dense().tolist() == before
    with pytest.raises(ValueError, match="read-only"):
        row.counts[0] = 1
