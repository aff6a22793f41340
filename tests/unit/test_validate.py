"""Each rule at its limit and one beyond, its own code, and the order of the rules."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import limits
from proto_v2.binding import completion_checksum
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import CompletionEntry, Row, Rows, Step, StepEntry
from proto_v2.session import Ledger
from proto_v2.validate import (
    ROW_RULES,
    STEP_ENTRY_RULES,
    STEP_RULES,
    check_completion,
    check_entry_against,
    check_row,
    check_step,
    read_row,
    split_payload,
)
from tests.proto_samples import (
    SESSION,
    SUPPORT_MAX,
    VOCABULARY,
    categorical,
    chain,
    completion,
    deterministic,
    drawn,
    preceding,
    row,
    sparse_entry,
    step,
    step_entry,
    terms,
    values_of,
)

TERMS = terms()
DENSE, SPARSE = step_entry(), sparse_entry()


def refused(action: Callable[..., object], *args: Any) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        action(*args)
    return caught.value


def entries(count: int) -> list[StepEntry]:
    return [step_entry(slot=slot, session_id=bytes([slot]) * 16) for slot in range(count)]


# --- a step --------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 5))
def test_a_batch_of_one_to_four_passes(count: int) -> None:
    check_step(TERMS, step(*entries(count)))


def test_an_empty_batch_and_one_too_many() -> None:
    assert refused(check_step, TERMS, step()).code is Code.BATCH_RANGE
    assert refused(check_step, terms(requests_max=3), step(*entries(4))).code is Code.BATCH_RANGE
    assert refused(check_step, TERMS, step(*entries(5))).code is Code.BATCH_RANGE


def test_a_slot_or_a_session_twice() -> None:
    first, second = entries(2)
    twice = msgspec.structs.replace(second, slot=first.slot)
    assert refused(check_step, TERMS, step(first, twice)).code is Code.SLOT_DUPLICATE
    twice = msgspec.structs.replace(second, session_id=first.session_id)
    assert refused(check_step, TERMS, step(first, twice)).code is Code.SESSION_DUPLICATE


@pytest.mark.parametrize(
    ("field", "good", "bad", "code"),
    [
        ("slot", [0, 3], [4, 255], Code.SLOT_RANGE),
        ("depth", [0, 1, 5], [6, 255], Code.DEPTH_RANGE),
        (
            "temperature",
            [limits.TEMPERATURE_MIN, 1.0, limits.TEMPERATURE_MAX],
            [
                0.0,
                -0.0,
                -1.0,
                math.nextafter(limits.TEMPERATURE_MIN, 0),
                math.nextafter(limits.TEMPERATURE_MAX, math.inf),
                math.inf,
                -math.inf,
                math.nan,
            ],
            Code.TEMPERATURE_RANGE,
        ),
        ("representation", [1], [0, 3, 255], Code.REPRESENTATION_MISMATCH),
        ("support", [0, 1, VOCABULARY.size], [VOCABULARY.size + 1, 1 << 31], Code.SUPPORT_RANGE),
    ],
)
def test_each_field_of_an_entry(field: str, good: list[Any], bad: list[Any], code: Code) -> None:
    for value in good:
        check_step(TERMS, step(step_entry(**{field: value})))
    for value in bad:
        error = refused(
            check_step,
            TERMS,
            step(*entries(1), step_entry(slot=1, **{field: value}))
            if field != "slot"
            else step(step_entry(slot=value)),
        )
        assert (error.code, error.field) == (code, field)


def test_the_agreed_bounds_count_and_not_the_contracts() -> None:
    narrow = terms(depth_max=2, requests_max=2, representations=(2,), support_max=3)
    check_step(narrow, step(sparse_entry(slot=1, depth=2, support=3)))
    for change, code in (
        ({"depth": 3}, Code.DEPTH_RANGE),
        ({"slot": 2}, Code.SLOT_RANGE),
        ({"support": 4}, Code.SUPPORT_RANGE),
        ({"representation": 1}, Code.REPRESENTATION_MISMATCH),
    ):
        wide = sparse_entry(**{"depth": 2, "support": 3, **change})
        assert refused(check_step, narrow, step(wide)).code is code


def test_the_support_of_sparse_rows() -> None:
    for support in (1, SUPPORT_MAX):
        check_step(TERMS, step(sparse_entry(support=support)))
    assert refused(check_step, TERMS, step(sparse_entry(support=SUPPORT_MAX + 1))).code is (
        Code.SUPPORT_RANGE
    )
    # Full support is everything: it needs a vocabulary that fits the agreed support.
    assert refused(check_step, TERMS, step(sparse_entry(support=0))).code is Code.SUPPORT_RANGE
    small = terms(support_max=VOCABULARY.size)
    check_step(small, step(sparse_entry(support=0)))


def test_the_first_rule_that_fails_is_the_reason() -> None:
    wrong = {"slot": 9, "depth": 9, "temperature": 0.0, "representation": 9, "support": 1 << 20}
    order = [
        Code.SLOT_RANGE,
        Code.DEPTH_RANGE,
        Code.TEMPERATURE_RANGE,
        Code.REPRESENTATION_MISMATCH,
        Code.SUPPORT_RANGE,
    ]
    for code, field in zip(order, list(wrong), strict=True):
        assert refused(check_step, TERMS, step(step_entry(**wrong))).code is code
        del wrong[field]
    assert refused(check_step, TERMS, step(*[step_entry(slot=9)] * 5)).code is Code.BATCH_RANGE
    assert refused(check_step, TERMS, step(*[step_entry(slot=9)] * 2)).code is Code.SLOT_DUPLICATE
    assert len(STEP_RULES) == 3
    assert len(STEP_ENTRY_RULES) == len(order)


# --- a step against its session --------------------------------------------------------------


def held() -> tuple[Ledger, StepEntry]:
    """A ledger, and the one entry that it allows next."""
    ledger = Ledger(SESSION)
    ledger.append(range(7))
    ledger.begin(3)
    ledger.round = 3
    return ledger, step_entry(digest=ledger.digest)


def test_the_entry_that_follows() -> None:
    ledger, entry = held()
    check_entry_against(ledger, entry, 0, 99)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("generation", 2, Code.GENERATION_STALE),
        ("generation", 4, Code.GENERATION_AHEAD),
        ("slot", 1, Code.SLOT_RANGE),
        ("context", 98, Code.CONTEXT_MISMATCH),
        ("context", 100, Code.CONTEXT_MISMATCH),
        ("round", 3, Code.ROUND_STALE),
        ("round", 5, Code.ROUND_AHEAD),
        ("position", 6, Code.POSITION_MISMATCH),
        ("position", 8, Code.POSITION_MISMATCH),
        ("digest", b"x" * 16, Code.PREFIX_MISMATCH),
    ],
)
def test_an_entry_that_does_not_follow(field: str, value: Any, code: Code) -> None:
    ledger, entry = held()
    wrong = msgspec.structs.replace(entry, **{field: value})
    error = refused(check_entry_against, ledger, wrong, 0, 99)
    assert (error.code, error.field) == (code, field)


def test_identity_comes_before_order_and_order_before_the_prefix() -> None:
    ledger, entry = held()
    wrong: dict[str, Any] = {
        "generation": 9,
        "slot": 9,
        "context": 9,
        "round": 9,
        "position": 9,
        "digest": bytes(16),
    }
    for field in list(wrong):
        bent = msgspec.structs.replace(entry, **wrong)
        assert refused(check_entry_against, ledger, bent, 0, 99).field == field
        del wrong[field]


# --- row descriptors -------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_every_row_of_a_chain_passes_and_decodes_to_its_counts(entry: StepEntry) -> None:
    rows, payloads = chain(entry)
    for index, (one, payload) in enumerate(zip(rows, payloads, strict=True)):
        check_row(TERMS, entry, index, one)
        found = read_row(TERMS, entry, index, preceding(index), one, payload)
        assert found.dense().tolist() == categorical(entry, index).dense().tolist()


def bent(entry: StepEntry, index: int, **changes: Any) -> Row:
    rows, _ = chain(entry)
    return msgspec.structs.replace(rows[index], **changes)


@pytest.mark.parametrize("entry", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("position", 8, Code.ROW_POSITION),
        ("position", 10, Code.ROW_POSITION),
        ("position", 0, Code.ROW_POSITION),
        ("representation", 0, Code.REPRESENTATION_MISMATCH),
        ("representation", 3, Code.REPRESENTATION_MISMATCH),
        ("token", -1, Code.TOKEN_RANGE),
        ("token", VOCABULARY.legal_size, Code.TOKEN_RANGE),
        ("token", (1 << 31) - 1, Code.TOKEN_RANGE),
        ("entries", 0, Code.Q_MISSING),
        ("byte_length", 0, Code.Q_MISSING),
        ("entries", 13, Code.ROW_ENTRIES),
        ("entries", (1 << 32) - 1, Code.ROW_ENTRIES),
        ("byte_length", 1, Code.ROW_BYTES),
        ("byte_length", (1 << 32) - 1, Code.ROW_BYTES),
    ],
)
def test_each_field_of_a_row(entry: StepEntry, field: str, value: int, code: Code) -> None:
    assert refused(check_row, TERMS, entry, 2, bent(entry, 2, **{field: value})).code is code


@pytest.mark.parametrize("token", [0, VOCABULARY.legal_size - 1])
def test_the_first_and_the_last_legal_token(token: int) -> None:
    check_row(TERMS, DENSE, 0, bent(DENSE, 0, token=token))


def test_the_other_representation_is_refused_in_both_directions() -> None:
    assert refused(check_row, TERMS, DENSE, 0, bent(SPARSE, 0)).code is Code.REPRESENTATION_MISMATCH
    assert refused(check_row, TERMS, SPARSE, 0, bent(DENSE, 0)).code is Code.REPRESENTATION_MISMATCH


def test_a_chain_is_as_long_as_its_step_said() -> None:
    shorter = step_entry(depth=4)
    rows, _ = chain(DENSE)
    check_row(TERMS, shorter, 3, rows[3])
    assert refused(check_row, TERMS, shorter, 4, rows[4]).code is Code.DEPTH_MISMATCH
    nothing = step_entry(depth=0)
    assert refused(check_row, TERMS, nothing, 0, rows[0]).code is Code.DEPTH_MISMATCH


@pytest.mark.parametrize("entries", [VOCABULARY.size - 1, VOCABULARY.size + 1])
def test_a_dense_row_has_every_id(entries: int) -> None:
    wrong = bent(DENSE, 0, entries=entries, byte_length=entries * 4)
    assert refused(check_row, TERMS, DENSE, 0, wrong).code is Code.ROW_ENTRIES


@pytest.mark.parametrize(
    ("support", "support_max", "most"),
    [(4, SUPPORT_MAX, 4), (6, SUPPORT_MAX, 6), (0, VOCABULARY.size, 10), (12, 12, 10)],
)
def test_a_sparse_row_has_at_most_its_support(support: int, support_max: int, most: int) -> None:
    agreed = terms(support_max=support_max)
    entry = sparse_entry(support=support)
    for entries in (1, most):
        fits = bent(entry, 0, entries=entries, byte_length=entries * 8)
        check_row(agreed, entry, 0, fits)
        for byte_length in (entries * 8 - 1, entries * 8 + 1, entries * 4):
            wrong = bent(entry, 0, entries=entries, byte_length=byte_length)
            assert refused(check_row, agreed, entry, 0, wrong).code is Code.ROW_BYTES
    wrong = bent(entry, 0, entries=most + 1, byte_length=(most + 1) * 8)
    assert refused(check_row, agreed, entry, 0, wrong).code is Code.ROW_ENTRIES


@pytest.mark.parametrize("byte_length", [47, 49, 24])
def test_a_dense_row_has_four_bytes_an_id(byte_length: int) -> None:
    wrong = bent(DENSE, 0, byte_length=byte_length)
    assert refused(check_row, TERMS, DENSE, 0, wrong).code is Code.ROW_BYTES


def test_the_first_row_rule_that_fails_is_the_reason() -> None:
    wrong = {"position": 0, "representation": 9, "token": -1, "entries": 99, "byte_length": 1}
    order = [
        Code.ROW_POSITION,
        Code.REPRESENTATION_MISMATCH,
        Code.TOKEN_RANGE,
        Code.ROW_ENTRIES,
        Code.ROW_BYTES,
    ]
    assert refused(check_row, TERMS, DENSE, 5, bent(DENSE, 4, **wrong)).code is Code.DEPTH_MISMATCH
    for code, field in zip(order, list(wrong), strict=True):
        assert refused(check_row, TERMS, DENSE, 1, bent(DENSE, 1, **wrong)).code is code
        del wrong[field]
    empty = bent(DENSE, 1, token=-1, entries=0, byte_length=0)
    assert refused(check_row, TERMS, DENSE, 1, empty).code is Code.TOKEN_RANGE
    assert len(ROW_RULES) == len(order) + 2  # with depth before and presence of q between


# --- row bytes -------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_every_flipped_bit_of_a_payload_is_seen(entry: StepEntry) -> None:
    rows, payloads = chain(entry)
    for bit in range(len(payloads[1]) * 8):
        wrong = bytearray(payloads[1])
        wrong[bit // 8] ^= 1 << (bit % 8)
        error = refused(read_row, TERMS, entry, 1, preceding(1), rows[1], bytes(wrong))
        assert error.code is Code.ROW_CHECKSUM


@pytest.mark.parametrize("bit", range(64))
def test_every_flipped_bit_of_a_checksum_is_seen(bit: int) -> None:
    rows, payloads = chain(DENSE)
    wrong = msgspec.structs.replace(rows[0], checksum=rows[0].checksum ^ 1 << bit)
    assert refused(read_row, TERMS, DENSE, 0, (), wrong, payloads[0]).code is Code.ROW_CHECKSUM


@pytest.mark.parametrize("entry", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_a_token_without_mass_cannot_have_been_drawn(entry: StepEntry) -> None:
    _, payloads = chain(entry)
    for token, drawable in ((1, True), (9, True), (0, False), (8, False)):
        one = row(entry, 0, payloads[0], token=token)
        if drawable:
            read_row(TERMS, entry, 0, (), one, payloads[0])
        else:
            error = refused(read_row, TERMS, entry, 0, (), one, payloads[0])
            assert error.code is Code.TOKEN_ZERO_Q


def test_the_value_rules_come_after_the_binding() -> None:
    _, payloads = chain(DENSE)
    wrong = payloads[0][:-4] + b"\x00\x00\xc0\x7f"  # not a number, sealed by the sender
    error = refused(read_row, TERMS, DENSE, 0, (), row(DENSE, 0, wrong), wrong)
    assert error.code is Code.VALUE_BITS
    unsealed = row(DENSE, 0, payloads[0])
    assert refused(read_row, TERMS, DENSE, 0, (), unsealed, wrong).code is Code.ROW_CHECKSUM


def test_the_mass_is_a_parameter() -> None:
    _, payloads = chain(DENSE)
    one = row(DENSE, 0, payloads[0])
    error = refused(read_row, TERMS, DENSE, 0, (), one, payloads[0], 20)
    assert error.code is Code.VALUE_DYADIC


# --- payload frames --------------------------------------------------------------------------


def test_payloads_stand_back_to_back() -> None:
    both = step(*entries(2))
    first, first_bytes = chain(both.entries[0])
    second, second_bytes = chain(both.entries[1], place=1)
    message = Rows(1, (*first, *second))
    parts = split_payload(both, message, b"".join(first_bytes + second_bytes))
    assert [bytes(part) for part in parts] == first_bytes + second_bytes
    assert split_payload(both, Rows(1, ()), b"") == []


@pytest.mark.parametrize("size", [-1, 1])
def test_the_payload_is_exactly_its_rows(size: int) -> None:
    rows, payloads = chain(DENSE)
    payload = b"".join(payloads)
    wrong = payload[:size] if size < 0 else payload + bytes(size)
    error = refused(split_payload, step(DENSE), Rows(1, tuple(rows)), wrong)
    assert error.code is Code.ROW_BYTES
    assert refused(split_payload, step(DENSE), Rows(1, ()), b"x").code is Code.ROW_BYTES


@pytest.mark.parametrize("place", [1, 255])
def test_rows_name_an_entry_of_their_step(place: int) -> None:
    rows, payloads = chain(DENSE, place=place)
    message = Rows(1, tuple(rows))
    error = refused(split_payload, step(DENSE), message, b"".join(payloads))
    assert (error.code, error.field) == (Code.ROW_COUNT, "rows.entry")


def test_rows_never_come_without_q() -> None:
    rows, _ = chain(DENSE)
    error = refused(split_payload, step(DENSE), Rows(1, tuple(rows)), b"")
    assert error.code is Code.Q_MISSING


# --- completions -----------------------------------------------------------------------------

SUMS = [11, 12, 13, 14, 15]


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_a_whole_chain_completes(depth: int) -> None:
    entry = step_entry(depth=depth)
    sums = SUMS[:depth]
    check_completion(entry, completion(entry, sums, 48 * depth), sums, 48 * depth)


@pytest.mark.parametrize("status", [502, 500, 300, 1, (1 << 32) - 1])
@pytest.mark.parametrize("count", range(5))
def test_a_failed_chain_completes_with_what_it_had_sent(status: int, count: int) -> None:
    sums = SUMS[:count]
    failed = completion(DENSE, sums, 48 * count, status=status)
    check_completion(DENSE, failed, sums, 48 * count)


def test_a_depth_0_entry_may_fail_too() -> None:
    entry = step_entry(depth=0)
    check_completion(entry, completion(entry, [], 0, status=300), [], 0)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"session_id": bytes(16)}, Code.LATE_ROUND),
        ({"generation": 2}, Code.LATE_ROUND),
        ({"round": 3}, Code.LATE_ROUND),
        ({"row_count": 4}, Code.DEPTH_MISMATCH),
        ({"row_count": 6}, Code.DEPTH_MISMATCH),
        ({"row_count": 0}, Code.DEPTH_MISMATCH),
        ({"status": 502}, Code.COMPLETION_STATUS),
        ({"reply_bytes": 239}, Code.COMPLETION_BYTES),
        ({"reply_bytes": 241}, Code.COMPLETION_BYTES),
        ({"checksum": 0}, Code.COMPLETION_CHECKSUM),
    ],
)
def test_each_field_of_a_completion(change: dict[str, Any], code: Code) -> None:
    wrong = msgspec.structs.replace(completion(DENSE, SUMS, 240), **change)
    assert refused(check_completion, DENSE, wrong, SUMS, 240).code is code


@pytest.mark.parametrize("came", [0, 4, 6])
def test_a_completion_counts_the_rows_that_came(came: int) -> None:
    sums = [*SUMS, 16][:came]
    error = refused(check_completion, DENSE, completion(DENSE, SUMS, 240), sums, 48 * came)
    assert error.code is Code.ROW_COUNT


def test_a_failed_completion_counts_them_too() -> None:
    failed = completion(DENSE, SUMS[:2], 96, status=502)
    assert refused(check_completion, DENSE, failed, SUMS[:1], 48).code is Code.ROW_COUNT
    assert refused(check_completion, DENSE, failed, SUMS[:3], 144).code is Code.ROW_COUNT


def test_a_completion_of_other_rows() -> None:
    swapped = [12, 11, 13, 14, 15]
    error = refused(check_completion, DENSE, completion(DENSE, SUMS, 240), swapped, 240)
    assert error.code is Code.COMPLETION_CHECKSUM


def test_a_status_cannot_be_changed_under_the_checksum() -> None:
    failed = completion(DENSE, [], 0, status=502)
    other = msgspec.structs.replace(failed, status=500)
    assert refused(check_completion, DENSE, other, [], 0).code is Code.COMPLETION_CHECKSUM


# --- nothing else escapes --------------------------------------------------------------------


@deterministic
@given(values_of(Step))
def test_no_step_raises_anything_else(message: Step) -> None:
    ledger, _ = held()
    try:
        check_step(TERMS, message)
        for entry in message.entries:
            check_entry_against(ledger, entry, entry.slot, entry.context)
    except ProtocolError as error:
        assert 300 <= error.code < 400


@deterministic
@given(
    st.sampled_from([DENSE, SPARSE]),
    st.integers(0, 6),
    values_of(Row),
    st.lists(st.sampled_from(Row.__struct_fields__), max_size=3),
    st.binary(max_size=64),
    st.booleans(),
)
def test_no_row_raises_anything_else(
    entry: StepEntry, index: int, wild: Row, fields: list[str], noise: bytes, sealed: bool
) -> None:
    """Rows with some wild fields and wild bytes, half of them sealed by the sender."""
    rows, payloads = chain(entry)
    base = rows[min(index, 4)]
    one = msgspec.structs.replace(base, **{name: getattr(wild, name) for name in fields})
    whole = payloads[min(index, 4)]
    payload = (noise + whole[len(noise) :])[: len(whole)]
    if sealed:
        one = row(
            entry,
            index,
            payload,
            token=one.token,
            position=one.position,
            representation=one.representation,
            entries=one.entries,
            byte_length=one.byte_length,
        )
    try:
        [part] = split_payload(step(entry), Rows(1, (one,)), payload)
        check_row(TERMS, entry, index, one)
        found = read_row(TERMS, entry, index, preceding(index), one, part)
    except ProtocolError as error:
        assert 300 <= error.code < 500
    else:
        assert int(found.counts.sum()) == limits.MASS
        assert found.count_of(one.token) > 0


@deterministic
@given(values_of(CompletionEntry), st.lists(st.integers(0, (1 << 64) - 1), max_size=6))
def test_no_completion_raises_anything_else(wild: CompletionEntry, sums: list[int]) -> None:
    named = msgspec.structs.replace(
        wild,
        session_id=DENSE.session_id,
        generation=DENSE.generation,
        round=DENSE.round,
        checksum=completion_checksum(DENSE, wild.status, wild.reply_bytes, sums),
    )
    for entry in (wild, named):
        try:
            check_completion(DENSE, entry, sums, wild.reply_bytes)
        except ProtocolError as error:
            assert 400 <= error.code < 505 or error.code is Code.DEPTH_MISMATCH


def test_the_sample_chain_is_what_it_says() -> None:
    rows, _ = chain(DENSE)
    assert [one.token for one in rows] == [drawn(index) for index in range(5)]
