"""Small exact models, and whole rounds of the product over them.

A ``ToyModel`` names target counts and draft weights for every prefix. Rounds
go through the product's own functions: weights to counts, ticket to token,
``verify_chain``. Masses are parameters, so ``enumerate_runs`` can try every
ticket.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from proto_v2.dyadic import Categorical, full_support, top_k
from proto_v2.rng import Domain, TicketSource
from spark_rank.residual import quantise_target
from spark_rank.verify import Finish, Verdict, verify_chain

Prefix = tuple[int, ...]
VerifyChain = Callable[..., Verdict]  # the signature of verify_chain

_NUDGE = 1 / 128


def logits_of(counts: Sequence[int], target_bits: int) -> NDArray[np.float32]:
    """Processed logits whose quantised law is exactly these counts.

    Every count but the largest is nudged up by a small part of a ticket, so
    that no rounding can floor it away; the deficit rule gives the largest what
    it lacks. Not every law with equal largest counts can be reached.
    """
    wanted = np.asarray(counts, dtype=np.int64)
    assert wanted.sum() == 1 << target_bits
    weights = wanted.astype(np.float64)
    largest = int(wanted.argmax())
    others = np.flatnonzero(wanted)
    others = others[others != largest]
    if len(set(wanted[wanted > 0].tolist())) > 1:
        weights[others] += _NUDGE
        weights[largest] -= _NUDGE * len(others)
    with np.errstate(divide="ignore"):
        logits: NDArray[np.float32] = np.log(weights).astype(np.float32)
    reached = quantise_target(logits, legal_size=len(wanted), target_bits=target_bits)
    assert reached.tolist() == wanted.tolist(), f"{counts} cannot be reached"
    return logits


def dense_row(counts: Sequence[int], mass_bits: int) -> Categorical:
    """A dense row with these counts."""
    assert sum(counts) == 1 << mass_bits
    return Categorical(len(counts), None, np.asarray(counts, dtype=np.int64), mass_bits)


def sparse_row(counts: Sequence[int], mass_bits: int) -> Categorical:
    """The same distribution on its explicit support."""
    dense = dense_row(counts, mass_bits).counts
    ids = np.flatnonzero(dense).astype(np.int32)
    return Categorical(len(counts), ids, dense[ids], mass_bits)


@dataclass(frozen=True)
class ToyModel:
    """Target counts and draft weights by prefix (the tokens after the prompt).

    ``support`` is 0 for dense rows, else k of a sparse top-k.
    """

    target: Callable[[Prefix], Sequence[int]]
    draft: Callable[[Prefix], Sequence[float]]
    mass_bits: int
    target_bits: int
    support: int = 0
    _logits: dict[Prefix, NDArray[np.float32]] = field(default_factory=dict)
    _rows: dict[Prefix, Categorical] = field(default_factory=dict)

    def logits(self, prefix: Prefix) -> NDArray[np.float32]:
        """Target logits after a prefix."""
        if prefix not in self._logits:
            self._logits[prefix] = logits_of(self.target(prefix), self.target_bits)
        return self._logits[prefix]

    def row(self, prefix: Prefix) -> Categorical:
        """The draft's counts after a prefix."""
        if prefix not in self._rows:
            weights = np.asarray(self.draft(prefix), dtype=np.float64)
            self._rows[prefix] = (
                top_k(weights, self.support, self.mass_bits)
                if self.support
                else full_support(weights, self.mass_bits)
            )
        return self._rows[prefix]

    def target_law(self, length: int) -> dict[Prefix, Fraction]:
        """The joint law of the first ``length`` tokens of the quantised target."""
        law: dict[Prefix, Fraction] = {(): Fraction(1)}
        for _ in range(length):
            law = {
                (*prefix, token): mass * Fraction(count, 1 << self.target_bits)
                for prefix, mass in law.items()
                for token, count in enumerate(self.target(prefix))
                if count
            }
        return law


def propose(
    model: ToyModel, prefix: Prefix, depth: int, tickets: TicketSource, round_: int
) -> tuple[Prefix, list[Categorical]]:
    """A chain of fixed depth, each token drawn from the counts that describe it."""
    drafts: Prefix = ()
    rows = []
    for index in range(depth):
        row = model.row(prefix + drafts)
        ticket = tickets.ticket(model.mass_bits, Domain.PROPOSAL, len(prefix) + index, round_)
        rows.append(row)
        drafts = (*drafts, row.token_at(ticket))
    return drafts, rows


def speculative_round(
    model: ToyModel,
    prefix: Prefix,
    depth: int,
    tickets: TicketSource,
    *,
    round_: int = 0,
    room: int,
    stop_tokens: frozenset[int] = frozenset(),
    verify: VerifyChain = verify_chain,
) -> Verdict:
    """Propose and verify one chain."""
    drafts, rows = propose(model, prefix, depth, tickets, round_)
    stacked = np.stack([model.logits(prefix + drafts[:index]) for index in range(depth + 1)])
    return verify(
        position=len(prefix),
        round_=round_,
        drafts=drafts,
        rows=rows,
        logits=stacked,
        tickets=tickets,
        stop_tokens=stop_tokens,
        room=room,
        legal_size=stacked.shape[1],
        target_bits=model.target_bits,
    )


def generate(
    model: ToyModel,
    length: int,
    depths: Sequence[int],
    tickets: TicketSource,
    *,
    stop_tokens: frozenset[int] = frozenset(),
    verify: VerifyChain = verify_chain,
) -> Prefix:
    """Rounds until ``length`` tokens are committed or a stop is.

    Round ``i`` has depth ``depths[i]``; rounds after those are target-only.
    """
    prefix: Prefix = ()
    round_ = 0
    while True:
        verdict = speculative_round(
            model,
            prefix,
            depths[round_] if round_ < len(depths) else 0,
            tickets,
            round_=round_,
            room=length - len(prefix),
            stop_tokens=stop_tokens,
            verify=verify,
        )
        prefix += verdict.tokens
        if verdict.finish is not Finish.NONE:
            return prefix
        round_ += 1
