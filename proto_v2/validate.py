"""The semantic rules: well formed, but is it allowed here and now?

Each rule is one small function that returns or raises ``ProtocolError``; the
tuples ``STEP_RULES``, ``STEP_ENTRY_RULES`` and ``ROW_RULES`` give their order,
and the first failure wins. Sizes come before anything that touches the bytes
they describe. The value rules of a payload are in ``representation.decode``.
Sources: seed 000, "Bounds are negotiated and checked before memory access".
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from . import limits
from .binding import completion_checksum, row_checksum
from .dyadic import Categorical
from .effects import Buffer
from .errors import Code, ProtocolError
from .messages import CompletionEntry, Row, Rows, Step, StepEntry
from .negotiate import Terms
from .representation import Representation, decode, row_bytes
from .session import Ledger

# --- a step, without state ---------------------------------------------------------------


def step_batch_size(terms: Terms, step: Step) -> None:
    """A batch has between one request and the agreed number."""
    if not 1 <= len(step.entries) <= terms.requests_max:
        raise ProtocolError(
            Code.BATCH_RANGE, "step.entries", f"1..{terms.requests_max}", len(step.entries)
        )


def step_slots_unique(terms: Terms, step: Step) -> None:
    """No two requests of a batch share a slot (a padded row cannot be written)."""
    slots = [entry.slot for entry in step.entries]
    if len(set(slots)) != len(slots):
        raise ProtocolError(Code.SLOT_DUPLICATE, "step.entries.slot", "distinct slots", slots)


def step_sessions_unique(terms: Terms, step: Step) -> None:
    """No session twice in a batch."""
    sessions = [entry.session_id for entry in step.entries]
    if len(set(sessions)) != len(sessions):
        raise ProtocolError(
            Code.SESSION_DUPLICATE, "step.entries.session_id", "distinct sessions", "a repeat"
        )


STEP_RULES: Final[tuple[Callable[[Terms, Step], None], ...]] = (
    step_batch_size,
    step_slots_unique,
    step_sessions_unique,
)


def entry_slot(terms: Terms, entry: StepEntry) -> None:
    """The slot is one of the agreed ones."""
    if entry.slot >= terms.requests_max:
        raise ProtocolError(Code.SLOT_RANGE, "slot", f"below {terms.requests_max}", entry.slot)


def entry_depth(terms: Terms, entry: StepEntry) -> None:
    """Depth 0 is legal and typed; above the agreed depth is not."""
    if entry.depth > terms.depth_max:
        raise ProtocolError(Code.DEPTH_RANGE, "depth", f"0..{terms.depth_max}", entry.depth)


def entry_temperature(terms: Terms, entry: StepEntry) -> None:
    """The proposal temperature is a usable finite number."""
    low, high = limits.TEMPERATURE_MIN, limits.TEMPERATURE_MAX
    if not (math.isfinite(entry.temperature) and low <= entry.temperature <= high):
        raise ProtocolError(
            Code.TEMPERATURE_RANGE, "temperature", f"{low}..{high}", entry.temperature
        )


def entry_representation(terms: Terms, entry: StepEntry) -> None:
    """The representation is one of the agreed ones."""
    if entry.representation not in terms.representations:
        raise ProtocolError(
            Code.REPRESENTATION_MISMATCH,
            "representation",
            list(terms.representations),
            entry.representation,
        )


def entry_support(terms: Terms, entry: StepEntry) -> None:
    """Sparse rows fit the agreed support; full support needs a small vocabulary."""
    if entry.representation != Representation.SPARSE_F32:
        if entry.support > terms.vocabulary_size:
            raise ProtocolError(
                Code.SUPPORT_RANGE, "support", f"0..{terms.vocabulary_size}", entry.support
            )
        return
    if (entry.support or terms.vocabulary_size) > terms.support_max:
        raise ProtocolError(Code.SUPPORT_RANGE, "support", f"1..{terms.support_max}", entry.support)


STEP_ENTRY_RULES: Final[tuple[Callable[[Terms, StepEntry], None], ...]] = (
    entry_slot,
    entry_depth,
    entry_temperature,
    entry_representation,
    entry_support,
)


def check_step(terms: Terms, step: Step) -> None:
    """Every rule of a step that needs no session state."""
    for rule in STEP_RULES:
        rule(terms, step)
    for entry in step.entries:
        for entry_rule in STEP_ENTRY_RULES:
            entry_rule(terms, entry)


def check_entry_against(ledger: Ledger, entry: StepEntry, slot: int, context: int) -> None:
    """Every rule of a step entry that needs the session: identity, then order, then prefix."""
    ledger.check_generation(entry.generation)
    if entry.slot != slot:
        raise ProtocolError(Code.SLOT_RANGE, "slot", slot, entry.slot)
    if entry.context != context:
        raise ProtocolError(Code.CONTEXT_MISMATCH, "context", context, entry.context)
    ledger.check_round(entry.round)
    ledger.check_anchor(entry.position, entry.digest)


# --- a row, before its bytes are touched -------------------------------------------------


def row_in_depth(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """No row beyond the depth that the step fixed."""
    if index >= entry.depth:
        raise ProtocolError(Code.DEPTH_MISMATCH, "rows", f"{entry.depth} rows", index + 1)


def row_position(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """Row i of a chain is for absolute position anchor + i."""
    if row.position != entry.position + index:
        raise ProtocolError(
            Code.ROW_POSITION, f"rows[{index}].position", entry.position + index, row.position
        )


def row_representation(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """The representation is the one that the step asked for."""
    if row.representation != entry.representation:
        raise ProtocolError(
            Code.REPRESENTATION_MISMATCH,
            f"rows[{index}].representation",
            entry.representation,
            row.representation,
        )


def row_token(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """The token is a legal id; there are no placeholders."""
    if not 0 <= row.token < terms.legal_size:
        raise ProtocolError(
            Code.TOKEN_RANGE, f"rows[{index}].token", f"0..{terms.legal_size - 1}", row.token
        )


def row_q_present(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """A sampled token never comes without its q."""
    if row.entries == 0 or row.byte_length == 0:
        raise ProtocolError(Code.Q_MISSING, f"rows[{index}]", "a q", "none")


def row_entries(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """The entry count fits representation and support policy."""
    if row.representation == Representation.SPARSE_F32:
        most = min(entry.support or terms.support_max, terms.support_max, terms.legal_size)
        if row.entries > most:
            raise ProtocolError(
                Code.ROW_ENTRIES, f"rows[{index}].entries", f"1..{most}", row.entries
            )
    elif row.entries != terms.vocabulary_size:
        raise ProtocolError(
            Code.ROW_ENTRIES, f"rows[{index}].entries", terms.vocabulary_size, row.entries
        )


def row_byte_length(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """The byte length follows from the entry count."""
    wanted = row_bytes(Representation(row.representation), row.entries, terms.vocabulary_size)
    if row.byte_length != wanted:
        raise ProtocolError(Code.ROW_BYTES, f"rows[{index}].byte_length", wanted, row.byte_length)


ROW_RULES: Final[tuple[Callable[[Terms, StepEntry, int, Row], None], ...]] = (
    row_in_depth,
    row_position,
    row_representation,
    row_token,
    row_q_present,
    row_entries,
    row_byte_length,
)


def check_row(terms: Terms, entry: StepEntry, index: int, row: Row) -> None:
    """Every rule of a row descriptor; nothing has looked at its payload yet."""
    for rule in ROW_RULES:
        rule(terms, entry, index, row)


def read_row(
    terms: Terms,
    entry: StepEntry,
    index: int,
    preceding: Sequence[int],
    row: Row,
    payload: Buffer,
    mass_bits: int = limits.MASS_BITS,
) -> Categorical:
    """The categorical of a row whose descriptor passed ``check_row``.

    Binding first (are these the bytes for this place?), then the value rules,
    then that the token could have been drawn from them.
    """
    found = row_checksum(
        entry, index, preceding, row.token, row.representation, row.entries, payload
    )
    if found != row.checksum:
        raise ProtocolError(
            Code.ROW_CHECKSUM, f"rows[{index}].checksum", f"{found:016x}", f"{row.checksum:016x}"
        )
    categorical = decode(
        Representation(row.representation),
        payload,
        row.entries,
        vocabulary_size=terms.vocabulary_size,
        legal_size=terms.legal_size,
        mass_bits=mass_bits,
    )
    if categorical.count_of(row.token) == 0:
        raise ProtocolError(
            Code.TOKEN_ZERO_Q, f"rows[{index}].token", "a token with mass", row.token
        )
    return categorical


def check_draw(entry: StepEntry, index: int, token: int, q: Categorical, ticket: int) -> None:
    """The row that ``read_row`` gave is one that the step asked for, and its token was drawn.

    The ranks hold the worker's key, so they draw again: a token that some other
    distribution drew than the one that was sent is found here, whatever both are.
    """
    # A dense row shows its support by its values only.
    support = int(np.count_nonzero(q.counts))
    if entry.support and support > entry.support:
        raise ProtocolError(
            Code.ROW_ENTRIES, f"rows[{index}].q", f"at most {entry.support} ids", support
        )
    drawn = q.token_at(ticket)
    if drawn != token:
        raise ProtocolError(
            Code.TOKEN_NOT_DRAWN, f"rows[{index}].token", f"{drawn}, by ticket {ticket}", token
        )


def split_payload(step: Step, message: Rows, payload: Buffer) -> list[Buffer]:
    """The payload of each row; refuses rows without q, out of the step, or of a wrong total."""
    if message.rows and not len(payload):
        raise ProtocolError(Code.Q_MISSING, "payload", "a q for every row", "none")
    for row in message.rows:
        if row.entry >= len(step.entries):
            raise ProtocolError(
                Code.ROW_COUNT, "rows.entry", f"below {len(step.entries)}", row.entry
            )
    total = sum(row.byte_length for row in message.rows)
    if total != len(payload):
        raise ProtocolError(Code.ROW_BYTES, "rows.byte_length", len(payload), total)
    view = memoryview(payload)
    parts: list[Buffer] = []
    start = 0
    for row in message.rows:
        parts.append(view[start : start + row.byte_length])
        start += row.byte_length
    return parts


def check_completion(
    entry: StepEntry,
    completion: CompletionEntry,
    row_checksums: Sequence[int],
    reply_bytes: int,
) -> None:
    """The completion is for this proposal, and says the same as the rows that came.

    A failed proposal (``status`` not 0) may have flushed some of its rows, but
    never all of them. That it failed is for the caller to act upon.
    """
    for field in ("session_id", "generation", "round"):
        wanted, got = getattr(entry, field), getattr(completion, field)
        if wanted != got:
            raise ProtocolError(Code.LATE_ROUND, f"completion.{field}", wanted, got)
    if completion.status:
        if completion.row_count >= max(entry.depth, 1):
            raise ProtocolError(
                Code.COMPLETION_STATUS,
                "completion.row_count",
                f"below {max(entry.depth, 1)} with status {completion.status}",
                completion.row_count,
            )
    elif completion.row_count != entry.depth:
        raise ProtocolError(
            Code.DEPTH_MISMATCH, "completion.row_count", entry.depth, completion.row_count
        )
    if completion.row_count != len(row_checksums):
        raise ProtocolError(
            Code.ROW_COUNT, "rows", f"{completion.row_count} rows", len(row_checksums)
        )
    if completion.reply_bytes != reply_bytes:
        raise ProtocolError(
            Code.COMPLETION_BYTES, "completion.reply_bytes", reply_bytes, completion.reply_bytes
        )
    found = completion_checksum(entry, completion.status, reply_bytes, row_checksums)
    if completion.checksum != found:
        raise ProtocolError(
            Code.COMPLETION_CHECKSUM,
            "completion.checksum",
            f"{found:016x}",
            f"{completion.checksum:016x}",
        )
