"""Every message of the wire, as one tagged union.

Bodies are MessagePack arrays whose first element is the kind. Token lists
travel as packed little-endian int32 (``tokens_to_bytes``), so that a long
prefix is one byte string and not a hundred thousand objects. Nothing here
carries a placeholder: what may be absent is an empty tuple or byte string, and
"no draft" is a status from the error registry.

Every message also carries the sender's boot id and the link epoch, in its
envelope. Sources: seed 000, "Versioned v2 message design"; specs/03.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Annotated, Final, NewType, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from . import limits
from .errors import Code, ProtocolError, one_line

SessionId = NewType("SessionId", bytes)
TokenId = NewType("TokenId", int)

U8 = Annotated[int, Meta(ge=0, le=255)]
U32 = Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
U64 = Annotated[int, Meta(ge=0)]  # MessagePack has no integer above 2**64 - 1
Generation = Annotated[int, Meta(ge=1, le=limits.GENERATION_MAX)]
Round = Annotated[int, Meta(ge=1, le=limits.ROUND_MAX)]
Position = Annotated[int, Meta(ge=0, le=limits.POSITION_MAX)]
Token = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
Id16 = Annotated[bytes, Meta(min_length=limits.ID_BYTES, max_length=limits.ID_BYTES)]
OptionalId16 = Annotated[bytes, Meta(max_length=limits.ID_BYTES)]
Digest = Annotated[bytes, Meta(min_length=limits.DIGEST_BYTES, max_length=limits.DIGEST_BYTES)]
Hash32 = Annotated[
    bytes, Meta(min_length=limits.VOCABULARY_HASH_BYTES, max_length=limits.VOCABULARY_HASH_BYTES)
]
Seed = Annotated[bytes, Meta(min_length=limits.SEED_BYTES, max_length=limits.SEED_BYTES)]
OptionalSeed = Annotated[bytes, Meta(max_length=limits.SEED_BYTES)]
Key = Annotated[bytes, Meta(min_length=limits.KEY_BYTES, max_length=limits.KEY_BYTES)]
Packed = Annotated[bytes, Meta(max_length=limits.PREFIX_TOKENS_MAX * 4)]
Name = Annotated[str, Meta(max_length=limits.IDENTITY_CHARS_MAX)]
Text = Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX)]
Representations = Annotated[tuple[U8, ...], Meta(max_length=16)]
StopTokens = Annotated[tuple[Token, ...], Meta(max_length=limits.STOP_TOKENS_MAX)]


class Role(IntEnum):
    """Who a peer says it is in HELLO."""

    WORKER = 1
    RANK_ZERO = 2
    RANK_ONE = 3


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of every message; the subclass tag is the kind on the wire."""


class Part(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Base of a record inside a message."""


# --- negotiation and liveness, on every link -------------------------------------------


class Hello(Message, tag=1, frozen=True):
    """What one side is and can do. Bounds are offers; identities are facts or demands."""

    role: U8
    wire_min: U8
    wire_max: U8
    nonce: Id16
    semantics: Name
    verifier: Name
    rng_abi: Name
    representations: Representations
    vocabulary_size: U32
    legal_size: U32
    vocabulary_hash: Hash32
    draft_checkpoint: Name
    draft_native: bool
    target_checkpoint: Name
    processors: Name
    precision: Name
    requests_max: U32
    depth_max: U32
    support_max: U32
    frame_bytes_max: U32
    staging_bytes: U64


class TermsAgreed(Message, tag=2, frozen=True):
    """The digest of the terms that the sender derived, and the nonce it answers."""

    nonce: Id16
    digest: Hash32


class Refuse(Message, tag=3, frozen=True):
    """The link is refused: which field, what was wanted, what came."""

    code: U32
    field: Text
    wanted: Text
    got: Text


class Ping(Message, tag=4, frozen=True):
    """Application liveness; a heartbeat of the transport only proves its IO thread."""

    token: U64


class Pong(Message, tag=5, frozen=True):
    """Answer to a ping, with its token."""

    token: U64


class Nak(Message, tag=6, frozen=True):
    """A message could not be used. ``step`` and ``session_id`` say which, where known."""

    code: U32
    field: Text
    wanted: Text
    got: Text
    step: U64
    session_id: OptionalId16


# --- leader link: rank 0 to worker -----------------------------------------------------


class Reset(Message, tag=10, frozen=True):
    """Begin a generation. The only way that one begins.

    ``suffix`` extends the prefix of ``base_length`` tokens whose digest is
    ``base_digest``; a base length of zero carries the whole prefix. ``round``
    is the last round that the generation has used (target-only rounds may have
    run before the worker was told), so the next step carries ``round + 1``.
    """

    session_id: Id16
    request_id: U64
    slot: U8
    generation: Generation
    round: U32
    reason: U32
    base_length: Position
    base_digest: Digest
    suffix: Packed
    digest: Digest
    key: Key
    context: U64


class Ready(Message, tag=11, frozen=True):
    """The worker holds this prefix under this generation."""

    session_id: Id16
    generation: Generation
    length: Position
    digest: Digest


class StepEntry(Part, frozen=True):
    """One request of a step. Depth is fixed here, before anything is drawn.

    ``position`` is the absolute position of the first draft, which equals the
    length of the committed prefix. ``support`` is the support policy: 0 for
    full support, otherwise k of top-k.
    """

    session_id: Id16
    slot: U8
    generation: Generation
    round: Round
    position: Position
    digest: Digest
    depth: U8
    temperature: float
    representation: U8
    support: U32
    context: U64


class Step(Message, tag=12, frozen=True):
    """Draw a fixed-depth chain for each entry. Travels to the worker and to rank 1."""

    step: U64
    entries: Annotated[tuple[StepEntry, ...], Meta(max_length=limits.REQUESTS_MAX)]


class Row(Part, frozen=True):
    """One drawn token and the shape of the q that drew it.

    ``entry`` indexes the step's entries; ``checksum`` binds the payload bytes
    to (session, slot, generation, round, position, preceding tokens, token).
    """

    entry: U8
    position: Position
    token: Token
    representation: U8
    entries: U32
    byte_length: U32
    checksum: U64


class Rows(Message, tag=13, frozen=True):
    """Some rows of a step; their payloads stand back to back in the payload frame."""

    step: U64
    rows: Annotated[tuple[Row, ...], Meta(max_length=limits.REQUESTS_MAX * limits.DEPTH_MAX)]


class CompletionEntry(Part, frozen=True):
    """The end of one request's proposal; ``status`` is 0 or an error code."""

    session_id: Id16
    generation: Generation
    round: Round
    status: U32
    row_count: U8
    reply_bytes: U64
    checksum: U64


class Completion(Message, tag=14, frozen=True):
    """Every proposal of the step is over. Rows are consumable only after this."""

    step: U64
    entries: Annotated[tuple[CompletionEntry, ...], Meta(max_length=limits.REQUESTS_MAX)]


class CommitEntry(Part, frozen=True):
    """``accepted`` drafts of the round stand, then ``last`` (a correction, a bonus, or none)."""

    session_id: Id16
    generation: Generation
    round: Round
    accepted: U8
    last: Annotated[tuple[Token, ...], Meta(max_length=1)]
    position: Position
    digest: Digest


class Commit(Message, tag=15, frozen=True):
    """What both ranks committed. Repeats change nothing."""

    entries: Annotated[tuple[CommitEntry, ...], Meta(max_length=limits.REQUESTS_MAX)]


class Cancel(Message, tag=16, frozen=True):
    """The session is over on the sender's side."""

    session_id: Id16
    generation: Generation
    reason: U32


# --- pair link: rank 0 to rank 1 -------------------------------------------------------


class Open(Message, tag=20, frozen=True):
    """A request begins on both ranks. ``owner`` is the rank that samples it."""

    session_id: Id16
    request_id: U64
    slot: U8
    owner: U8
    session_seed: Seed
    prompt: Packed
    temperature: float
    stop_tokens: StopTokens
    tokens_max: U32
    context: U64
    digest: Digest


class PrepareEntry(Part, frozen=True):
    """One request as rank 0 sees it: usable (status 0) or to be discarded, and its digest."""

    session_id: Id16
    generation: Generation
    round: Round
    status: U32
    digest: Digest


class Prepare(Message, tag=21, frozen=True):
    """Rank 0 has validated the step; rank 1 is asked for its own finding."""

    step: U64
    entries: Annotated[tuple[PrepareEntry, ...], Meta(max_length=limits.REQUESTS_MAX)]


class Prepared(Message, tag=22, frozen=True):
    """Rank 1's own finding on every request of the step, in the same order."""

    step: U64
    entries: Annotated[tuple[PrepareEntry, ...], Meta(max_length=limits.REQUESTS_MAX)]


class Invalidation(Part, frozen=True):
    """One generation that ends now, and why."""

    session_id: Id16
    generation: Generation
    reason: U32


class Invalidate(Message, tag=23, frozen=True):
    """End these generations before anything target-only is sampled."""

    step: U64
    entries: Annotated[tuple[Invalidation, ...], Meta(max_length=limits.REQUESTS_MAX)]


class Invalidated(Message, tag=24, frozen=True):
    """Rank 1 has ended exactly those generations."""

    step: U64
    entries: Annotated[tuple[Invalidation, ...], Meta(max_length=limits.REQUESTS_MAX)]


class Decide(Message, tag=25, frozen=True):
    """Evaluate the step: which proposals are used. After this rank 0 only retransmits."""

    step: U64
    uses: Annotated[tuple[bool, ...], Meta(max_length=limits.REQUESTS_MAX)]


class VerdictEntry(Part, frozen=True):
    """What the owner of a request sampled."""

    session_id: Id16
    generation: Generation
    round: Round
    status: U32
    accepted: U8
    rejected: U8
    unverified: U8
    last: U8
    finish: U8
    tokens: Annotated[bytes, Meta(max_length=(limits.DEPTH_MAX + 1) * 4)]


class Verdicts(Message, tag=26, frozen=True):
    """Rank 1's verdicts on the requests that it owns, and on any whose engine failed there."""

    step: U64
    entries: Annotated[tuple[VerdictEntry, ...], Meta(max_length=limits.REQUESTS_MAX)]


class DecisionKind(IntEnum):
    """What a decision entry stands for."""

    EMPTY = 0
    COMMIT = 1
    END = 2


class DecisionEntry(Part, frozen=True):
    """One request's outcome. The shape does not depend on the outcome.

    ``tokens`` is always six int32, of which the first ``token_count`` count;
    ``position`` and ``digest`` describe the prefix after them. ``reason`` is 0
    or why the proposal was not used (COMMIT) or why the session ends (END).
    """

    kind: U8
    session_id: Id16
    generation: Annotated[int, Meta(ge=0, le=limits.GENERATION_MAX)]
    round: U32
    reason: U32
    depth: U8
    accepted: U8
    rejected: U8
    unverified: U8
    last: U8
    finish: U8
    token_count: U8
    tokens: Annotated[
        bytes,
        Meta(min_length=(limits.DEPTH_MAX + 1) * 4, max_length=(limits.DEPTH_MAX + 1) * 4),
    ]
    position: Position
    digest: Digest


class Decision(Message, tag=27, frozen=True):
    """THE decision of a step: always four entries, empty ones at the end."""

    step: U64
    entries: Annotated[
        tuple[DecisionEntry, ...],
        Meta(min_length=limits.REQUESTS_MAX, max_length=limits.REQUESTS_MAX),
    ]


class Applied(Message, tag=28, frozen=True):
    """Rank 1 applied the decision; the digest of the record with its own prefix digests."""

    step: U64
    digest: Digest


# --- request link: client to rank 0 ----------------------------------------------------


class Query(Message, tag=40, frozen=True):
    """Ask a rank 0 what it serves."""


class Info(Message, tag=41, frozen=True):
    """What this rank 0 serves and how it stands."""

    target_checkpoint: Name
    processors: Name
    vocabulary_size: U32
    legal_size: U32
    vocabulary_hash: Hash32
    context_tokens_max: U32
    stop_tokens: StopTokens
    requests_max: U32
    pair_ready: bool
    worker_ready: bool


class Generate(Message, tag=42, frozen=True):
    """Generate from a prompt of token ids. ``key`` correlates every answer.

    An empty ``seed`` asks for fresh entropy; with one, the same seed and key
    draw from the same keys again. ``depth`` is
    ``num_speculative_tokens``; 0 runs target-only.
    """

    key: U64
    prompt: Packed
    tokens_max: U32
    temperature: float
    draft_temperature: float
    seed: OptionalSeed
    stop_tokens: StopTokens
    depth: U8
    representation: U8
    support: U32


class Tokens(Message, tag=43, frozen=True):
    """Committed tokens of one round, from output index ``index`` on."""

    key: U64
    index: U32
    tokens: Annotated[bytes, Meta(max_length=(limits.DEPTH_MAX + 1) * 4)]
    depth: U8
    accepted: U8
    reason: U32


class Finished(Message, tag=44, frozen=True):
    """The request ended well. ``accepted_at[i]`` counts acceptances of draft i."""

    key: U64
    finish: U8
    token_count: U32
    rounds_speculative: U32
    rounds_target_only: U32
    drafted: U32
    accepted: U32
    rejected: U32
    unverified: U32
    accepted_at: Annotated[tuple[U32, ...], Meta(max_length=limits.DEPTH_MAX)]
    drafted_at: Annotated[tuple[U32, ...], Meta(max_length=limits.DEPTH_MAX)]


class Failed(Message, tag=45, frozen=True):
    """The request ended with an error, or was never begun."""

    key: U64
    code: U32
    field: Text
    wanted: Text
    got: Text


class Abort(Message, tag=46, frozen=True):
    """The client does not want the request any more."""

    key: U64


AnyMessage: TypeAlias = (
    Hello | TermsAgreed | Refuse | Ping | Pong | Nak
    | Reset | Ready | Step | Rows | Completion | Commit | Cancel
    | Open | Prepare | Prepared | Invalidate | Invalidated | Decide | Verdicts | Decision | Applied
    | Query | Info | Generate | Tokens | Finished | Failed | Abort
)  # fmt: skip

KINDS: Final[dict[int, type[Message]]] = {
    int(kind.__struct_config__.tag): kind for kind in AnyMessage.__args__
}


def kind_of_type(kind: type[Message]) -> int:
    """The kind number of a message type."""
    return int(kind.__struct_config__.tag)  # type: ignore[arg-type]


def kind_of(message: Message) -> int:
    """The kind number of a message, as in its header and its body's tag."""
    return kind_of_type(type(message))


def tokens_to_bytes(tokens: Iterable[int]) -> bytes:
    """Pack token ids as little-endian int32."""
    return np.fromiter(tokens, dtype="<i4").tobytes()


def tokens_from_bytes(packed: bytes | memoryview, field: str) -> list[int]:
    """Unpack little-endian int32 token ids; ``PREFIX_RANGE`` when not whole tokens."""
    if len(packed) % 4:
        raise ProtocolError(
            Code.PREFIX_RANGE, field, "a multiple of 4 bytes", f"{len(packed)} bytes"
        )
    tokens: list[int] = np.frombuffer(packed, dtype="<i4").tolist()
    return tokens


def clip_text(value: object) -> str:
    """The text of a diagnostic value: one printable line, short enough for a message."""
    text = one_line(value)
    return text if len(text) <= limits.TEXT_CHARS_MAX else text[: limits.TEXT_CHARS_MAX - 3] + "..."


def refusal_fields(error: ProtocolError) -> tuple[int, str, str, str]:
    """(code, field, wanted, got) of an error, ready for Refuse, Nak or Failed."""
    return (
        int(error.code),
        clip_text(error.field),
        clip_text(error.wanted),
        clip_text(error.got),
    )


def check_legal(tokens: Sequence[int], legal_size: int, code: Code, field: str) -> None:
    """Refuse any id outside ``[0, legal_size)`` with ``code``."""
    for index, token in enumerate(tokens):
        if not 0 <= token < legal_size:
            raise ProtocolError(code, f"{field}[{index}]", f"an id in [0, {legal_size})", token)
