"""One registry for every error of the contract.

A code says what was wrong; its row in ``REGISTRY`` says how much of the world
it spoils (``Scope``) and what the receiver does about it (``Disposition``).
Codes are part of the wire: numbers are never reused, and the hundreds group
them by the layer that finds them (1xx envelope and codec, 2xx negotiation, 3xx
session rules, 4xx rows, 5xx reasons to go target-only, 6xx the pair, 7xx
numerics, 8xx user requests, 9xx start-up).
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Scope(IntEnum):
    """The largest thing that an error spoils."""

    MESSAGE = 1
    ROUND = 2
    GENERATION = 3
    SESSION = 4
    LINK = 5
    PROCESS = 6


class Disposition(IntEnum):
    """What the party that finds the error does."""

    DROP = 1  # count it, answer nothing
    NAK = 2  # answer with the code, keep everything
    DISCARD = 3  # discard the whole proposal on both ranks, go target-only
    REFUSE = 4  # refuse the link or the request, name the field
    END = 5  # end the request with this code on every side
    EXIT = 6  # the process stops before it has started anything


class Code(IntEnum):
    """Every error code. The meaning of each is its row in ``REGISTRY``."""

    # 1xx envelope and codec
    NOT_OURS = 100
    WIRE_VERSION = 101
    HEADER_LENGTH = 102
    HEADER_CHECKSUM = 103
    FRAME_COUNT = 104
    BODY_LENGTH = 105
    BODY_CHECKSUM = 106
    PAYLOAD_LENGTH = 107
    KIND_UNKNOWN = 108
    KIND_UNEXPECTED = 109
    MALFORMED = 120
    NOT_CANONICAL = 121
    KIND_MISMATCH = 122
    # 2xx negotiation
    WIRE_RANGE = 200
    SEMANTICS_MISMATCH = 201
    VERIFIER_MISMATCH = 202
    RNG_ABI_MISMATCH = 203
    VOCABULARY_SIZE_MISMATCH = 204
    VOCABULARY_HASH_MISMATCH = 205
    DRAFT_MISMATCH = 206
    TARGET_MISMATCH = 207
    PROCESSORS_MISMATCH = 208
    NO_COMMON_REPRESENTATION = 209
    BOUND_TOO_SMALL = 210
    STAGING_TOO_SMALL = 211
    PRECISION_MISMATCH = 212
    ROLE_MISMATCH = 213
    TERMS_DIGEST_MISMATCH = 214
    LINK_UNKNOWN = 215
    BOOT_CHANGED = 216
    NOT_NEGOTIATED = 217
    # 3xx session rules
    SESSION_UNKNOWN = 300
    GENERATION_STALE = 301
    GENERATION_AHEAD = 302
    ROUND_STALE = 303
    ROUND_AHEAD = 304
    POSITION_MISMATCH = 305
    PREFIX_MISMATCH = 306
    PREFIX_UNKNOWN = 307
    DEPTH_RANGE = 308
    DEPTH_MISMATCH = 309
    TEMPERATURE_RANGE = 310
    SUPPORT_RANGE = 311
    SLOT_RANGE = 312
    SLOT_DUPLICATE = 313
    SLOT_BUSY = 314
    BATCH_RANGE = 315
    SESSION_DUPLICATE = 316
    CONTEXT_MISMATCH = 317
    SESSION_LIMIT = 319
    PREFIX_RANGE = 320
    STALE_LEASE = 321
    REPRESENTATION_MISMATCH = 322
    STEP_CHANGED = 323
    COMMIT_MISMATCH = 324
    # 4xx rows and completion
    Q_MISSING = 400
    ROW_COUNT = 401
    ROW_POSITION = 402
    ROW_DUPLICATE = 403
    ROW_ENTRIES = 404
    ROW_BYTES = 405
    ROW_CHECKSUM = 406
    TOKEN_RANGE = 407
    ID_RANGE = 408
    ID_ORDER = 409
    VALUE_BITS = 410
    VALUE_ZERO = 411
    VALUE_DYADIC = 412
    MASS_WRONG = 413
    TOKEN_ZERO_Q = 414
    PADDING_NOT_ZERO = 415
    COMPLETION_BYTES = 416
    COMPLETION_CHECKSUM = 417
    COMPLETION_STATUS = 418
    TOKEN_NOT_DRAWN = 419
    # 5xx reasons to go target-only
    DRAFT_LATE = 500
    WORKER_DOWN = 501
    DRAFT_FAILED = 502
    BREAKER_OPEN = 503
    LATE_ROUND = 504
    RESET_PENDING = 505
    # 6xx the pair
    RANK_LOST = 600
    RANK_SPLIT = 601
    DECISION_MISMATCH = 602
    TARGET_FAILED = 603
    STEP_STALE = 604
    SESSION_POISONED = 605
    TARGET_LATE = 606
    PREPARED_MISMATCH = 607
    # 7xx numerics
    WEIGHTS_INVALID = 700
    ALLOCATION_INCONSISTENT = 701
    LOGITS_INVALID = 702
    RESIDUAL_EMPTY = 703
    RNG_EXHAUSTED = 704
    RNG_DOMAIN = 705
    RNG_RANGE = 706
    # 8xx user requests
    PROMPT_RANGE = 800
    PROMPT_TOKEN = 801
    REQUEST_LIMIT = 802
    PARAMETER_RANGE = 803
    CANCELLED = 804
    # 9xx start-up
    CONFIG_INVALID = 900
    ADDRESS_IN_USE = 901
    MODEL_MISSING = 902
    MEMORY_SHORT = 903
    PEER_UNREACHABLE = 904


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the registry: scope, disposition and one sentence."""

    scope: Scope
    disposition: Disposition
    text: str


def _row(scope: Scope, disposition: Disposition, text: str) -> Entry:
    return Entry(scope, disposition, text)


_M, _R, _G, _S, _L, _P = Scope
_DROP, _NAK, _DISCARD, _REFUSE, _END, _EXIT = Disposition

REGISTRY: Final[dict[Code, Entry]] = {
    Code.NOT_OURS: _row(_M, _DROP, "the bytes do not start with the PP1 magic"),
    Code.WIRE_VERSION: _row(_M, _DROP, "the wire version is not one this peer speaks"),
    Code.HEADER_LENGTH: _row(_M, _DROP, "the header frame is not 64 bytes"),
    Code.HEADER_CHECKSUM: _row(_M, _DROP, "the header checksum does not match"),
    Code.FRAME_COUNT: _row(_M, _DROP, "the message has the wrong number of frames"),
    Code.BODY_LENGTH: _row(_M, _DROP, "the body frame does not have the announced length"),
    Code.BODY_CHECKSUM: _row(_M, _DROP, "the body checksum does not match"),
    Code.PAYLOAD_LENGTH: _row(_M, _DROP, "the payload frame does not have the announced length"),
    Code.KIND_UNKNOWN: _row(_M, _NAK, "the message kind is not registered"),
    Code.KIND_UNEXPECTED: _row(_M, _NAK, "this peer does not take that message kind"),
    Code.MALFORMED: _row(_M, _NAK, "the body does not decode to its message kind"),
    Code.NOT_CANONICAL: _row(_M, _NAK, "the body is not the canonical encoding"),
    Code.KIND_MISMATCH: _row(_M, _NAK, "header and body name different message kinds"),
    Code.WIRE_RANGE: _row(_L, _REFUSE, "no common wire version"),
    Code.SEMANTICS_MISMATCH: _row(_L, _REFUSE, "the q semantics differ"),
    Code.VERIFIER_MISMATCH: _row(_L, _REFUSE, "the verifiers differ"),
    Code.RNG_ABI_MISMATCH: _row(_L, _REFUSE, "the RNG ABIs differ"),
    Code.VOCABULARY_SIZE_MISMATCH: _row(_L, _REFUSE, "the vocabulary sizes differ"),
    Code.VOCABULARY_HASH_MISMATCH: _row(_L, _REFUSE, "the vocabulary map hashes differ"),
    Code.DRAFT_MISMATCH: _row(_L, _REFUSE, "the draft checkpoint is not the expected one"),
    Code.TARGET_MISMATCH: _row(_L, _REFUSE, "the target checkpoint is not the expected one"),
    Code.PROCESSORS_MISMATCH: _row(_L, _REFUSE, "the processor policies differ"),
    Code.NO_COMMON_REPRESENTATION: _row(_L, _REFUSE, "no q representation in common"),
    Code.BOUND_TOO_SMALL: _row(_L, _REFUSE, "a bound is below what the protocol needs"),
    Code.STAGING_TOO_SMALL: _row(_L, _REFUSE, "the staging memory does not hold the batches"),
    Code.PRECISION_MISMATCH: _row(_L, _REFUSE, "the payload precisions differ"),
    Code.ROLE_MISMATCH: _row(_L, _REFUSE, "the peer does not have the role expected here"),
    Code.TERMS_DIGEST_MISMATCH: _row(_L, _REFUSE, "the two sides derived different terms"),
    Code.LINK_UNKNOWN: _row(_L, _NAK, "the link epoch is not one negotiated with this process"),
    Code.BOOT_CHANGED: _row(_L, _NAK, "the peer is another process than the one negotiated with"),
    Code.NOT_NEGOTIATED: _row(_L, _NAK, "no terms have been agreed on this link"),
    Code.SESSION_UNKNOWN: _row(_S, _NAK, "no such session"),
    Code.GENERATION_STALE: _row(_G, _NAK, "the generation is over"),
    Code.GENERATION_AHEAD: _row(_G, _NAK, "the generation has not begun here"),
    Code.ROUND_STALE: _row(_R, _NAK, "the round is over"),
    Code.ROUND_AHEAD: _row(_R, _NAK, "the round does not follow the last one"),
    Code.POSITION_MISMATCH: _row(_R, _NAK, "the anchor is not at the end of the committed prefix"),
    Code.PREFIX_MISMATCH: _row(_G, _NAK, "the committed-prefix digests differ"),
    Code.PREFIX_UNKNOWN: _row(_G, _NAK, "the base of the suffix is not held here"),
    Code.DEPTH_RANGE: _row(_R, _NAK, "the depth is outside the terms"),
    Code.DEPTH_MISMATCH: _row(_R, _DISCARD, "the proposal does not have the depth of its step"),
    Code.TEMPERATURE_RANGE: _row(_R, _NAK, "the proposal temperature is not usable"),
    Code.SUPPORT_RANGE: _row(_R, _NAK, "the support policy is outside the terms"),
    Code.SLOT_RANGE: _row(_R, _NAK, "no such slot"),
    Code.SLOT_DUPLICATE: _row(_R, _NAK, "two requests of one batch name the same slot"),
    Code.SLOT_BUSY: _row(_R, _DISCARD, "the slot still has a consumer"),
    Code.BATCH_RANGE: _row(_R, _NAK, "the batch is empty or larger than the terms"),
    Code.SESSION_DUPLICATE: _row(_R, _NAK, "two requests of one batch name the same session"),
    Code.CONTEXT_MISMATCH: _row(_G, _NAK, "the target context version differs"),
    Code.SESSION_LIMIT: _row(_S, _NAK, "no room for another session"),
    Code.PREFIX_RANGE: _row(_S, _NAK, "the prefix is empty, too long or not whole tokens"),
    Code.STALE_LEASE: _row(_R, _DROP, "a write or read through a lease that is over"),
    Code.REPRESENTATION_MISMATCH: _row(_R, _DISCARD, "not the representation of the step"),
    Code.STEP_CHANGED: _row(_R, _NAK, "a repeated step differs from the first one"),
    Code.COMMIT_MISMATCH: _row(_G, _NAK, "the commit does not lead to its digest"),
    Code.Q_MISSING: _row(_R, _DISCARD, "sampled tokens came without their q"),
    Code.ROW_COUNT: _row(_R, _DISCARD, "rows are missing or too many"),
    Code.ROW_POSITION: _row(_R, _DISCARD, "a row names the wrong position"),
    Code.ROW_DUPLICATE: _row(_R, _DISCARD, "a row came twice with different bytes"),
    Code.ROW_ENTRIES: _row(_R, _DISCARD, "the entry count does not fit the representation"),
    Code.ROW_BYTES: _row(_R, _DISCARD, "the byte length does not fit the entry count"),
    Code.ROW_CHECKSUM: _row(_R, _DISCARD, "the row is not bound to this place and these bytes"),
    Code.TOKEN_RANGE: _row(_R, _DISCARD, "the sampled token is not a legal id"),
    Code.ID_RANGE: _row(_R, _DISCARD, "a support id is not a legal id"),
    Code.ID_ORDER: _row(_R, _DISCARD, "support ids are not strictly ascending"),
    Code.VALUE_BITS: _row(_R, _DISCARD, "a q value is not finite, negative, -0.0 or above one"),
    Code.VALUE_ZERO: _row(_R, _DISCARD, "a sparse entry has no mass"),
    Code.VALUE_DYADIC: _row(_R, _DISCARD, "a q value is not a whole number of tickets"),
    Code.MASS_WRONG: _row(_R, _DISCARD, "the counts do not sum to the total mass"),
    Code.TOKEN_ZERO_Q: _row(_R, _DISCARD, "the sampled token has no mass in its own q"),
    Code.PADDING_NOT_ZERO: _row(_R, _DISCARD, "padding beyond the legal vocabulary has mass"),
    Code.COMPLETION_BYTES: _row(_R, _DISCARD, "the completion names another number of bytes"),
    Code.COMPLETION_CHECKSUM: _row(_R, _DISCARD, "the completion names other rows"),
    Code.COMPLETION_STATUS: _row(_R, _DISCARD, "the completion's status and rows contradict"),
    Code.TOKEN_NOT_DRAWN: _row(
        _R, _DISCARD, "the token is not the one that its counts and its ticket give"
    ),
    Code.DRAFT_LATE: _row(_R, _DISCARD, "the proposal was not whole at the deadline"),
    Code.WORKER_DOWN: _row(_R, _DISCARD, "no negotiated link to the worker"),
    Code.DRAFT_FAILED: _row(_R, _DISCARD, "the draft engine failed"),
    Code.BREAKER_OPEN: _row(_R, _DISCARD, "the circuit breaker keeps this request target-only"),
    Code.LATE_ROUND: _row(_M, _DROP, "a reply for a round or generation that is over"),
    Code.RESET_PENDING: _row(_R, _DISCARD, "the worker has not acknowledged the generation yet"),
    Code.RANK_LOST: _row(_S, _END, "the other rank does not answer or was restarted"),
    Code.RANK_SPLIT: _row(_S, _END, "the two ranks hold different digests"),
    Code.DECISION_MISMATCH: _row(_S, _END, "the decision record contradicts what was prepared"),
    Code.TARGET_FAILED: _row(_S, _END, "the target engine failed; the session is poisoned"),
    Code.STEP_STALE: _row(_M, _DROP, "a pair message for a step that is over"),
    Code.SESSION_POISONED: _row(_S, _END, "the session must be rebuilt before it can go on"),
    Code.TARGET_LATE: _row(_S, _END, "the target evaluation did not finish in time"),
    Code.PREPARED_MISMATCH: _row(_R, _DISCARD, "the two ranks prepared different proposals"),
    Code.WEIGHTS_INVALID: _row(_R, _DISCARD, "draft weights are not a usable distribution"),
    Code.ALLOCATION_INCONSISTENT: _row(_R, _DISCARD, "draft weights do not allocate to the mass"),
    Code.LOGITS_INVALID: _row(_S, _END, "target logits are not a usable distribution"),
    Code.RESIDUAL_EMPTY: _row(_S, _END, "a rejection left no residual mass"),
    Code.RNG_EXHAUSTED: _row(_S, _END, "too many retries for one bounded draw"),
    Code.RNG_DOMAIN: _row(_S, _END, "not a registered RNG domain"),
    Code.RNG_RANGE: _row(_S, _END, "an RNG key or counter field is out of range"),
    Code.PROMPT_RANGE: _row(_S, _REFUSE, "the prompt is empty or does not fit the context"),
    Code.PROMPT_TOKEN: _row(_S, _REFUSE, "the prompt holds an id outside the vocabulary"),
    Code.REQUEST_LIMIT: _row(_S, _REFUSE, "too many requests are waiting"),
    Code.PARAMETER_RANGE: _row(_S, _REFUSE, "a request parameter is out of range"),
    Code.CANCELLED: _row(_S, _END, "the request was cancelled"),
    Code.CONFIG_INVALID: _row(_P, _EXIT, "a configuration value is not usable"),
    Code.ADDRESS_IN_USE: _row(_P, _EXIT, "the address cannot be bound"),
    Code.MODEL_MISSING: _row(_P, _EXIT, "the model file is missing or not the expected one"),
    Code.MEMORY_SHORT: _row(_P, _EXIT, "the preallocated memory could not be had"),
    Code.PEER_UNREACHABLE: _row(_P, _EXIT, "the peer cannot be reached"),
}

assert set(REGISTRY) == set(Code), "every code has exactly one registry row"


def known_code(number: int, otherwise: Code) -> Code:
    """The code of a number that came from a peer; ``otherwise`` when it is not registered."""
    try:
        return Code(number)
    except ValueError:
        return otherwise


def one_line(value: object) -> str:
    """``str(value)`` with every control character escaped, bytes in hexadecimal.

    Texts of a peer end up in logs and on terminals; none of them may forge a
    log line or move a cursor.
    """
    text = value.hex() if isinstance(value, bytes) else str(value)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


class ProtocolError(Exception):
    """A registered error: code, the field it is about, what was wanted, what came.

    ``str()`` is one line that a person can act on. ``peer`` is never part of
    it; the caller knows whom it was talking to.
    """

    def __init__(self, code: Code, field: str, wanted: object, got: object) -> None:
        super().__init__(code, field, wanted, got)
        self.code = code
        self.field = field
        self.wanted = wanted
        self.got = got

    @property
    def entry(self) -> Entry:
        """The registry row of this error's code."""
        return REGISTRY[self.code]

    def __str__(self) -> str:
        return (
            f"{self.code.name} ({int(self.code)}): {self.entry.text}; "
            f"field {one_line(self.field)}: wanted {one_line(self.wanted)}, "
            f"got {one_line(self.got)}"
        )


class ExitCode(IntEnum):
    """Exit codes of every command and daemon."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    CONFIG = 3
    REFUSED = 4
    UNREACHABLE = 5
    PREFLIGHT = 6
    INVARIANT = 70
