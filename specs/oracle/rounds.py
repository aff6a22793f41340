"""Fixed-depth proposals and the session that verifies them.

The proposal's depth is fixed before anything is drawn, and every q is
conditioned on the tokens drawn before it. The verifier refuses a proposal that
is not one for its present state before it draws; it evaluates the target on
the drafted prefix, row by row, and never a row after the chain has ended. If
the target or a processor fails, nothing is committed and the session stays
poisoned until it is rebuilt.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from .categorical import Categorical
from .rejection import acceptance, residual
from .streams import Domain, Owner, Tickets

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Categorical]
Processor = Callable[[Prefix, Categorical], Categorical]

DEPTH_MAX: Final = 5


class Refused(Exception):
    """The verifier refuses, and has drawn nothing and changed nothing."""


class Last(Enum):
    """What the last token of a round is, if it is not an accepted draft."""

    NONE = "none"
    CORRECTION = "correction"
    BONUS = "bonus"
    TARGET_ONLY = "target only"


@dataclass(frozen=True, slots=True)
class Identity:
    """What a proposal and a session must agree on.

    ``context`` names the target, its processors and the stop policy.
    """

    request: str
    generation: int
    context: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """A drawn chain with the distributions that drew it."""

    identity: Identity
    owner: Owner
    round_: int
    prefix: Prefix
    tokens: Prefix
    rows: tuple[Categorical, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """What one round committed; the three counts sum to the depth."""

    tokens: Prefix
    accepted: int
    rejected: int
    unverified: int
    last: Last


def propose(
    draft: Model, identity: Identity, prefix: Prefix, depth: int, tickets: Tickets, round_: int
) -> Proposal:
    """Draw ``depth`` tokens, each from the row that is conditioned on those before it."""
    if not 1 <= depth <= DEPTH_MAX:
        raise Refused(f"depth {depth}")
    tokens: Prefix = ()
    rows: list[Categorical] = []
    for index in range(depth):
        row = draft(prefix + tokens)
        ticket = tickets.below(row.tickets, Domain.PROPOSAL, len(prefix) + index, round_)
        rows.append(row)
        tokens = (*tokens, row.token_at(ticket))
    return Proposal(identity, Owner.WORKER, round_, prefix, tokens, tuple(rows))


class Verifier:
    """One request's verifying session.

    ``prefix`` is what is committed and ``finished`` whether the request is
    over. Rounds must be used in ascending order, each at most once.
    """

    def __init__(
        self,
        target: Model,
        identity: Identity,
        prefix: Prefix,
        tickets: Tickets,
        *,
        processors: Sequence[Processor] = (),
        stop_tokens: frozenset[int] = frozenset(),
        room: int,
    ) -> None:
        if room < 1:
            raise Refused(f"room {room}")
        self.identity = identity
        self.prefix = prefix
        self.finished = False
        self.poisoned = False
        self._target = target
        self._tickets = tickets
        self._processors = tuple(processors)
        self._stop_tokens = stop_tokens
        self._length_max = len(prefix) + room
        self._round = -1

    def rebuild(self, generation: int, tickets: Tickets) -> None:
        """Start a new generation from the committed prefix; takes the poison away."""
        if generation <= self.identity.generation:
            raise Refused(f"generation {generation} is not new")
        self.identity = Identity(self.identity.request, generation, self.identity.context)
        self._tickets = tickets
        self._round = -1
        self.poisoned = False

    def verify(self, proposal: Proposal) -> Round:
        """Verify a proposal for the present state, and commit."""
        self._begin(proposal.round_)
        self._check(proposal)
        return self._guarded(proposal.round_, proposal.tokens, proposal.rows)

    def target_only(self, round_: int) -> Round:
        """Draw one token from the target, and commit it."""
        self._begin(round_)
        return self._guarded(round_, (), ())

    def _begin(self, round_: int) -> None:
        if self.poisoned:
            raise Refused("the session is poisoned")
        if self.finished:
            raise Refused("the request is over")
        if round_ <= self._round:
            raise Refused(f"round {round_} was used")

    def _check(self, proposal: Proposal) -> None:
        if proposal.owner is not Owner.WORKER:
            raise Refused("proposals are drawn by the worker")
        if proposal.identity != self.identity:
            raise Refused(f"{proposal.identity} is not {self.identity}")
        if proposal.prefix != self.prefix:
            raise Refused("the prefix is not the committed one")
        if not 1 <= len(proposal.tokens) <= DEPTH_MAX:
            raise Refused(f"depth {len(proposal.tokens)}")
        if len(proposal.rows) != len(proposal.tokens):
            raise Refused("a token without its q")
        for token, row in zip(proposal.tokens, proposal.rows, strict=True):
            if token not in row.support:
                raise Refused(f"token {token} was not drawn from its q")

    def _guarded(self, round_: int, tokens: Prefix, rows: tuple[Categorical, ...]) -> Round:
        self._round = round_
        try:
            outcome = self._judge(round_, tokens, rows)
        except Exception:
            self.poisoned = True
            raise
        self.finished = self._ends(outcome.tokens)
        self.prefix += outcome.tokens
        return outcome

    def _judge(self, round_: int, tokens: Prefix, rows: tuple[Categorical, ...]) -> Round:
        depth = len(tokens)
        for index, (token, q) in enumerate(zip(tokens, rows, strict=True)):
            p = self._law(tokens[:index])
            position = len(self.prefix) + index
            chance = acceptance(p, q, token)
            if chance < 1:
                ticket = self._tickets.below(
                    chance.denominator, Domain.ACCEPTANCE, position, round_
                )
                if ticket >= chance.numerator:
                    correction = self._draw(residual(p, q), Domain.RESIDUAL, position, round_)
                    kept = (*tokens[:index], correction)
                    return Round(kept, index, 1, depth - index - 1, Last.CORRECTION)
            kept = tokens[: index + 1]
            if self._ends(kept):
                return Round(kept, index + 1, 0, depth - index - 1, Last.NONE)
        domain, last = (
            (Domain.BONUS, Last.BONUS) if depth else (Domain.TARGET_ONLY, Last.TARGET_ONLY)
        )
        token = self._draw(self._law(tokens), domain, len(self.prefix) + depth, round_)
        return Round((*tokens, token), depth, 0, 0, last)

    def _law(self, drafted: Prefix) -> Categorical:
        prefix = self.prefix + drafted
        p = self._target(prefix)
        for processor in self._processors:
            p = processor(prefix, p)
        return p

    def _draw(self, law: Categorical, domain: Domain, position: int, round_: int) -> int:
        return law.token_at(self._tickets.below(law.tickets, domain, position, round_))

    def _ends(self, tokens: Prefix) -> bool:
        """Whether the last of these tokens, committed next, ends the request."""
        return tokens[-1] in self._stop_tokens or len(self.prefix + tokens) == self._length_max
