"""Drawing one fixed-depth chain from a draft engine, exactly.

For each position: weights from the engine, conditioned on the committed prefix
and on the tokens drawn before in this chain; integer counts from the weights;
one ticket; the token from the counts. The payload bytes come from the same
counts object that the token was drawn from, so a q other than the one that
drew cannot be written. (Seed 000, "Distribution contract"; specs/01.)
"""

from dataclasses import dataclass

from proto_v2 import limits
from proto_v2.binding import row_checksum
from proto_v2.dyadic import full_support, top_k
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Row, StepEntry
from proto_v2.representation import Representation, encode
from proto_v2.rng import Domain, TicketSource

from .engine import DraftEngine


def engine_session(link_epoch: int, session_id: bytes) -> bytes:
    """The engine's name of a session: no two links share one.

    Two rank 0s may serve the same session id, and one that reconnects begins
    its sessions again while those of its old connection have not been given up.
    """
    return link_epoch.to_bytes(8, "little") + session_id


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Job: forget the session if it is known, then hold exactly this prefix.

    ``session`` here and below is the engine's name of it (``engine_session``).
    """

    session: bytes
    prefix: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdvanceSession:
    """Job: keep the first ``length`` committed tokens, then append ``tokens``."""

    session: bytes
    length: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Job: forget the session."""

    session: bytes


@dataclass(frozen=True, slots=True)
class DraftItem:
    """One chain to draw: ``index`` is the entry's place in its step."""

    index: int
    session: bytes
    entry: StepEntry
    tickets: TicketSource


@dataclass(frozen=True, slots=True)
class Draft:
    """Job: draw the chains of one step."""

    items: tuple[DraftItem, ...]


@dataclass(frozen=True, slots=True)
class Chain:
    """A drawn chain: descriptors and the payload bytes of each row."""

    index: int
    rows: tuple[Row, ...]
    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ChainFailed:
    """No chain, and why. Nothing that was drawn before the failure leaves."""

    index: int
    code: Code
    detail: str


Job = OpenSession | AdvanceSession | CloseSession | Draft


def draw_chain(engine: DraftEngine, item: DraftItem, mass_bits: int = limits.MASS_BITS) -> Chain:
    """Draw ``entry.depth`` tokens, each from the counts that are sent for it.

    Raises:
        ProtocolError: 7xx when the engine's weights are not a distribution.
    """
    entry = item.entry
    tokens: list[int] = []
    rows: list[Row] = []
    payloads: list[bytes] = []
    representation = Representation(entry.representation)
    for index in range(entry.depth):
        weights = engine.next_weights(item.session, tuple(tokens), entry.temperature)
        if entry.support:
            categorical = top_k(weights, entry.support, mass_bits)
        else:
            categorical = full_support(weights, mass_bits)
        position = entry.position + index
        ticket = item.tickets.ticket(mass_bits, Domain.PROPOSAL, position, entry.round)
        token = categorical.token_at(ticket)
        payload = encode(categorical, representation)
        entries = len(payload) // (
            limits.SPARSE_ENTRY_BYTES
            if representation is Representation.SPARSE_F32
            else limits.DENSE_ENTRY_BYTES
        )
        rows.append(
            Row(
                entry=item.index,
                position=position,
                token=token,
                representation=entry.representation,
                entries=entries,
                byte_length=len(payload),
                checksum=row_checksum(
                    entry, index, tokens, token, entry.representation, entries, payload
                ),
            )
        )
        payloads.append(payload)
        tokens.append(token)
    return Chain(item.index, tuple(rows), tuple(payloads))


def execute(
    engine: DraftEngine, job: object, mass_bits: int = limits.MASS_BITS
) -> tuple[Chain | ChainFailed, ...]:
    """Carry out one job on the engine, in the engine's own thread.

    A chain that fails does not take the other chains of its step with it.
    """
    if isinstance(job, Draft):
        return tuple(_draw_or_fail(engine, item, mass_bits) for item in job.items)
    if isinstance(job, OpenSession):
        engine.close(job.session)
        engine.open(job.session, job.prefix)
    elif isinstance(job, AdvanceSession):
        engine.rollback(job.session, job.length)
        engine.extend(job.session, job.tokens)
    elif isinstance(job, CloseSession):
        engine.close(job.session)
    else:
        raise TypeError(f"not a draft job: {type(job).__name__}")
    return ()


def _draw_or_fail(engine: DraftEngine, item: DraftItem, mass_bits: int) -> Chain | ChainFailed:
    try:
        return draw_chain(engine, item, mass_bits)
    except ProtocolError as error:
        return ChainFailed(item.index, error.code, str(error))
    except Exception as error:  # an engine may raise anything; one request fails, not the rest
        return ChainFailed(item.index, Code.DRAFT_FAILED, f"{type(error).__name__}: {error}")
