"""Fault kinds F (values not validated)."""

import struct
from typing import Any

import msgspec
import pytest

from proto_v2.codec import encode_body
from proto_v2.errors import Code, Disposition, ProtocolError, known_code
from proto_v2.messages import KINDS, Commit, Completion, Role, Rows, Step, StepEntry, check_legal
from proto_v2.negotiate import derive_terms
from proto_v2.validate import check_completion, check_row, check_step, read_row, split_payload
from proto_v2.vocabulary import map_hash
from tests.proto_samples import (
    MASS,
    SAMPLES,
    TOKENS,
    VOCABULARY,
    chain,
    completion,
    decode_body,
    hello,
    plain,
    row,
    sparse_entry,
    step,
    step_entry,
    terms,
)

TERMS = terms()
LEGAL = VOCABULARY.legal_size
PACK = msgspec.msgpack.encode


def sparse_payload(ids: list[int], counts: list[int]) -> bytes:
    """A sparse row exactly as asked for, whatever that is."""
    values = [count / MASS for count in counts]
    return struct.pack(f"<{len(ids)}i{len(values)}f", *ids, *values)


def refused_row(entry: StepEntry, payload: bytes, token: int) -> Code:
    """Why a row that its sender sealed over these bytes is refused."""
    one = row(entry, 0, payload, token=token)
    check_row(TERMS, entry, 0, one)
    with pytest.raises(ProtocolError) as caught:
        read_row(TERMS, entry, 0, (), one, payload)
    return caught.value.code


@pytest.mark.parametrize("entry", [step_entry(), sparse_entry()], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    "token", [LEGAL, LEGAL + 1, VOCABULARY.size, -1, (1 << 31) - 1, -(1 << 31)]
)
def test_f01_ids_from_the_vocabulary_size_on_are_refused(entry: StepEntry, token: int) -> None:
    """F1: a drawn id V, -1 or 2**31-1 is refused, padded ids included; V-1 passes."""
    rows, _ = chain(entry)
    check_row(TERMS, entry, 0, msgspec.structs.replace(rows[0], token=LEGAL - 1))
    with pytest.raises(ProtocolError) as caught:
        check_row(TERMS, entry, 0, msgspec.structs.replace(rows[0], token=token))
    assert caught.value.code is Code.TOKEN_RANGE
    with pytest.raises(ProtocolError) as caught:
        check_legal([LEGAL - 1, token], LEGAL, Code.PROMPT_TOKEN, "prompt")
    assert caught.value.code is Code.PROMPT_TOKEN


@pytest.mark.parametrize("token", [1 << 31, -(1 << 31) - 1, (1 << 64) - 1])
def test_f01_ids_that_are_no_int32_do_not_decode(token: int) -> None:
    """F1: an id outside int32 is no value of the wire, so it cannot wrap into range."""
    rows, _ = chain(step_entry())
    body: list[Any] = plain(Rows(1, tuple(rows)))
    body[2][0][rows[0].__struct_fields__.index("token")] = token
    with pytest.raises(ProtocolError) as caught:
        decode_body(13, PACK(body), b"")
    assert caught.value.code is Code.MALFORMED


@pytest.mark.parametrize("changed", range(len(TOKENS)))
def test_f02_a_map_that_differs_by_one_entry_is_refused(changed: int) -> None:
    """F2: the hash covers every entry of the id map; one that differs ends the negotiation."""
    tokens = list(TOKENS)
    tokens[changed] += b" "
    with pytest.raises(ProtocolError) as caught:
        derive_terms(hello(), hello(Role.WORKER, vocabulary_hash=map_hash(tokens)))
    assert (caught.value.code, caught.value.field) == (
        Code.VOCABULARY_HASH_MISMATCH,
        "vocabulary_hash",
    )


def test_f02_two_swapped_or_shifted_entries_are_another_map() -> None:
    """F2: neither a swap nor a byte moved between neighbours keeps the hash."""
    swapped = [TOKENS[1], TOKENS[0], *TOKENS[2:]]
    shifted = [TOKENS[0] + TOKENS[1][:1], TOKENS[1][1:], *TOKENS[2:]]
    assert len({map_hash(tokens) for tokens in (TOKENS, swapped, shifted, TOKENS[:-1])}) == 4


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("vocabulary_size", VOCABULARY.size + 1, Code.VOCABULARY_SIZE_MISMATCH),
        ("legal_size", LEGAL + 1, Code.VOCABULARY_SIZE_MISMATCH),
    ],
)
def test_f02_another_vocabulary_size_is_refused(field: str, value: int, code: Code) -> None:
    """F2: row width and legal size are both compared."""
    with pytest.raises(ProtocolError) as caught:
        derive_terms(hello(), hello(Role.WORKER, **{field: value}))
    assert (caught.value.code, caught.value.field) == (code, field)


@pytest.mark.parametrize("kind", [0, 7, 19, 39, 47, 255])
def test_f03_an_unknown_kind_is_a_typed_answer(kind: int) -> None:
    """F3: an unknown operation is answered with its code; the connection stays."""
    with pytest.raises(ProtocolError) as caught:
        decode_body(kind, PACK([kind]))
    assert caught.value.code is Code.KIND_UNKNOWN
    assert caught.value.entry.disposition is Disposition.NAK


@pytest.mark.parametrize("representation", [0, 3, 255])
def test_f03_an_unknown_representation_is_a_typed_answer(representation: int) -> None:
    """F3: a number that is no representation fails its rule in a step and in a row."""
    with pytest.raises(ProtocolError) as caught:
        check_step(TERMS, step(step_entry(representation=representation)))
    assert caught.value.code is Code.REPRESENTATION_MISMATCH
    rows, _ = chain(step_entry())
    with pytest.raises(ProtocolError) as caught:
        check_row(
            TERMS,
            step_entry(),
            0,
            msgspec.structs.replace(rows[0], representation=representation),
        )
    assert caught.value.code is Code.REPRESENTATION_MISMATCH


@pytest.mark.parametrize("status", [1, 99, 399, 999, (1 << 32) - 1])
def test_f03_an_unknown_status_is_still_a_failure(status: int) -> None:
    """F3: a status nobody registered discards the proposal; it is never taken for success."""
    entry = step_entry()
    check_completion(entry, completion(entry, [], 0, status=status), [], 0)
    assert known_code(status, Code.COMPLETION_STATUS) is Code.COMPLETION_STATUS


@pytest.mark.parametrize("outside", [LEGAL, VOCABULARY.size, -1, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_f04_the_values_of_an_index_are_checked(outside: int, place: int) -> None:
    """F4: a sparse row of the right shape with one id outside is refused before it is used."""
    ids = [1, 2, 9]
    ids[place] = outside
    payload = sparse_payload(ids, [MASS // 2, MASS // 4, MASS // 4])
    assert refused_row(sparse_entry(), payload, 2 if place != 1 else 9) is Code.ID_RANGE


@pytest.mark.parametrize(
    ("ids", "counts"),
    [
        ([5, 5], [MASS // 2, MASS // 2]),
        ([5, 5], [MASS, 0]),
        ([5, 5], [0, MASS]),
        ([1, 5, 5], [MASS // 2, MASS // 2, 0]),
        ([5, 5, 9], [MASS // 4, MASS // 4, MASS // 2]),
        ([9, 5], [MASS // 2, MASS // 2]),
    ],
)
def test_f06_duplicate_or_unsorted_ids_are_refused(ids: list[int], counts: list[int]) -> None:
    """F6: [5, 5] is refused whatever the masses are, zero mass included; so is a wrong order."""
    assert refused_row(sparse_entry(), sparse_payload(ids, counts), 5) is Code.ID_ORDER


def test_f06_the_same_masses_on_ascending_ids_pass() -> None:
    """F6: the control, so that nothing but the ids is refused above."""
    entry = sparse_entry()
    payload = sparse_payload([5, 6], [MASS // 2, MASS // 2])
    found = read_row(TERMS, entry, 0, (), row(entry, 0, payload, token=5), payload)
    assert (found.count_of(5), found.count_of(6)) == (MASS // 2, MASS // 2)


def test_f08_depth_0_and_empty_lists_are_legal_and_index_nothing() -> None:
    """F8: depth 0, no rows, no payload and no commits are ordinary values."""
    entry = step_entry(depth=0)
    check_step(TERMS, step(entry))
    assert split_payload(step(entry), Rows(1, ()), b"") == []
    check_completion(entry, completion(entry, [], 0), [], 0)
    for message in (Rows(1, ()), Completion(1, ()), Commit(()), Step(1, ())):
        kind = int(type(message).__struct_config__.tag)  # type: ignore[arg-type]
        payload = b"" if isinstance(message, Rows) else None
        assert decode_body(kind, encode_body(message), payload).message == message
    with pytest.raises(ProtocolError) as caught:
        check_step(TERMS, Step(1, ()))
    assert caught.value.code is Code.BATCH_RANGE


@pytest.mark.parametrize("kind", KINDS)
def test_f08_one_field_too_many_is_refused(kind: int) -> None:
    """F8: no unknown field is dropped silently, in a message or in a record inside it."""
    payload = b"" if kind == 13 else None
    bodies = [[*plain(SAMPLES[kind]), 0]]
    if kind == 12:
        bodies.append([12, 1, [[*plain(step_entry()), 0]]])
    for body in bodies:
        with pytest.raises(ProtocolError) as caught:
            decode_body(kind, PACK(body), payload)
        assert caught.value.code is Code.MALFORMED
