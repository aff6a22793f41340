"""Verification rules that are wrong, planted so that tests prove they would be seen.

A ``Rule`` judges one drafted token on integer counts of one common total; the
total need not be a power of two, so the laws of textbook numbers come out as
exact Fractions (``one_position_law``). ``as_verify_chain`` puts a rule into a
whole chain as a drop-in replacement of ``spark_rank.verify.verify_chain``; with
the rule ``exact`` it is that function again.

Each wrong rule has been shipped by a public system; the laws that they give
are in ``tests/exact/test_wrong_rules.py``.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import Categorical
from proto_v2.rng import Domain, TicketSource
from spark_rank.residual import pick, quantise_target
from spark_rank.verify import Finish, LastToken, Verdict, verify_chain
from tests.support.enumerate_tickets import enumerate_runs

Counts = NDArray[np.int64]


class Judgement(NamedTuple):
    """Whether the draft stays, and the token that is committed."""

    accepted: bool
    token: int


class Rule(Protocol):
    """Judges draft ``x``: target counts ``n``, claimed draft counts ``d``, one total."""

    def __call__(
        self, n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
    ) -> Judgement: ...


def _below_ratio(n: int, d: int, tickets: TicketSource, position: int, round_: int) -> bool:
    return n >= d or tickets.below(d, Domain.ACCEPTANCE, position, round_) < n


def _draw(counts: Counts, tickets: TicketSource, position: int, round_: int) -> int:
    return pick(counts, tickets.below(int(counts.sum()), Domain.RESIDUAL, position, round_))


def exact(
    n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
) -> Judgement:
    """The right rule."""
    if _below_ratio(int(n[x]), int(d[x]), tickets, position, round_):
        return Judgement(True, x)
    return Judgement(False, _draw(np.maximum(n - d, 0), tickets, position, round_))


def one_hot(
    n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
) -> Judgement:
    """q was lost: the draft counts as certain in the ratio and in the residual."""
    certain = np.zeros_like(d)
    certain[x] = d.sum()
    return exact(n, certain, x, tickets, position, round_)


def plain_resample(
    n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
) -> Judgement:
    """The right ratio, but the correction comes from p instead of the residual."""
    if _below_ratio(int(n[x]), int(d[x]), tickets, position, round_):
        return Judgement(True, x)
    return Judgement(False, _draw(n, tickets, position, round_))


def only_q_of_x(
    n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
) -> Judgement:
    """Only q(x) came: every other id counts as one that q never draws."""
    known = np.zeros_like(d)
    known[x] = d[x]
    return exact(n, known, x, tickets, position, round_)


def match_or_ratio(
    n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
) -> Judgement:
    """Accepts when a target sample happens to match, or else by the ratio."""
    sample = _draw(n, tickets, position, round_)
    if sample == x or _below_ratio(int(n[x]), int(d[x]), tickets, position, round_):
        return Judgement(True, x)
    return Judgement(False, sample)


def inclusive(
    n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
) -> Judgement:
    """``u <= p/q`` for ``u < p/q``: ticket zero accepts what the target forbids."""
    if n[x] >= d[x] or tickets.below(int(d[x]), Domain.ACCEPTANCE, position, round_) <= n[x]:
        return Judgement(True, x)
    return Judgement(False, _draw(np.maximum(n - d, 0), tickets, position, round_))


def shared_noise(
    n: Counts, d: Counts, x: int, tickets: TicketSource, position: int, round_: int
) -> Judgement:
    """The correction reuses the number that drew the proposal.

    For ``one_position_law`` only, where both sides ask one source.
    """
    if _below_ratio(int(n[x]), int(d[x]), tickets, position, round_):
        return Judgement(True, x)
    residual = np.maximum(n - d, 0)
    total = int(d.sum())
    noise = tickets.below(total, Domain.PROPOSAL, position, round_)
    return Judgement(False, pick(residual, noise * int(residual.sum()) // total))


def one_position_law(
    rule: Rule,
    n: Sequence[int],
    drawn_from: Sequence[int],
    claimed: Sequence[int] | None = None,
) -> tuple[tuple[Fraction, ...], Fraction]:
    """The exact output law and acceptance rate of one position.

    Args:
        rule: what judges the draft.
        n: target counts ``[V]``.
        drawn_from: counts that really draw the token.
        claimed: counts that the rule is told; the same ones unless given.
    """
    target = np.asarray(n, dtype=np.int64)
    truth = np.asarray(drawn_from, dtype=np.int64)
    told = truth if claimed is None else np.asarray(claimed, dtype=np.int64)
    assert target.sum() == truth.sum() == told.sum()

    def run(tickets: TicketSource) -> Judgement:
        ticket = tickets.below(int(truth.sum()), Domain.PROPOSAL, 0, 0)
        return rule(target, told, pick(truth, ticket), tickets, 0, 0)

    law = enumerate_runs(run, repeats=rule is shared_noise)
    return marginal(law, len(target)), sum(
        (mass for judgement, mass in law.items() if judgement.accepted), Fraction(0)
    )


def marginal(law: Mapping[Judgement, Fraction], size: int) -> tuple[Fraction, ...]:
    """The law of the committed token alone."""
    masses = [Fraction(0)] * size
    for judgement, mass in law.items():
        masses[judgement.token] += mass
    return tuple(masses)


class VerifyChain(Protocol):
    """The signature of ``spark_rank.verify.verify_chain``."""

    def __call__(
        self,
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
    ) -> Verdict: ...


def as_verify_chain(rule: Rule) -> VerifyChain:
    """``verify_chain`` with this rule in the place of the right one."""

    def chain(
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
        tokens: tuple[int, ...] = ()
        depth = len(drafts)
        for index, (draft, row) in enumerate(zip(drafts, rows, strict=True)):
            n = quantise_target(logits[index], legal_size=legal_size, target_bits=target_bits)
            d = row.dense() << (target_bits - row.mass_bits)
            accepted, token = rule(n, d, draft, tickets, position + index, round_)
            tokens = (*tokens, token)
            finish = _finish(tokens, stop_tokens, room)
            if not accepted or finish is not Finish.NONE:
                return Verdict(
                    tokens,
                    accepted=index + accepted,
                    rejected=int(not accepted),
                    unverified=depth - index - 1,
                    last=LastToken.NONE if accepted else LastToken.CORRECTION,
                    finish=finish,
                )
        return _bonus(
            tokens, logits[depth], tickets, position, round_, stop_tokens, room, target_bits
        )

    return chain


def _finish(tokens: Sequence[int], stop_tokens: frozenset[int], room: int) -> Finish:
    if tokens[-1] in stop_tokens:
        return Finish.STOP
    return Finish.LENGTH if len(tokens) == room else Finish.NONE


def _bonus(
    drafts: tuple[int, ...],
    logits: NDArray[np.float32],
    tickets: TicketSource,
    position: int,
    round_: int,
    stop_tokens: frozenset[int],
    room: int,
    target_bits: int,
) -> Verdict:
    """The right end of a chain whose drafts all stay."""
    verdict = verify_chain(
        position=position + len(drafts),
        round_=round_,
        drafts=(),
        rows=(),
        logits=logits[np.newaxis],
        tickets=_AsBonus(tickets) if drafts else tickets,
        stop_tokens=stop_tokens,
        room=room - len(drafts),
        legal_size=len(logits),
        target_bits=target_bits,
    )
    return Verdict(
        drafts + verdict.tokens,
        accepted=len(drafts),
        rejected=0,
        unverified=0,
        last=LastToken.BONUS if drafts else LastToken.TARGET_ONLY,
        finish=verdict.finish,
    )


class _AsBonus:
    """Draws a target-only token under the bonus domain."""

    def __init__(self, tickets: TicketSource) -> None:
        self._tickets = tickets

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        return self._tickets.ticket(bits, domain, position, round_)

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        assert domain is Domain.TARGET_ONLY
        return self._tickets.below(bound, Domain.BONUS, position, round_)


def with_stale_rows() -> VerifyChain:
    """Each chain is judged with the rows that came with the chain before it.

    The first chain of all, and one of another depth, is judged with its own.
    """
    judge = as_verify_chain(exact)
    previous: list[Sequence[Categorical]] = []

    def chain(
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
        stale = previous[-1] if previous and len(previous[-1]) == len(rows) else rows
        if rows:
            previous[:] = [rows]
        return judge(
            position=position,
            round_=round_,
            drafts=drafts,
            rows=stale,
            logits=logits,
            tickets=tickets,
            stop_tokens=stop_tokens,
            room=room,
            legal_size=legal_size,
            target_bits=target_bits,
        )

    return chain


def block_with_one_ticket(
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
    """Block verification with the wrong condition and the wrong residual.

    Keeps the longest prefix whose product of ratios exceeds one shared number,
    then corrects from the tokenwise residual. For small masses: the shared
    number needs as many tickets as all the q of the chain together.
    """
    laws = [quantise_target(row, legal_size=legal_size, target_bits=target_bits) for row in logits]
    bound, ratios = 1, [Fraction(1)]
    for draft, row, n in zip(drafts, rows, laws, strict=False):
        tickets_of_q = row.count_of(draft) << (target_bits - row.mass_bits)
        bound *= tickets_of_q
        ratios.append(ratios[-1] * Fraction(int(n[draft]), tickets_of_q))
    ticket = tickets.below(bound, Domain.ACCEPTANCE, position, round_)
    kept = max(i for i, ratio in enumerate(ratios) if i == 0 or Fraction(ticket, bound) < ratio)
    tokens = tuple(drafts[: min(kept, room)])
    if len(tokens) == room:
        unverified = len(drafts) - room
        return Verdict(tokens, room, 0, unverified, LastToken.NONE, Finish.LENGTH)
    if kept == len(drafts):
        return _bonus(
            tokens, logits[kept], tickets, position, round_, stop_tokens, room, target_bits
        )
    d = rows[kept].dense() << (target_bits - rows[kept].mass_bits)
    residual = np.maximum(laws[kept] - d, 0)
    source = residual if residual.any() else laws[kept]
    tokens = (*tokens, _draw(source, tickets, position + kept, round_))
    return Verdict(
        tokens,
        accepted=kept,
        rejected=1,
        unverified=len(drafts) - kept - 1,
        last=LastToken.CORRECTION,
        finish=_finish(tokens, stop_tokens, room),
    )
