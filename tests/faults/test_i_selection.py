"""Fault kinds I, verifier's part: admission that looked at its own draw."""

from fractions import Fraction

import numpy as np
import pytest

from proto_v2.representation import Representation
from proto_v2.rng import Domain, TicketSource
from tests.faults.test_a_q import FixedDraft, entry
from tests.support.chains import Prefix, ToyModel, propose, speculative_round
from tests.support.enumerate_tickets import ScriptedTickets, enumerate_runs
from worker.proposal import DraftItem, draw_chain

MODEL = ToyModel(lambda _: (2, 1, 1), lambda _: (0.5, 0.25, 0.25), mass_bits=2, target_bits=2)


def first_token(tickets: TicketSource, *, mode_only: bool) -> Prefix:
    """One position; the planted fault discards a draw that is not the mode."""
    drafts, _ = propose(MODEL, (), 1, tickets, round_=0)
    depth = 0 if mode_only and drafts != (0,) else 1
    return speculative_round(MODEL, (), depth, tickets, room=1).tokens


def test_i01_a_depth_fixed_before_the_draw_gives_the_target_law() -> None:
    """I1: q = p; with every draw admitted the law is p."""
    law = enumerate_runs(lambda tickets: first_token(tickets, mode_only=False), repeats=True)
    assert law == MODEL.target_law(1)


def test_i01_admitting_only_the_mode_would_be_seen() -> None:
    """I1: P(0) rises from 1/2 to 3/4 though the verifier is right."""
    law = enumerate_runs(lambda tickets: first_token(tickets, mode_only=True), repeats=True)
    assert law == {(0,): Fraction(3, 4), (1,): Fraction(1, 8), (2,): Fraction(1, 8)}


@pytest.mark.parametrize("depth", range(6))
def test_i01_a_chain_has_the_depth_of_its_step_whatever_is_drawn(depth: int) -> None:
    """I1: neither an unlikely draw nor the size of its row cuts the chain."""
    weights = np.array([0.9, 0.05, 0.05])
    for ticket in range(1 << 4):
        tickets = ScriptedTickets({Domain.PROPOSAL: ticket})
        step = entry(depth, Representation.SPARSE_F32, 2)
        chain = draw_chain(FixedDraft(lambda _: weights), DraftItem(0, b"", step, tickets), 4)
        assert len(chain.rows) == len(chain.payloads) == depth
