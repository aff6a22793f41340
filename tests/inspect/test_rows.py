"""The rules of Step, Rows and Completion: number, code and place, with and without the step."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pp1.inspect.link import Link
from pp1.inspect.message import Inspected, inspect_message
from proto_v2 import codec, limits
from proto_v2.dyadic import Categorical
from proto_v2.errors import Code
from proto_v2.messages import (
    Completion,
    Message,
    Open,
    Reset,
    Role,
    Row,
    Rows,
    StepEntry,
    tokens_to_bytes,
)
from proto_v2.representation import Representation, decode
from proto_v2.rng import Domain, KeyedTickets, Owner, derive_key
from tests.proto_samples import (
    BOOT,
    EPOCH,
    SAMPLES,
    SESSION,
    VOCABULARY,
    chain,
    completion,
    hello,
    row,
    sparse_entry,
    step,
    step_entry,
)

replace = msgspec.structs.replace


def show(
    link: Link, message: Message, payload: bytes | None = None, sender: object = None
) -> Inspected:
    frames = [bytes(frame) for frame in codec.encode(message, BOOT, EPOCH, payload)]
    return inspect_message(frames, link, sender)


def marks(inspected: Inspected) -> list[tuple[str, Code, str]]:
    return [(fault.rule, fault.code, fault.field) for fault in inspected.broken]


def agreed() -> Link:
    link = Link()
    show(link, hello(Role.RANK_ZERO), sender=1)
    show(link, hello(Role.WORKER), sender=2)
    assert link.terms.vocabulary_size == VOCABULARY.size
    return link


def asked(*entries: StepEntry) -> Link:
    link = agreed()
    assert show(link, step(*entries)).broken == []
    return link


def rows_of(link: Link, rows: list[Row], payloads: list[bytes]) -> Inspected:
    return show(link, Rows(1, tuple(rows)), b"".join(payloads))


@pytest.mark.parametrize(
    ("changes", "rule", "code"),
    [
        ({"slot": 4}, "V04", Code.SLOT_RANGE),
        ({"depth": 6}, "V05", Code.DEPTH_RANGE),
        ({"temperature": 0.0}, "V06", Code.TEMPERATURE_RANGE),
        ({"temperature": float("nan")}, "V06", Code.TEMPERATURE_RANGE),
        ({"representation": 3}, "V07", Code.REPRESENTATION_MISMATCH),
        ({"support": 7}, "V08", Code.SUPPORT_RANGE),
    ],
)
def test_a_step_entry_is_judged_by_the_agreed_terms(
    changes: dict[str, Any], rule: str, code: Code
) -> None:
    other = sparse_entry(slot=1, session_id=bytes(16))
    found = show(agreed(), step(other, sparse_entry(**changes)))
    assert marks(found) == [(rule, code, f"body.entries[1].{next(iter(changes))}")]


@pytest.mark.parametrize(
    ("entries", "rule", "code"),
    [
        ((), "V01", Code.BATCH_RANGE),
        ((sparse_entry(), sparse_entry(session_id=bytes(16))), "V02", Code.SLOT_DUPLICATE),
        ((sparse_entry(), sparse_entry(slot=1)), "V03", Code.SESSION_DUPLICATE),
    ],
)
def test_a_batch_is_judged_first(entries: tuple[StepEntry, ...], rule: str, code: Code) -> None:
    assert marks(show(agreed(), step(*entries))) == [(rule, code, "body.entries")]


@pytest.mark.parametrize("entry", [step_entry(), sparse_entry()])
@pytest.mark.parametrize("make", [lambda entry: asked(entry), lambda entry: Link()])
def test_a_sound_chain_breaks_nothing(entry: StepEntry, make: Callable[[StepEntry], Link]) -> None:
    link = make(entry)
    rows, payloads = chain(entry)
    for _ in range(2):  # a repeated step is answered with the same bytes
        assert marks(rows_of(link, rows[:2], payloads[:2])) == []
        found = rows_of(link, rows[2:], payloads[2:])
        assert marks(found) == []
        done = completion(entry, [r.checksum for r in rows], sum(map(len, payloads)))
        assert marks(show(link, Completion(1, (done,)))) == []
    values = {field.name: field.value for field in found.fields}
    assert values["payload.rows[0].mass"] == limits.MASS
    assert values["payload.rows[0].support"] == 3


def test_a_payload_is_where_the_listing_says() -> None:
    rows, payloads = chain(sparse_entry())
    frames = codec.encode(Rows(1, tuple(rows)), BOOT, EPOCH, b"".join(payloads))
    raw = b"".join(bytes(frame) for frame in frames)
    for field in rows_of(Link(), rows, payloads).fields:
        if field.name.endswith(".ids"):
            place = field.offset
            assert raw[place : place + field.size] == tokens_to_bytes(field.value.tolist())  # type: ignore[union-attr]
            one = struct.unpack_from("<f", raw, place + field.size)[0]
            assert one * limits.MASS == 1 << 22


@pytest.mark.parametrize(
    ("changes", "rule", "code", "field"),
    [
        ({"position": 9}, "V10", Code.ROW_POSITION, "position"),
        ({"representation": 1}, "V11", Code.REPRESENTATION_MISMATCH, "representation"),
        ({"token": 10}, "V12", Code.TOKEN_RANGE, "token"),
        ({"entries": 0}, "V13", Code.Q_MISSING, ""),
        ({"entries": 5}, "V14", Code.ROW_ENTRIES, "entries"),
        ({"entries": 2}, "V15", Code.ROW_BYTES, "byte_length"),
        ({"checksum": 1}, "V23", Code.ROW_CHECKSUM, "checksum"),
    ],
)
def test_a_row_is_judged_by_its_step(
    changes: dict[str, Any], rule: str, code: Code, field: str
) -> None:
    entry = sparse_entry()
    rows, payloads = chain(entry)
    rows[1] = replace(row(entry, 1, payloads[1], **changes), **changes)
    found = rows_of(asked(entry), rows[:2], payloads[:2])
    assert marks(found) == [(rule, code, ("body.rows[1]." + field).rstrip("."))]


def test_a_row_beyond_the_depth() -> None:
    entry = sparse_entry()
    rows, payloads = chain(entry)
    found = rows_of(asked(sparse_entry(depth=1)), rows[:1], payloads[:1])
    assert [fault[0] for fault in marks(found)] == []
    shallow = asked(sparse_entry(depth=1))
    assert marks(rows_of(shallow, rows[:2], payloads[:2])) == [
        ("V09", Code.DEPTH_MISMATCH, "body.rows[1]")
    ]


def test_a_row_that_comes_again_with_other_bytes() -> None:
    entry = sparse_entry()
    rows, payloads = chain(entry)
    link = asked(entry)
    rows_of(link, rows, payloads)
    other = replace(rows[2], checksum=5)
    assert marks(rows_of(link, [other], payloads[2:3])) == [
        ("V-4", Code.ROW_DUPLICATE, "body.rows[0].checksum")
    ]


def sparse(ids: list[int], values: list[float | int]) -> bytes:
    """Ids and values; an integer is the bits of a value."""
    return struct.pack(f"<{len(ids)}i", *ids) + b"".join(
        struct.pack("<I" if isinstance(value, int) else "<f", value) for value in values
    )


@pytest.mark.parametrize(
    ("payload", "rule", "code", "field"),
    [
        (sparse([1, 10], [0.5, 0.5]), "V25", Code.ID_RANGE, "payload.rows[0].ids"),
        (sparse([-1, 2], [0.5, 0.5]), "V25", Code.ID_RANGE, "payload.rows[0].ids"),
        (sparse([2, 2], [0.5, 0.5]), "V26", Code.ID_ORDER, "payload.rows[0].ids"),
        (sparse([2, 3], [0.5, 0x7FC00000]), "V27", Code.VALUE_BITS, "payload.rows[0].counts"),
        (sparse([2, 3], [0.5, 0x7F800001]), "V27", Code.VALUE_BITS, "payload.rows[0].counts"),
        (sparse([2, 3], [0.5, -0.5]), "V27", Code.VALUE_BITS, "payload.rows[0].counts"),
        (sparse([2, 3], [1.0, 0.0]), "V28", Code.VALUE_ZERO, "payload.rows[0].counts"),
        (sparse([2, 3], [0.5, 2.0**-25]), "V29", Code.VALUE_DYADIC, "payload.rows[0].counts"),
        (sparse([2, 3], [0.5, 0.25]), "V30", Code.MASS_WRONG, "payload.rows[0].mass"),
        (sparse([3, 4], [0.5, 0.5]), "V32", Code.TOKEN_ZERO_Q, "body.rows[0].token"),
    ],
)
def test_the_values_of_a_sparse_row(payload: bytes, rule: str, code: Code, field: str) -> None:
    entry = sparse_entry(depth=1)
    one = row(entry, 0, payload)
    assert marks(rows_of(asked(entry), [one], [payload])) == [(rule, code, field)]
    given = Link({"vocabulary_size": VOCABULARY.size, "legal_size": VOCABULARY.legal_size})
    assert marks(rows_of(given, [one], [payload])) == [(rule, code, field)]


def test_padding_of_a_dense_row() -> None:
    entry = step_entry(depth=1)
    payload = struct.pack("<12f", 0, 0, 0.5, *[0] * 8, 0.5)
    one = row(entry, 0, payload)
    expected = [("V31", Code.PADDING_NOT_ZERO, "payload.rows[0].counts")]
    assert marks(rows_of(asked(entry), [one], [payload])) == expected
    assert marks(rows_of(Link({"legal_size": 10}), [one], [payload])) == expected
    assert marks(rows_of(Link(), [one], [payload])) == []  # nobody said where padding begins


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"byte_length": 23}, Code.ROW_BYTES, "body.rows"),
        ({"entry": 1}, Code.ROW_COUNT, "body.rows"),
    ],
)
def test_rows_and_payload_belong_together(changes: dict[str, int], code: Code, field: str) -> None:
    entry = sparse_entry()
    rows, payloads = chain(entry)
    found = rows_of(asked(entry), [replace(rows[0], **changes)], payloads[:1])
    assert marks(found) == [("V22", code, field)]
    raw = [shown.value for shown in found.fields if shown.name == "payload"]
    assert raw == [payloads[0]]


def test_rows_without_a_payload() -> None:
    entry = sparse_entry()
    rows, _ = chain(entry)
    assert marks(rows_of(asked(entry), rows, [])) == [("V22", Code.Q_MISSING, "payload")]


@pytest.mark.parametrize(
    ("changes", "rule", "code", "field"),
    [
        ({"round": 5}, "V33", Code.LATE_ROUND, ".round"),
        ({"status": 502}, "V34", Code.COMPLETION_STATUS, ".row_count"),
        ({"row_count": 4}, "V34", Code.DEPTH_MISMATCH, ".row_count"),
        ({"reply_bytes": 1}, "V36", Code.COMPLETION_BYTES, ".reply_bytes"),
        ({"checksum": 1}, "V37", Code.COMPLETION_CHECKSUM, ".checksum"),
    ],
)
def test_a_completion_is_judged_by_its_rows(
    changes: dict[str, int], rule: str, code: Code, field: str
) -> None:
    entry = sparse_entry()
    rows, payloads = chain(entry)
    link = asked(entry)
    rows_of(link, rows, payloads)
    done = completion(entry, [r.checksum for r in rows], sum(map(len, payloads)))
    done = replace(done, **changes)
    found = show(link, Completion(1, (done,)))
    assert marks(found) == [(rule, code, "body.entries[0]" + field)]


def test_a_completion_without_its_rows() -> None:
    entry = sparse_entry()
    done = completion(entry, [], 0, row_count=5)
    assert marks(show(asked(entry), Completion(1, (done,)))) == [
        ("V35", Code.ROW_COUNT, "body.entries[0].row_count")
    ]
    assert marks(show(asked(entry), Completion(1, ()))) == [("V35", Code.ROW_COUNT, "body.entries")]


def test_a_status_that_is_no_code() -> None:
    entry = sparse_entry()
    done = completion(entry, [], 0, status=499)
    expected = [("V38", Code.COMPLETION_STATUS, "body.entries[0].status")]
    assert marks(show(asked(entry), Completion(1, (done,)))) == expected
    assert marks(show(Link(), Completion(1, (done,)))) == expected


SEED = bytes(range(32))
KEY = derive_key(SEED, SESSION, 7, 3, Owner.WORKER)
RESET: Any = replace(SAMPLES[10], session_id=SESSION, request_id=7, generation=3, key=KEY)
OPEN: Any = replace(SAMPLES[20], session_id=SESSION, request_id=7, session_seed=SEED)


@pytest.mark.parametrize("begin", [RESET, OPEN])
def test_the_draw_is_made_again_where_the_key_was_seen(begin: Reset | Open) -> None:
    entry = sparse_entry(depth=1)
    payload = sparse([2, 5], [0.5, 0.5])
    ticket = KeyedTickets(KEY).ticket(24, Domain.PROPOSAL, entry.position, entry.round)
    q: Categorical = decode(
        Representation.SPARSE_F32, payload, 2, vocabulary_size=12, legal_size=10
    )
    drawn = q.token_at(ticket)
    for token in (2, 5):
        link = asked(entry)
        show(link, begin)
        found = marks(rows_of(link, [row(entry, 0, payload, token=token)], [payload]))
        wrong = [("V40", Code.TOKEN_NOT_DRAWN, "body.rows[0].token")]
        assert found == ([] if token == drawn else wrong)


def test_a_dense_row_may_not_have_more_support_than_was_asked() -> None:
    entry = step_entry(depth=1, support=2)
    _, payloads = chain(entry)
    link = asked(entry)
    show(link, RESET)
    assert marks(rows_of(link, [row(entry, 0, payloads[0])], payloads)) == [
        ("V39", Code.ROW_ENTRIES, "payload.rows[0].support")
    ]


def test_named_terms_hold_over_agreed_ones() -> None:
    link = Link({"depth_max": 2})
    show(link, hello(Role.RANK_ZERO), sender=1)
    show(link, hello(Role.WORKER), sender=2)
    assert marks(show(link, step(sparse_entry())))[0][0] == "V05"


def test_peers_that_refuse_each_other_agree_on_nothing() -> None:
    link = Link()
    show(link, hello(Role.RANK_ZERO), sender=1)
    show(link, hello(Role.WORKER, vocabulary_size=11), sender=2)
    assert link.terms.vocabulary_size == limits.VOCABULARY_SIZE_MAX
    assert (link.role(1), link.role(2), link.role(3)) == ("rank zero", "worker", None)


def test_a_representation_that_is_not_registered() -> None:
    entry = sparse_entry(representation=9, depth=1)
    link = agreed()
    assert [mark[0] for mark in marks(show(link, step(entry)))] == ["V07"]
    payload = sparse([2], [1.0])
    for known in (link, Link()):
        bad = replace(row(sparse_entry(), 0, payload), representation=9)
        assert marks(rows_of(known, [bad], [payload])) == [
            ("V11", Code.REPRESENTATION_MISMATCH, "body.rows[0].representation")
        ]
