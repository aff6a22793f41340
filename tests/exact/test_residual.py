"""The quantised target, the residual, and vocabulary shards."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import Categorical, full_support, top_k
from proto_v2.errors import Code, ProtocolError
from proto_v2.rng import Domain
from spark_rank.residual import pick, pick_sharded, quantise_target, residual_counts
from spark_rank.verify import verify_chain
from specs import oracle
from tests.support.chains import dense_row, sparse_row
from tests.support.enumerate_tickets import ScriptedTickets

TOTAL = 1 << limits.TARGET_BITS
SEED = 20250802


def random_logits(generator: np.random.Generator, size: int) -> NDArray[np.float32]:
    logits = (4 * generator.normal(size=size)).astype(np.float32)
    logits[generator.random(size) < 0.2] = -np.inf
    logits[int(generator.integers(size))] = 1.0
    return logits


def softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    return np.asarray(weights / weights.sum())


@pytest.mark.parametrize("target_bits", [2, 8, 31, 48])
def test_quantised_target_is_the_oracles_on_the_same_softmax(target_bits: int) -> None:
    print(f"seed {SEED}")
    generator = np.random.default_rng(SEED)
    for size in (1, 2, 3, 17, 200):
        logits = random_logits(generator, size)
        counts = quantise_target(logits, legal_size=size, target_bits=target_bits)
        wanted = oracle.target_counts(softmax(logits).tolist(), target_bits)
        assert counts.tolist() == list(wanted)


def test_quantised_target_at_the_full_vocabulary_is_close_to_its_softmax() -> None:
    """Total variation below 2.3e-10 * 2 of the FP64 softmax, and the total is exact."""
    print(f"seed {SEED}")
    logits = random_logits(np.random.default_rng(SEED), limits.VOCABULARY_SIZE_DEFAULT)
    counts = quantise_target(logits, legal_size=len(logits))
    assert int(counts.sum()) == TOTAL
    assert np.abs(counts / TOTAL - softmax(logits)).sum() / 2 < 4.6e-10


def test_masked_and_padding_ids_have_exactly_no_tickets() -> None:
    logits = np.array([0.0, -np.inf, 1.0, 50.0, 50.0], dtype=np.float32)
    counts = quantise_target(logits, legal_size=3)
    assert counts[1] == counts[3] == counts[4] == 0
    assert int(counts.sum()) == TOTAL


def test_the_deficit_goes_to_the_lowest_of_the_most_probable_ids() -> None:
    counts = quantise_target(
        np.array([-1.0, 0.0, 0.0, 0.0], dtype=np.float32), legal_size=4, target_bits=4
    )
    assert counts.tolist() == [1, 7, 4, 4]


@pytest.mark.parametrize(
    "logits",
    [[0.0, np.nan], [np.nan, 0.0], [0.0, np.inf], [-np.inf, np.inf], [-np.inf, -np.inf]],
)
def test_unusable_logits_are_refused(logits: list[float]) -> None:
    with pytest.raises(ProtocolError) as refusal:
        quantise_target(np.array(logits, dtype=np.float32), legal_size=2)
    assert refusal.value.code is Code.LOGITS_INVALID


def test_a_law_on_padding_alone_is_refused() -> None:
    with pytest.raises(ProtocolError) as refusal:
        quantise_target(np.array([-np.inf, 0.0], dtype=np.float32), legal_size=1)
    assert refusal.value.code is Code.LOGITS_INVALID


@pytest.mark.parametrize(
    "logits",
    [
        None,
        np.zeros((2, 4), dtype=np.float64),
        np.zeros((3, 4), dtype=np.float32),
        np.zeros((2, 3), dtype=np.float32),
        np.zeros((2, 5), dtype=np.float32),
        np.zeros(4, dtype=np.float32),
    ],
    ids=["none", "fp64", "rows", "narrow", "wide", "flat"],
)
def test_logits_that_are_not_the_promised_array_are_refused_before_a_draw(logits: object) -> None:
    with pytest.raises(ProtocolError) as refusal:
        verify_chain(
            position=0,
            round_=1,
            drafts=(1,),
            rows=(dense_row((1, 1, 1, 1), 2),),
            logits=logits,  # type: ignore[arg-type]
            tickets=ScriptedTickets({}),
            stop_tokens=frozenset(),
            room=1,
            legal_size=4,
        )
    assert refusal.value.code is Code.LOGITS_INVALID


def test_target_only_logits_narrower_than_the_legal_vocabulary_are_refused() -> None:
    with pytest.raises(ProtocolError) as refusal:
        verify_chain(
            position=0,
            round_=1,
            drafts=(),
            rows=(),
            logits=np.zeros((1, 3), dtype=np.float32),
            tickets=ScriptedTickets({}),
            stop_tokens=frozenset(),
            room=1,
            legal_size=4,
        )
    assert refusal.value.code is Code.LOGITS_INVALID


def test_a_bad_row_late_in_the_chain_is_refused_before_a_draw() -> None:
    """Token 3 has no mass in the second row."""
    rows = (dense_row((1, 1, 1, 1), 2), dense_row((2, 1, 1, 0), 2))
    with pytest.raises(ProtocolError) as refusal:
        verify_chain(
            position=0,
            round_=1,
            drafts=(0, 3),
            rows=rows,
            logits=np.array([[-9, 0, 0, 0]] * 3, dtype=np.float32),
            tickets=ScriptedTickets({}),
            stop_tokens=frozenset(),
            room=3,
            legal_size=4,
        )
    assert refusal.value.code is Code.TOKEN_ZERO_Q


def test_accepted_and_residual_counts_are_the_target_on_random_rows() -> None:
    """``min(n, d) + max(n - d, 0) == n`` at full masses, dense and sparse alike."""
    print(f"seed {SEED}")
    generator = np.random.default_rng(SEED)
    for _ in range(40):
        target = quantise_target(random_logits(generator, 50), legal_size=50)
        weights = generator.dirichlet(np.full(50, 0.3))
        for row in (full_support(weights), top_k(weights, 8)):
            shifted = row.dense() << 24
            residual = residual_counts(target, row)
            assert (np.minimum(target, shifted) + residual == target).all()
            assert int(residual.sum()) == TOTAL - int(np.minimum(target, shifted).sum())


def test_residual_of_dense_and_sparse_rows_is_one() -> None:
    target = np.array([3, 0, 2, 3], dtype=np.int64)
    counts = (2, 0, 0, 6)
    dense = residual_counts(target, dense_row(counts, 3), 3)
    sparse = residual_counts(target, sparse_row(counts, 3), 3)
    assert dense.tolist() == sparse.tolist() == [1, 0, 2, 0]
    assert target.tolist() == [3, 0, 2, 3], "the target row is not written to"


def test_pick_skips_ids_without_tickets() -> None:
    counts = np.array([0, 2, 0, 0, 1, 0], dtype=np.int64)
    assert [pick(counts, ticket) for ticket in range(3)] == [1, 1, 4]
    with pytest.raises(AssertionError):
        pick(counts, 3)


@pytest.mark.parametrize("cuts", [[3], [0, 6], [1, 1, 4], [2, 3, 4, 5], []])
def test_contiguous_shards_pick_the_same_token_on_every_ticket(cuts: list[int]) -> None:
    """Empty shards and shards without mass are there and are never chosen."""
    counts = np.array([0, 2, 0, 0, 3, 1], dtype=np.int64)
    shards = np.split(counts, cuts)
    for ticket in range(6):
        assert pick_sharded(shards, ticket) == pick(counts, ticket)
    with pytest.raises(AssertionError):
        pick_sharded(shards, 6)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("cuts", [[1], [4, 8], [2, 3, 11]])
def test_the_top_k_of_every_shard_holds_the_global_top_k(cuts: list[int], k: int) -> None:
    """Ties included: at most k candidates of each shard decide the global support and counts."""
    print(f"seed {SEED}")
    generator = np.random.default_rng(SEED)
    for _ in range(100):
        weights = generator.integers(0, 4, size=12) / 1.0
        if not weights.any():
            continue
        weights /= weights.sum()
        candidates = np.zeros_like(weights)
        for start, stop in pairwise([0, *cuts, weights.size]):
            order = sorted(range(start, stop), key=lambda id: (-weights[id], id))
            candidates[order[:k]] = weights[order[:k]]
        support = sorted(np.flatnonzero(candidates), key=lambda id: (-candidates[id], id))[:k]
        whole = top_k(weights, k)
        assert whole.ids is not None
        assert whole.ids.tolist() == sorted(support)


def shard_residuals(
    target: NDArray[np.int64], row: Categorical, cuts: list[int]
) -> list[NDArray[np.int64]]:
    """What ranks that hold one vocabulary shard each compute on their own."""
    bounds = [0, *cuts, len(target)]
    return [
        residual_counts(target[start:stop], row, start=start) for start, stop in pairwise(bounds)
    ]


def test_ranks_with_shards_correct_to_the_token_of_one_rank() -> None:
    """At full masses, from each rank's own part of the residual and one ticket."""
    print(f"seed {SEED}")
    generator = np.random.default_rng(SEED)
    for _ in range(300):
        size = int(generator.integers(2, 90))
        target = quantise_target(random_logits(generator, size), legal_size=size)
        weights = generator.dirichlet(np.full(size, 0.3))
        row = top_k(weights, 5) if generator.random() < 0.5 else full_support(weights)
        whole = residual_counts(target, row)
        mass = int(whole.sum())
        if mass == 0:
            continue
        cuts = sorted(generator.integers(0, size + 1, size=int(generator.integers(1, 4))).tolist())
        shards = shard_residuals(target, row, cuts)
        assert np.concatenate(shards).tolist() == whole.tolist()
        for ticket in (0, mass - 1, int(generator.integers(mass))):
            assert pick_sharded(shards, ticket) == pick(whole, ticket)


def test_the_correction_of_a_chain_uses_its_ticket_below_the_residual_mass() -> None:
    """The bound of the draw is the residual's mass, in the residual's own domain."""
    row = dense_row((6, 2, 0, 0), 3)
    tickets = ScriptedTickets({Domain.ACCEPTANCE: 7, Domain.RESIDUAL: 3})
    logits = np.log(np.array([[1, 1, 3, 3]] * 2, dtype=np.float32))
    verdict = verify_chain(
        position=4,
        round_=9,
        drafts=(0,),
        rows=(row,),
        logits=logits,
        tickets=tickets,
        stop_tokens=frozenset(),
        room=1,
        legal_size=4,
        target_bits=4,
    )
    counts = quantise_target(logits[0], legal_size=4, target_bits=4)
    mass = int(residual_counts(counts, row, 4).sum())
    assert tickets.drawn == [(Domain.ACCEPTANCE, 12, 4, 9), (Domain.RESIDUAL, mass, 4, 9)]
    assert Fraction(mass, 16) == sum(
        oracle.correction_mass(
            oracle.from_counts(counts.tolist()), oracle.from_counts(row.dense().tolist())
        )
    )
    assert verdict.tokens == (2,)
