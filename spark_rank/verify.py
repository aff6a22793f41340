"""The verifier ``standard-int48-v1``: accept or reject a chain, one token at a time.

Draft x of count d (at the target's total) is accepted with probability
min(1, n / d): always if n >= d, otherwise iff a ticket below d is below n. The
first rejection ends the chain with a correction from ``max(n - d, 0)`` over
the whole vocabulary; a chain that survives earns a bonus from the next target
row; without drafts the token is the target's own. Since
``min(n, d) + max(n - d, 0) = n``, what comes out has exactly the target's law.
(Leviathan et al., 2023, algorithm 1 and appendix A.1; seed 001.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import Categorical
from proto_v2.errors import Code, ProtocolError
from proto_v2.rng import Domain, TicketSource

from .residual import draft_counts, pick, quantise_target, residual_counts


class LastToken(IntEnum):
    """Where the last token of a round comes from; NONE when an accepted draft is the last."""

    NONE = 0
    CORRECTION = 1
    BONUS = 2
    TARGET_ONLY = 3


class Finish(IntEnum):
    """Why a request is over, if it is."""

    NONE = 0
    STOP = 1
    LENGTH = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one chain. ``tokens`` are committed: accepted drafts, then the last one."""

    tokens: tuple[int, ...]
    accepted: int
    rejected: int
    unverified: int
    last: LastToken
    finish: Finish

    def __post_init__(self) -> None:
        assert len(self.tokens) == self.accepted + (self.last is not LastToken.NONE)
        assert self.rejected == (self.last is LastToken.CORRECTION)
        assert self.unverified >= 0


def verify_chain(
    *,
    position: int,
    round_: int,
    drafts: Sequence[int],
    rows: Sequence[Categorical],
    logits: NDArray[np.float32],
    tickets: TicketSource,
    stop_tokens: frozenset[int],
    room: int,
    legal_size: int,
    target_bits: int = limits.TARGET_BITS,
) -> Verdict:
    """Judge one chain of drafts; without drafts, sample the target.

    Args:
        position: absolute position of the first draft.
        drafts: the proposed tokens; ``rows[i]`` is the categorical that drew ``drafts[i]``.
        logits: float32 ``[len(drafts) + 1, V]``; row i is conditioned on ``drafts[:i]``.
            Rows after the end of the chain are not looked at.
        room: tokens that may still be committed, at least 1. Stop and length
            are judged in token order.

    Raises:
        ProtocolError: before anything is drawn, Q_MISSING when rows and drafts
            differ in number, TOKEN_RANGE, TOKEN_ZERO_Q, LOGITS_INVALID for the
            wrong shape or dtype; then LOGITS_INVALID, RESIDUAL_EMPTY, RNG codes.
    """
    depth = len(drafts)
    _check_proposal(drafts, rows, legal_size)
    _check_logits(logits, rows, legal_size)
    assert room >= 1, "a request without room is over"
    tokens: list[int] = []

    def target(index: int) -> NDArray[np.int64]:
        return quantise_target(logits[index], legal_size=legal_size, target_bits=target_bits)

    def finish_after(token: int) -> Finish:
        if token in stop_tokens:
            return Finish.STOP
        return Finish.LENGTH if len(tokens) == room else Finish.NONE

    def verdict(accepted: int, last: LastToken, finish: Finish) -> Verdict:
        rejected = int(last is LastToken.CORRECTION)
        return Verdict(tuple(tokens), accepted, rejected, depth - accepted - rejected, last, finish)

    for index, (draft, row) in enumerate(zip(drafts, rows, strict=True)):
        counts = target(index)
        here = position + index
        if not _accepts(counts, row, draft, tickets, here, round_, target_bits):
            token = _correction(counts, row, tickets, here, round_, target_bits)
            tokens.append(token)
            return verdict(index, LastToken.CORRECTION, finish_after(token))
        tokens.append(draft)
        finish = finish_after(draft)
        if finish is not Finish.NONE:
            return verdict(index + 1, LastToken.NONE, finish)
    domain = Domain.BONUS if depth else Domain.TARGET_ONLY
    token = pick(target(depth), tickets.below(1 << target_bits, domain, position + depth, round_))
    tokens.append(token)
    last = LastToken.BONUS if depth else LastToken.TARGET_ONLY
    return verdict(depth, last, finish_after(token))


def _check_proposal(drafts: Sequence[int], rows: Sequence[Categorical], legal_size: int) -> None:
    if len(rows) != len(drafts):
        raise ProtocolError(Code.Q_MISSING, "rows", f"{len(drafts)} rows", len(rows))
    for draft, row in zip(drafts, rows, strict=True):
        if not 0 <= draft < legal_size:
            raise ProtocolError(Code.TOKEN_RANGE, "draft", f"an id below {legal_size}", draft)
        # With d = 0 every n would satisfy n >= d: such a token was never drawn from its row.
        if row.count_of(draft) == 0:
            raise ProtocolError(Code.TOKEN_ZERO_Q, "draft", "a token with mass in its own q", draft)


def _check_logits(logits: object, rows: Sequence[Categorical], legal_size: int) -> None:
    """Refuse what an engine returned if it is not the array that it promised."""
    if not isinstance(logits, np.ndarray) or logits.dtype != np.float32:
        got = getattr(logits, "dtype", type(logits).__name__)
        raise ProtocolError(Code.LOGITS_INVALID, "logits", "a float32 array", got)
    if (
        logits.ndim != 2
        or len(logits) != len(rows) + 1
        or logits.shape[1] < legal_size
        or any(row.vocabulary_size != logits.shape[1] for row in rows)
    ):
        wanted = f"{len(rows) + 1} rows as wide as q"
        raise ProtocolError(Code.LOGITS_INVALID, "logits", wanted, logits.shape)


def _accepts(
    counts: NDArray[np.int64],
    row: Categorical,
    draft: int,
    tickets: TicketSource,
    position: int,
    round_: int,
    target_bits: int,
) -> bool:
    wanted, drawn = int(counts[draft]), draft_counts(row, draft, target_bits)
    if wanted >= drawn:
        return True
    return tickets.below(drawn, Domain.ACCEPTANCE, position, round_) < wanted


def _correction(
    counts: NDArray[np.int64],
    row: Categorical,
    tickets: TicketSource,
    position: int,
    round_: int,
    target_bits: int,
) -> int:
    residual = residual_counts(counts, row, target_bits)
    mass = int(residual.sum())
    if mass == 0:
        # Unreachable for a p and q of equal total: a rejection implies n < d somewhere,
        # hence n > d somewhere else.
        raise ProtocolError(Code.RESIDUAL_EMPTY, "residual", "mass after a rejection", 0)
    return pick(residual, tickets.below(mass, Domain.RESIDUAL, position, round_))
