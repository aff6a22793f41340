"""The rules of Step, Rows and Completion, and the q of every row."""

from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from pp1.inspect import rules
from pp1.inspect.body import Value
from pp1.inspect.link import Asked, Link
from pp1.inspect.rules import Broken, broken
from proto_v2 import limits
from proto_v2.binding import row_checksum
from proto_v2.effects import Buffer
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import AnyMessage, Completion, Row, Rows, Step, StepEntry
from proto_v2.negotiate import Terms
from proto_v2.representation import NAMES, Representation
from proto_v2.rng import Domain
from proto_v2.validate import (
    ROW_RULES,
    STEP_ENTRY_RULES,
    STEP_RULES,
    check_completion,
    check_draw,
    read_row,
    split_payload,
)

Numbers: TypeAlias = NDArray[np.int32] | NDArray[np.float64]

_ENTRIES: Final = "body.entries"
# Faults of a whole row, where they are seen best.
_SHOWN_AS: Final = {Code.MASS_WRONG: "mass", Code.ROW_ENTRIES: "support"}


@dataclass(frozen=True, slots=True)
class Field:
    """One line of a listing: ``size`` bytes from ``offset`` in the frames back to back."""

    name: str
    offset: int
    size: int
    value: Value | Numbers


def judge(link: Link, message: AnyMessage, payload: Buffer, start: int) -> tuple[
    list[Field], list[Broken]
]:  # fmt: skip
    """What the payload at ``start`` holds, and every rule that the message breaks on its link."""
    if isinstance(message, Step):
        return [], _judge_step(link.terms, message)
    if isinstance(message, Rows):
        return _judge_rows(link, message, payload, start)
    if isinstance(message, Completion):
        return [], _judge_completion(link, message)
    return [], []


def _judge_step(terms: Terms, step: Step) -> list[Broken]:
    for rule in STEP_RULES:
        try:
            rule(terms, step)
        except ProtocolError as error:
            return [broken(rules.NUMBERED[rule.__name__], error, _ENTRIES)]
    found = []
    for index, entry in enumerate(step.entries):
        for entry_rule in STEP_ENTRY_RULES:
            try:
                entry_rule(terms, entry)
            except ProtocolError as error:
                number = rules.NUMBERED[entry_rule.__name__]
                found.append(broken(number, error, f"{_ENTRIES}[{index}].{error.field}"))
                break
    return found


def _judge_rows(
    link: Link, message: Rows, payload: Buffer, start: int
) -> tuple[list[Field], list[Broken]]:
    asked = link.asked(message)
    try:
        parts = split_payload(asked.step, message, payload)
    except ProtocolError as error:
        raw = Field("payload", start, len(payload), bytes(payload))
        field = "payload" if error.field == "payload" else "body.rows"
        return [raw], [broken(rules.PAYLOAD, error, field)]
    fields: list[Field] = []
    found: list[Broken] = []
    for place, (row, part) in enumerate(zip(message.rows, parts, strict=True)):
        fields += _show(f"payload.rows[{place}]", row, part, start)
        start += len(part)
        fault = _judge_row(link, asked, row, part)
        if fault is not None:
            rule, refusal = fault
            found.append(broken(rule, refusal, _place(place, refusal)))
    return fields, found


def _place(place: int, error: ProtocolError) -> str:
    """Where a listing shows the field that a row rule names."""
    field = error.field.rpartition(".")[2]
    if field.startswith(("ids", "q")):
        name = _SHOWN_AS.get(error.code, "ids" if field.startswith("ids") else "counts")
        return f"payload.rows[{place}].{name}"
    own = field in Row.__struct_fields__
    return f"body.rows[{place}].{field}" if own else f"body.rows[{place}]"


def _judge_row(
    link: Link, asked: Asked, row: Row, payload: Buffer
) -> tuple[str, ProtocolError] | None:
    chain = asked.chains[row.entry]
    terms, entry, index = link.terms_for(row), _registered(chain.entry), len(chain.tokens)
    earlier = row.position - entry.position
    if 0 <= earlier < index:
        if row.checksum == chain.checksums[earlier]:
            return None  # the same row again
        error = ProtocolError(
            Code.ROW_DUPLICATE,
            "checksum",
            f"{chain.checksums[earlier]:016x}, as first sent",
            f"{row.checksum:016x}",
        )
        return rules.REPEATED_ROW, error
    try:
        return _check_row(link, terms, asked.known, entry, index, chain.tokens, row, payload)
    finally:
        chain.tokens.append(row.token)
        chain.checksums.append(row.checksum)
        chain.reply_bytes += row.byte_length


def _registered(entry: StepEntry) -> StepEntry:
    """The entry, asking for a representation that there is: V07 has judged it already."""
    if entry.representation in NAMES:
        return entry
    return msgspec.structs.replace(entry, representation=int(Representation.SPARSE_F32))


def _check_row(
    link: Link,
    terms: Terms,
    known: bool,
    entry: StepEntry,
    index: int,
    preceding: list[int],
    row: Row,
    payload: Buffer,
) -> tuple[str, ProtocolError] | None:
    for rule in ROW_RULES:
        try:
            rule(terms, entry, index, row)
        except ProtocolError as error:
            return rules.NUMBERED[rule.__name__], error
    if not known:  # the place that the checksum covers is not known either
        own = row_checksum(
            entry, index, preceding, row.token, row.representation, row.entries, payload
        )
        row = msgspec.structs.replace(row, checksum=own)
    try:
        q = read_row(terms, entry, index, preceding, row, payload)
    except ProtocolError as error:
        return rules.ROW[error.code], error
    draws = link.draws(entry) if known else None
    if draws is None:
        return None
    ticket = draws.ticket(limits.MASS_BITS, Domain.PROPOSAL, row.position, entry.round)
    try:
        check_draw(entry, index, row.token, q, ticket)
    except ProtocolError as error:
        return rules.DRAW[error.code], error
    return None


def _show(name: str, row: Row, payload: Buffer, start: int) -> list[Field]:
    """Ids, counts and what they come to, as far as representation and length allow."""
    size = len(payload)
    if row.representation == Representation.SPARSE_F32 and size and size % 8 == 0:
        entries = size // 8
        ids = np.frombuffer(payload, dtype="<i4", count=entries)
        shown = [Field(f"{name}.ids", start, 4 * entries, ids)]
    elif row.representation == Representation.DENSE_F32 and size and size % 4 == 0:
        entries = size // 4
        shown = []
    else:
        return [Field(name, start, size, bytes(payload))]
    at, size = size - 4 * entries, 4 * entries
    with np.errstate(all="ignore"):  # the values may be anything
        counts = np.frombuffer(payload, dtype="<f4", offset=at).astype(np.float64) * limits.MASS
        mass = float(counts.sum())
    return [
        *shown,
        Field(f"{name}.counts", start + at, size, counts),
        Field(f"{name}.support", start + at, size, int(np.count_nonzero(counts))),
        Field(f"{name}.mass", start + at, size, whole(mass)),
    ]


def whole(number: float) -> int | float:
    """A count as an integer, if it is one."""
    return int(number) if number.is_integer() else number


def _judge_completion(link: Link, message: Completion) -> list[Broken]:
    asked = link.step(message.step)
    if asked is not None and len(message.entries) != len(asked.chains):
        error = ProtocolError(
            Code.ROW_COUNT, "entries", len(asked.chains), len(message.entries)
        )  # fmt: skip
        return [broken(rules.COMPLETION[error.code], error, _ENTRIES)]
    found = []
    for index, entry in enumerate(message.entries):
        place = f"{_ENTRIES}[{index}]"
        chain = None if asked is None else asked.chains[index]
        if chain is not None and chain.entry.depth:
            try:
                check_completion(chain.entry, entry, chain.checksums, chain.reply_bytes)
            except ProtocolError as error:
                field = error.field.removeprefix("completion.").replace("rows", "row_count")
                found.append(broken(rules.COMPLETION[error.code], error, f"{place}.{field}"))
                continue
        if entry.status and entry.status not in set(Code):
            unknown = ProtocolError(
                Code.COMPLETION_STATUS, "status", "0 or a registered code", entry.status
            )
            found.append(broken(rules.STATUS, unknown, f"{place}.status"))
    return found
