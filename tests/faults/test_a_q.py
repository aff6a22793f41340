"""Fault kinds A, verifier's part: the q that arrives is not the q that drew."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import Categorical, allocate, full_support
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import StepEntry
from proto_v2.representation import Representation, decode, encode
from proto_v2.rng import Domain, TicketSource
from proto_v2.vocabulary import Vocabulary, map_hash
from spark_rank.residual import quantise_target
from spark_rank.verify import LastToken, Verdict, verify_chain
from specs import oracle
from tests.support import wrong_rules
from tests.support.chains import (
    Prefix,
    ToyModel,
    VerifyChain,
    dense_row,
    generate,
    logits_of,
    sparse_row,
    speculative_round,
)
from tests.support.enumerate_tickets import ScriptedTickets, enumerate_runs
from tests.support.wrong_rules import as_verify_chain
from worker.engine import DraftIdentity
from worker.proposal import DraftItem, draw_chain


def entry(depth: int, representation: Representation, support: int) -> StepEntry:
    return StepEntry(
        session_id=bytes(16),
        slot=0,
        generation=1,
        round=1,
        position=3,
        digest=bytes(16),
        depth=depth,
        temperature=0.6,
        representation=int(representation),
        support=support,
        context=0,
    )


class FixedDraft:
    """A ``DraftEngine`` whose weights are a function of the chain alone."""

    def __init__(self, weights: Callable[[Sequence[int]], NDArray[np.float64]]) -> None:
        self._weights = weights

    def identity(self) -> DraftIdentity:
        size = len(self._weights(()))
        tokens = [bytes([token]) for token in range(size)]
        return DraftIdentity("fixed", True, "toy", "none", Vocabulary(size, size, map_hash(tokens)))

    def open(self, session: bytes, prefix: Sequence[int]) -> None: ...

    def extend(self, session: bytes, tokens: Sequence[int]) -> None: ...

    def rollback(self, session: bytes, length: int) -> None: ...

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        return self._weights(chain)

    def close(self, session: bytes) -> None: ...


def verify_one(
    token: int,
    row: Categorical,
    logits: NDArray[np.float32],
    tickets: TicketSource,
    verify: VerifyChain = verify_chain,
    target_bits: int = limits.TARGET_BITS,
) -> Verdict:
    return verify(
        position=0,
        round_=1,
        drafts=(token,),
        rows=(row,),
        logits=np.stack([logits, logits]),
        tickets=tickets,
        stop_tokens=frozenset(),
        room=1,
        legal_size=len(logits),
        target_bits=target_bits,
    )


TOY = ToyModel(
    target=lambda prefix: (
        (2, 1, 1) if not prefix else ((1, 3, 0), (3, 0, 1), (1, 2, 1))[prefix[-1]]
    ),
    draft=lambda prefix: (0.25, 0.25, 0.5) if not prefix else (0.5, 0.25, 0.25),
    mass_bits=2,
    target_bits=2,
)


def law(verify: VerifyChain, length: int) -> dict[Prefix, Fraction]:
    def run(tickets: TicketSource) -> Prefix:
        return generate(TOY, length, [length], tickets, verify=verify)

    return enumerate_runs(run)


def test_a07_match_or_ratio_is_seen_and_is_not_the_product() -> None:
    """A7: accepting when a target sample matches *or* the ratio passes."""
    assert law(verify_chain, 1) == TOY.target_law(1)
    assert law(as_verify_chain(wrong_rules.match_or_ratio), 1) != TOY.target_law(1)


def test_a08_ticket_zero_never_accepts_a_token_that_the_target_forbids() -> None:
    """A8: the comparison is strict, so p(x) = 0 rejects whatever the ticket."""
    row = dense_row((1 << 23, 1 << 23, 0), limits.MASS_BITS)
    logits = np.array([0.0, -np.inf, 0.0], dtype=np.float32)
    tickets = ScriptedTickets({Domain.ACCEPTANCE: 0, Domain.RESIDUAL: 0})
    verdict = verify_one(1, row, logits, tickets)
    assert (verdict.accepted, verdict.rejected) == (0, 1)
    assert verdict.tokens == (2,), "the residual is all on token 2"
    planted = as_verify_chain(wrong_rules.inclusive)
    assert verify_one(1, row, logits, tickets, planted).tokens == (1,)


@pytest.mark.parametrize("representation", list(Representation))
def test_a09_one_ticket_of_q_keeps_its_ratio_through_the_wire(
    representation: Representation,
) -> None:
    """A9: q(x) = 2**-24, p(x) = 2**-28: accepted on exactly one ticket in sixteen.

    Half precision, or flushing subnormals, would make q zero and accept always.
    """
    sent = sparse_row((limits.MASS - 1, 1), limits.MASS_BITS)
    payload = encode(sent, representation)
    row = decode(representation, payload, 2, vocabulary_size=2, legal_size=2)
    assert row.count_of(1) == 1
    logits = np.array([0.0, -28 * np.log(2)], dtype=np.float32)
    n = int(quantise_target(logits, legal_size=2)[1])
    d = 1 << (limits.TARGET_BITS - limits.MASS_BITS)
    assert Fraction(n, d) == pytest.approx(1 / 16, rel=1e-5)
    for ticket, accepted in ((0, 1), (n - 1, 1), (n, 0), (d - 1, 0)):
        tickets = ScriptedTickets({Domain.ACCEPTANCE: ticket, Domain.RESIDUAL: 0})
        assert verify_one(1, row, logits, tickets).accepted == accepted


def test_a09_a_q_below_one_ticket_cannot_be_drawn_sent_or_verified() -> None:
    """A9: 2**-26 either has no ticket, and then cannot be the token's q, or has one."""
    weights = np.array([1 - 2.0**-26, 2.0**-26])
    counts = allocate(weights)
    assert counts.tolist() == [limits.MASS, 0]
    payload = np.array([1.0, 2.0**-26], dtype="<f4").tobytes()
    with pytest.raises(ProtocolError) as refusal:
        decode(Representation.DENSE_F32, payload, 2, vocabulary_size=2, legal_size=2)
    assert refusal.value.code is Code.VALUE_DYADIC
    row = full_support(weights)
    with pytest.raises(ProtocolError) as refusal:
        verify_one(1, row, np.zeros(2, dtype=np.float32), ScriptedTickets({}))
    assert refusal.value.code is Code.TOKEN_ZERO_Q


def test_a10_equal_laws_accept_without_a_draw_so_no_residual_is_empty() -> None:
    """A10 (i): p == q never asks for an acceptance ticket, and never rejects."""
    counts = (1 << 22,) * 4
    logits = np.zeros(4, dtype=np.float32)
    assert quantise_target(logits, legal_size=4).tolist() == [count << 24 for count in counts]
    for token in range(4):
        row = dense_row(counts, limits.MASS_BITS)
        assert verify_one(token, row, logits, ScriptedTickets({})).accepted == 1


def test_a10_a_nan_in_q_is_refused_at_decode_and_before_sampling() -> None:
    """A10 (ii): NaN reaches neither a total nor a comparison."""
    payload = np.array([0.5, np.nan, 0.5], dtype="<f4").tobytes()
    with pytest.raises(ProtocolError) as refusal:
        decode(Representation.DENSE_F32, payload, 3, vocabulary_size=3, legal_size=3)
    assert refusal.value.code is Code.VALUE_BITS
    item = DraftItem(
        0,
        b"",
        entry(1, Representation.DENSE_F32, 0),
        ScriptedTickets({}),
    )
    engine = FixedDraft(lambda _: np.array([0.5, np.nan, 0.5]))
    with pytest.raises(ProtocolError) as refusal:
        draw_chain(engine, item)
    assert refusal.value.code is Code.WEIGHTS_INVALID


def test_a12_two_tokens_have_the_joint_law_that_wrong_block_verification_breaks() -> None:
    """A12: the law of (x1, x2) is p(x1) p(x2 | x1), by exact enumeration."""
    assert law(verify_chain, 2) == TOY.target_law(2)
    assert law(wrong_rules.block_with_one_ticket, 2) != TOY.target_law(2)


def as_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to nearest even at eight significant bits."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(logits.astype(np.float64) - float(logits.max()))
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize(
    ("representation", "support"),
    [(Representation.DENSE_F32, 0), (Representation.SPARSE_F32, 0), (Representation.SPARSE_F32, 3)],
)
def test_a17_the_token_is_drawn_from_the_bytes_that_travel(
    representation: Representation, support: int
) -> None:
    """A17: for every ticket, the drawn token is the one that the payload gives it."""
    bits = 6
    logits = np.array([1.3, -0.4, 0.2, 2.1, -3.0], dtype=np.float32)
    engine = FixedDraft(lambda chain: softmax(np.roll(logits, sum(chain) + len(chain))))
    for ticket in range(1 << bits):
        tickets = ScriptedTickets({Domain.PROPOSAL: ticket})
        chain = draw_chain(
            engine, DraftItem(0, b"", entry(2, representation, support), tickets), bits
        )
        for row, payload in zip(chain.rows, chain.payloads, strict=True):
            q = decode(
                representation,
                payload,
                row.entries,
                vocabulary_size=5,
                legal_size=5,
                mass_bits=bits,
            )
            assert q.token_at(ticket) == row.token
            assert q.count_of(row.token) > 0


def test_a17_drawing_from_bf16_and_claiming_fp32_would_be_seen() -> None:
    """A17: the planted fault's exact output law is not the target's."""
    logits = np.array([7.37, 7.11, 6.93, 6.52], dtype=np.float32) / np.float32(0.6)
    claimed = allocate(softmax(logits)).tolist()
    drawn = allocate(softmax(as_bf16(logits))).tolist()
    p, q_claimed, q_drawn = (
        oracle.from_counts(counts) for counts in ((3, 3, 1, 1), claimed, drawn)
    )
    output = [Fraction(0)] * 4
    correction = oracle.residual(p, q_claimed)
    for token in q_drawn.support:
        kept = q_drawn[token] * oracle.acceptance(p, q_claimed, token)
        output[token] += kept
        for other in correction.support:
            output[other] += (q_drawn[token] - kept) * correction[other]
    assert oracle.total_variation(output, p.probabilities) > Fraction(1, 1000)
    assert oracle.output_law(p, q_drawn) == p.probabilities


def test_a18_a_drawn_token_comes_from_its_own_counts() -> None:
    """A18: a certain token is sent as certain, and accepted with p(0), not with V p(0)."""
    size = 129_280
    weights = np.zeros(size)
    weights[0] = 1.0
    tickets = ScriptedTickets({Domain.PROPOSAL: limits.MASS - 1})
    item = DraftItem(0, b"", entry(1, Representation.SPARSE_F32, 0), tickets)
    chain = draw_chain(FixedDraft(lambda _: weights), item)
    assert chain.rows[0].token == 0
    row = decode(
        Representation.SPARSE_F32, chain.payloads[0], 1, vocabulary_size=size, legal_size=size
    )
    assert row.count_of(0) == limits.MASS
    logits = np.zeros(size, dtype=np.float32)
    logits[0] = np.log(1e-5 * (size - 1) / (1 - 1e-5))
    n = int(quantise_target(logits, legal_size=size)[0])
    assert Fraction(n, 1 << limits.TARGET_BITS) == pytest.approx(1e-5, rel=1e-4)
    for ticket, accepted in ((n - 1, 1), (n, 0)):
        tickets = ScriptedTickets({Domain.ACCEPTANCE: ticket, Domain.RESIDUAL: 0})
        assert verify_one(0, row, logits, tickets).accepted == accepted


def test_a18_a_uniform_q_claimed_for_a_certain_token_accepts_it_always() -> None:
    """A18: the planted fault. With p(0) = 1e-5 above 1/V, token 0 always comes out."""
    size = 129_280
    claimed = full_support(np.full(size, 1 / size))
    logits = np.zeros(size, dtype=np.float32)
    logits[0] = np.log(1e-5 * (size - 1) / (1 - 1e-5))
    assert verify_one(0, claimed, logits, ScriptedTickets({})).tokens == (0,)


@pytest.mark.parametrize(
    ("drafts", "code"),
    [((0, 1), Code.Q_MISSING), ((3,), Code.TOKEN_RANGE), ((-1,), Code.TOKEN_RANGE)],
)
def test_a01_verification_without_a_q_for_each_draft_is_not_a_state(
    drafts: tuple[int, ...], code: Code
) -> None:
    """A1, verifier's part: refused before anything is drawn."""
    with pytest.raises(ProtocolError) as refusal:
        verify_chain(
            position=0,
            round_=1,
            drafts=drafts,
            rows=(dense_row((1, 1, 1, 1), 2),),
            logits=np.zeros((len(drafts) + 1, 4), dtype=np.float32),
            tickets=ScriptedTickets({}),
            stop_tokens=frozenset(),
            room=1,
            legal_size=3,
            target_bits=2,
        )
    assert refusal.value.code is code


def test_a03_depth_0_needs_no_q_and_gives_one_target_token() -> None:
    """A3, verifier's part: a typed target-only round."""
    logits = logits_of((1, 2, 1), 2)
    model = ToyModel(lambda _: (1, 2, 1), lambda _: (1.0, 0.0, 0.0), 2, 2)

    def run(tickets: TicketSource) -> tuple[Prefix, LastToken]:
        verdict = speculative_round(model, (), 0, tickets, room=1)
        return verdict.tokens, verdict.last

    assert enumerate_runs(run) == {
        ((token,), LastToken.TARGET_ONLY): Fraction(count, 4)
        for token, count in enumerate(quantise_target(logits, legal_size=3, target_bits=2).tolist())
    }
