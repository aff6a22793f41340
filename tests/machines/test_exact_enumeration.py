"""The law of what the three machines commit, exactly: every ticket, no sampling.

The masses are a few tickets instead of 2**24 and 2**48, which are parameters;
everything else is the product, from the draft engine's weights to the tokens
that the client gets. Each planted fault is one change to that, and each is
seen by the same comparison.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import spark_rank.collector
import spark_rank.jobs
import worker.proposal
from proto_v2.binding import row_checksum
from proto_v2.codec import decode
from proto_v2.dyadic import Categorical
from proto_v2.effects import Buffer
from proto_v2.messages import Row, Rows, Step
from proto_v2.representation import Representation, encode
from proto_v2.rng import Domain, TicketSource
from tests.support import wrong_rules
from tests.support.enumerate_machines import Ask, MachineLaw, product
from tests.support.tiny_engines import Text, TinyLaw
from tests.support.wire import Sent, Wire, flip
from tests.support.wrong_rules import Rule, VerifyChain, as_verify_chain
from worker.engine import DraftEngine
from worker.proposal import Chain, DraftItem, draw_chain

SPARSE, DENSE = Representation.SPARSE_F32, Representation.DENSE_F32
DRAFT = {0: (0.25, 0.25, 0.5), 1: (0.5, 0.25, 0.25), 2: (0.25, 0.25, 0.5)}
QUARTERS = TinyLaw({0: (1, 3, 0), 1: (3, 0, 1), 2: (2, 1, 1)}, DRAFT, target_bits=2)
EIGHTHS = TinyLaw({0: (1, 5, 2), 1: (6, 0, 2), 2: (4, 3, 1)}, DRAFT, target_bits=3)
HALVES = TinyLaw({0: (3, 1), 1: (1, 3)}, {0: (0.5, 0.5), 1: (0.5, 0.5)}, target_bits=2)


def wanted(law: TinyLaw, asks: Sequence[Ask]) -> dict[tuple[Text, ...], Fraction]:
    return product([law.joint(ask.first, ask.length) for ask in asks])


@pytest.mark.parametrize("representation", [SPARSE, DENSE])
@pytest.mark.parametrize(
    ("law", "length", "depth", "support"),
    [
        (EIGHTHS, 2, 0, 0),
        (EIGHTHS, 1, 1, 0),
        (EIGHTHS, 1, 1, 1),
        (QUARTERS, 2, 1, 0),
        (QUARTERS, 2, 1, 2),
        (QUARTERS, 2, 2, 0),
    ],
)
def test_the_law_of_one_request(
    law: TinyLaw, length: int, depth: int, support: int, representation: Representation
) -> None:
    machines = MachineLaw(law, mass_bits=2)
    ask = Ask(2, length, depth, representation, support)
    assert machines.law([ask]) == wanted(law, [ask])
    assert machines.runs > 4


def test_two_tokens_at_a_finer_target() -> None:
    machines = MachineLaw(EIGHTHS, mass_bits=2)
    ask = Ask(2, 2, 1)
    assert machines.law([ask]) == wanted(EIGHTHS, [ask])


@pytest.mark.parametrize(
    ("law", "mass_bits", "asks"),
    [
        (EIGHTHS, 2, [Ask(2, 1, 1, SPARSE), Ask(0, 1, 1, DENSE)]),
        (HALVES, 1, [Ask(0, 2, 2, DENSE), Ask(1, 2, 1, SPARSE)]),
    ],
)
def test_requests_of_one_batch_are_independent(
    law: TinyLaw, mass_bits: int, asks: list[Ask]
) -> None:
    """The joint law is the product; one request is sampled by each rank."""
    together = 0

    def count_batches(
        source: str, destination: str, frames: tuple[Buffer, ...]
    ) -> list[tuple[Buffer, ...]]:
        nonlocal together
        if destination == "worker":
            message = decode(frames).message
            depths = [entry.depth for entry in message.entries] if isinstance(message, Step) else []
            together += depths == [ask.depth for ask in asks]
        return [frames]

    machines = MachineLaw(law, mass_bits, intercept=count_batches)
    assert machines.law(asks) == wanted(law, asks)
    assert together >= machines.runs


@pytest.mark.parametrize("skip", [0, 1])
def test_a_discard_that_no_draw_decides_leaves_the_law(skip: int) -> None:
    """Each run loses one whole proposal to damage, always the one of the same round."""
    wire = Wire()
    machines = MachineLaw(QUARTERS, mass_bits=2, intercept=wire)

    def before() -> None:
        wire.rules.clear()
        wire.sent.clear()
        wire.when(Rows, flip(2, 0), source="worker", skip=skip)

    ask = Ask(2, 2, 2)
    assert machines.law([ask], before=before, speculates=False) == wanted(QUARTERS, [ask])


def test_admission_that_looks_at_the_draw_would_be_seen() -> None:
    """Damage on every proposal whose first token is not the mode: a biased law."""
    wire = Wire()

    def hide(sent: Sent) -> list[tuple[Buffer, ...]] | None:
        if isinstance(sent.message, Rows) and sent.source == "worker":
            return None if sent.message.rows[0].token == 0 else flip(2, 0)(sent, sent.message)
        return None

    wire.rules.append(hide)
    # p and q are equal after token 0: without selection every draw stands.
    law = TinyLaw({0: (2, 1, 1), 1: (2, 1, 1), 2: (2, 1, 1)}, {0: (0.5, 0.25, 0.25)}, 2)
    found = MachineLaw(law, 2, intercept=wire).law([Ask(0, 1, 1)], speculates=False)
    assert found == {
        ((0,),): Fraction(3, 4),
        ((1,),): Fraction(1, 8),
        ((2,),): Fraction(1, 8),
    }


# --- planted rules ---------------------------------------------------------------------


def law_with(
    monkeypatch: pytest.MonkeyPatch,
    verify: Callable[[], VerifyChain],
    law: TinyLaw = QUARTERS,
    ask: Ask = Ask(0, 1, 1),  # noqa: B008
) -> dict[tuple[Text, ...], Fraction]:
    def plant() -> None:
        monkeypatch.setattr(spark_rank.jobs, "verify_chain", verify())

    return MachineLaw(law, mass_bits=2).law([ask], before=plant)


def test_a_planted_copy_of_the_right_rule_gives_the_target_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = Ask(0, 2, 2)
    found = law_with(monkeypatch, lambda: as_verify_chain(wrong_rules.exact), ask=ask)
    assert found == wanted(QUARTERS, [ask])


def test_a_lost_q_costs_acceptance_but_not_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a wrong law: a draft that counts as certain is still judged exactly."""
    found = law_with(monkeypatch, lambda: as_verify_chain(wrong_rules.one_hot))
    assert found == wanted(QUARTERS, [Ask(0, 1, 1)])


@pytest.mark.parametrize(
    "rule", [wrong_rules.plain_resample, wrong_rules.only_q_of_x, wrong_rules.match_or_ratio]
)
def test_a_wrong_rule_at_one_position_is_seen(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    found = law_with(monkeypatch, lambda: as_verify_chain(rule), EIGHTHS)
    assert found != wanted(EIGHTHS, [Ask(0, 1, 1)])


def test_the_inclusive_comparison_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target forbids token 2 after 0; ticket zero accepts it."""
    found = law_with(monkeypatch, lambda: as_verify_chain(wrong_rules.inclusive))
    assert found[((2,),)] > 0


def test_block_verification_done_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Ask(2, 2, 2)
    found = law_with(monkeypatch, lambda: wrong_rules.block_with_one_ticket, ask=ask)
    assert found != wanted(QUARTERS, [ask])


def test_q_of_the_round_before_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Depth 1, so the second token is judged with the row that drew the first."""
    ask = Ask(0, 2, 1)
    found = law_with(monkeypatch, wrong_rules.with_stale_rows, ask=ask)
    assert found != wanted(QUARTERS, [ask])


def uniform_claim(engine: DraftEngine, item: DraftItem, mass_bits: int) -> Chain:
    """Always proposes token 0 and says that it came from a uniform q."""
    entry = item.entry
    size = engine.identity().vocabulary.size
    counts = np.full(size, (1 << mass_bits) // size, dtype=np.int64)
    payload = encode(Categorical(size, None, counts, mass_bits), SPARSE)
    rows = tuple(
        Row(
            item.index,
            entry.position + index,
            0,
            int(SPARSE),
            size,
            len(payload),
            row_checksum(entry, index, [0] * index, 0, int(SPARSE), size, payload),
        )
        for index in range(entry.depth)
    )
    return Chain(item.index, rows, (payload,) * entry.depth)


def without_drawing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rank looks whether the counts and the ticket give the token."""
    monkeypatch.setattr(spark_rank.collector, "check_draw", lambda *_: None)


def test_a_certain_token_that_claims_a_uniform_q_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """p(0) = 1/8 would come out as min(1, p(0) V) = 1/2."""
    uniform = (0.25,) * 4
    law = TinyLaw(dict.fromkeys(range(4), (1, 2, 4, 1)), dict.fromkeys(range(4), uniform), 3)
    monkeypatch.setattr(worker.proposal, "draw_chain", uniform_claim)
    without_drawing_again(monkeypatch)
    found = MachineLaw(law, 2).law([Ask(1, 1, 1)])
    assert found[((0,),)] == Fraction(1, 2)
    assert law.joint(1, 1)[(0,)] == Fraction(1, 8)


class Coarse:
    """Tickets rounded down to even ones before the draw: half of q is never drawn."""

    def __init__(self, tickets: TicketSource) -> None:
        self._tickets = tickets

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        return self._tickets.ticket(bits, domain, position, round_) & ~1

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        return self._tickets.below(bound, domain, position, round_)


def coarse(engine: DraftEngine, item: DraftItem, mass_bits: int) -> Chain:
    return draw_chain(engine, replace(item, tickets=Coarse(item.tickets)), mass_bits)


def test_drawing_from_other_counts_than_are_sent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.proposal, "draw_chain", coarse)
    without_drawing_again(monkeypatch)
    ask = Ask(0, 1, 1)
    assert MachineLaw(EIGHTHS, 2).law([ask]) != wanted(EIGHTHS, [ask])
