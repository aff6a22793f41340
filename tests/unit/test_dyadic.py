"""Weights to counts against exact fractions, on rows made to go wrong; counts to tokens."""

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import (
    NORMALISATION_TOLERANCE,
    SEMANTICS,
    Categorical,
    allocate,
    full_support,
    semantics_id,
    top_k,
)
from proto_v2.errors import Code, ProtocolError
from specs import oracle
from tests.proto_samples import deterministic

V = limits.VOCABULARY_SIZE_DEFAULT
SEED = 20250804
TINY = 5e-324  # the least positive FP64


def row(*weights: float) -> NDArray[np.float64]:
    return np.array(weights, dtype=np.float64)


def normalised(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(weights / weights.sum())


def random_row(size: int, spread: float) -> NDArray[np.float64]:
    generator = np.random.default_rng(SEED + size)
    return normalised(np.exp(spread * generator.normal(size=size)))


def test_the_name_of_the_semantics() -> None:
    assert SEMANTICS == semantics_id(24) == "dyadic24-standard-v1"


# --- allocation ----------------------------------------------------------------------------

ROWS: dict[str, NDArray[np.float64]] = {
    "one id": row(1.0),
    "one-hot, first": row(1.0, 0.0, 0.0),
    "one-hot, last": row(0.0, 0.0, 1.0),
    "one-hot, a little low": row(0.0, 1.0 - 1e-10, 0.0),
    "one-hot, a little high": row(0.0, 1.0 + 1e-10, 0.0),
    "all equal, no remainder": np.full(8, 1 / 8),
    "all equal, one remainder": np.full(3, 1 / 3),
    "all equal, many tickets left": np.full(7, 1 / 7),
    "all equal, more ids than tickets of a small mass": np.full(300, 1 / 300),
    "two levels of remainders": normalised(row(*[1, 3] * 21)),
    "remainders one ulp apart": row(0.25, np.nextafter(0.25, 0), np.nextafter(0.25, 1), 0.25),
    "zeros between": row(0.0, 1 / 3, 0.0, 1 / 3, 0.0, 1 / 3, 0.0),
    "negative zeros": row(-0.0, 0.5, -0.0, 0.5),
    "subnormals without a ticket": row(0.5, TINY, 0.5, 2 * TINY),
    "subnormals beside a ticket left": row(TINY, 0.5, 0.5 - 2.0**-30, 0.0, TINY),
    "tiny tail": row(0.5, *(2.0**-k for k in range(2, 60)), 2.0**-59),
    "tail below half a ticket": row(1 - 64 * 2.0**-27, *[2.0**-27] * 64),
    "random": random_row(200, 3.0),
    "random, ascending": np.sort(random_row(200, 3.0)),
    "random, descending": np.sort(random_row(200, 3.0))[::-1],
    "random, flat": random_row(1000, 0.1),
    "not contiguous": normalised(np.arange(1.0, 21.0)).repeat(2)[::2],
}


@pytest.mark.parametrize("mass_bits", [1, 2, 8, 24])
@pytest.mark.parametrize("name", list(ROWS))
def test_allocation_is_the_exact_one(name: str, mass_bits: int) -> None:
    q = ROWS[name]
    counts = allocate(q, mass_bits)
    assert counts.dtype == np.int64
    assert tuple(counts.tolist()) == oracle.dyadic_counts(q.tolist(), mass_bits)
    assert int(counts.sum()) == 1 << mass_bits
    assert not counts[q == 0.0].any()


@pytest.mark.parametrize(
    "q",
    [
        np.full(V, 1 / V),
        np.sort(random_row(V, 2.0)),
        normalised(np.arange(V, 0, -1, dtype=np.float64) ** -1.1),
    ],
    ids=["uniform", "random, ascending", "zipf, the least first"],
)
def test_allocation_is_the_exact_one_at_the_full_vocabulary(q: NDArray[np.float64]) -> None:
    """Against integers; the fraction that they leave of an FP64 is an FP64 again."""
    counts, remainders = [], []
    for numerator, denominator in (value.as_integer_ratio() for value in q.tolist()):
        count, rest = divmod(numerator << limits.MASS_BITS, denominator)
        counts.append(count)
        remainders.append(rest / denominator)
    left = limits.MASS - sum(counts)
    assert left > 0
    for index in sorted(range(V), key=lambda i: (-remainders[i], i))[:left]:
        counts[index] += 1
    assert allocate(q).tolist() == counts


@pytest.mark.parametrize("size", [3, 6, 7, 12, 100])
def test_equal_remainders_go_to_the_lowest_ids(size: int) -> None:
    for mass_bits in (2, 5, 24):
        share, left = divmod(1 << mass_bits, size)
        wanted = [share + (index < left) for index in range(size)]
        assert allocate(np.full(size, 1 / size), mass_bits).tolist() == wanted


@deterministic
@given(
    weights=st.lists(st.integers(0, 9) | st.integers(0, 1 << 40), min_size=1, max_size=12),
    mass_bits=st.integers(1, 24),
)
def test_allocation_is_the_exact_one_on_any_row(weights: list[int], mass_bits: int) -> None:
    if not any(weights):
        weights = [*weights, 1]
    q = normalised(np.array(weights, dtype=np.float64))
    counts = tuple(allocate(q, mass_bits).tolist())
    assert counts == oracle.dyadic_counts(q.tolist(), mass_bits)


@deterministic
@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=12), st.integers(1, 12))
def test_total_variation_is_within_a_quarter_ticket_an_entry(
    weights: list[int], mass_bits: int
) -> None:
    """TV(q, counts / M) <= m / 4M for m entries; one part in 2**40 more for q's own rounding."""
    if not any(weights):
        weights = [*weights, 1]
    q = normalised(np.array(weights, dtype=np.float64))
    mass = 1 << mass_bits
    counts = allocate(q, mass_bits).tolist()
    distance = oracle.total_variation(
        [Fraction(value) for value in q.tolist()], [Fraction(count, mass) for count in counts]
    )
    entries = int(np.count_nonzero(q))
    assert distance <= Fraction(entries, 4 * mass) + Fraction(1, 1 << 40)


def test_total_variation_bound_is_attained_when_every_remainder_is_one_half() -> None:
    counts = allocate(np.full(8, 1 / 8), 2)
    assert counts.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    distance = oracle.total_variation([Fraction(1, 8)] * 8, [Fraction(c, 4) for c in counts])
    assert distance == Fraction(8, 4 * 4)


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [
        row(np.nan, 1.0),
        row(1.0, np.nan),
        row(np.inf, 0.0),
        row(0.0, np.inf),
        row(-np.inf, np.inf),
        row(np.inf, np.nan),
        row(1.5, -0.5),
        row(1.0, -TINY),
        row(0.0, 0.0),
        row(-0.0),
        row(TINY, TINY),
        row(1e308, 1e308),
        row(0.5, 0.5 + 3e-9),
        row(0.5, 0.5 - 3e-9),
        row(0.25, 0.5),
        row(),
        np.full((1, 2), 0.5),
        np.full(2, 0.5, dtype=np.float32),
        np.array([1, 0], dtype=np.int64),
    ],
)
@pytest.mark.parametrize(
    "entry",
    [allocate, full_support, lambda weights: top_k(weights, 1)],
    ids=["allocate", "full_support", "top_k"],
)
def test_what_is_not_a_distribution_is_refused(
    weights: NDArray[np.float64], entry: Callable[[NDArray[np.float64]], object]
) -> None:
    with pytest.raises(ProtocolError) as refusal:
        entry(weights)
    assert refusal.value.code is Code.WEIGHTS_INVALID


def test_the_tolerance_of_normalisation() -> None:
    for error in (0.9, -0.9):
        assert allocate(row(0.5, 0.5 + error * NORMALISATION_TOLERANCE)).sum() == limits.MASS


@pytest.mark.parametrize(
    "q",
    [
        row(0.5 + 4e-10, 0.5),
        row(0.5 - 4e-10, 0.5, 0.0),
        row(1 - 4e-10, 0.0, 0.0),
    ],
    ids=["more than the mass", "fewer remainders than tickets", "no remainder at all"],
)
def test_tickets_that_do_not_work_out_are_refused_and_not_clipped(q: NDArray[np.float64]) -> None:
    """A mass fine enough to see an error that the tolerance lets pass.

    In the second row ``0 <= R < M`` holds; it would give id 2, which has
    probability zero, a ticket.
    """
    with pytest.raises(ProtocolError) as refusal:
        allocate(q, 40)
    assert refusal.value.code is Code.ALLOCATION_INCONSISTENT
    with pytest.raises(oracle.OracleError):
        oracle.dyadic_counts(q.tolist(), 40)
    assert int(allocate(q).sum()) == limits.MASS, "24 bits do not see it"


# --- sparse support ------------------------------------------------------------------------


def support_of(categorical: Categorical) -> list[int]:
    assert categorical.ids is not None
    assert categorical.ids.dtype == np.int32
    return list(categorical.ids.tolist())


@pytest.mark.parametrize("k", [1, 2, 3, 5, 11, 12, 40])
def test_top_k_is_the_global_support_then_normalised_then_allocated(k: int) -> None:
    print(f"seed {SEED}")
    generator = np.random.default_rng(SEED)
    for _ in range(40):
        weights = normalised(generator.integers(0, 6, size=12) + np.eye(12)[0])
        found = top_k(weights, k, 8)
        chosen = oracle.Categorical.dense(weights.tolist()).sparse_topk(k).support
        inside = weights[list(chosen)]
        counts = oracle.dyadic_counts((inside / inside.sum()).tolist(), 8)
        kept = {token: count for token, count in zip(chosen, counts, strict=True) if count}
        assert dict(zip(support_of(found), found.counts.tolist(), strict=True)) == kept
        assert support_of(found) == sorted(kept)


def test_top_k_breaks_ties_by_the_lowest_id() -> None:
    weights = row(0.125, 0.25, 0.125, 0.25, 0.125, 0.125)
    assert [support_of(top_k(weights, k)) for k in range(1, 7)] == [
        [1],
        [1, 3],
        [0, 1, 3],
        [0, 1, 2, 3],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 4, 5],
    ]


def test_top_k_drops_what_gets_no_ticket_and_never_takes_a_masked_id() -> None:
    found = top_k(row(0.0, 1 - 2.0**-30, 2.0**-30, 0.0), 4)
    assert (support_of(found), found.counts.tolist()) == ([1], [limits.MASS])


def test_top_k_of_the_whole_support_is_full_support() -> None:
    weights = random_row(50, 2.0)
    assert top_k(weights, 50).dense().tolist() == full_support(weights).counts.tolist()


def test_top_k_at_the_full_vocabulary() -> None:
    weights = random_row(V, 2.0)
    found = top_k(weights, 32)
    order = sorted(range(V), key=lambda token: (-weights[token], token))[:32]
    assert support_of(found) == sorted(order)
    assert int(found.counts.sum()) == limits.MASS


def test_an_empty_support_is_a_fault_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        top_k(row(0.5, 0.5), 0)


# --- categoricals --------------------------------------------------------------------------

DENSE = Categorical(5, None, np.array([0, 3, 0, 4, 1]), 3)
SPARSE = Categorical(5, np.array([1, 3, 4], dtype=np.int32), np.array([3, 4, 1]), 3)


@pytest.mark.parametrize("categorical", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_every_ticket_gives_the_first_id_whose_cumulative_count_is_greater(
    categorical: Categorical,
) -> None:
    assert [categorical.token_at(ticket) for ticket in range(8)] == [1, 1, 1, 3, 3, 3, 3, 4]
    assert [categorical.count_of(token) for token in range(5)] == [0, 3, 0, 4, 1]
    assert categorical.dense().tolist() == [0, 3, 0, 4, 1]


@pytest.mark.parametrize("categorical", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_ids_outside_the_vocabulary_have_no_tickets(categorical: Categorical) -> None:
    for token in (-5, -1, 5, 1 << 31, 1 << 40):
        assert categorical.count_of(token) == 0


def test_no_token_before_between_or_after_a_sparse_support() -> None:
    middle = Categorical(9, np.array([2, 5], dtype=np.int32), np.array([1, 1]), 1)
    assert [middle.count_of(token) for token in range(9)] == [0, 0, 1, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("ticket", [-1, 8])
def test_a_ticket_outside_the_mass_is_a_fault_of_the_caller(ticket: int) -> None:
    for categorical in (DENSE, SPARSE):
        with pytest.raises(AssertionError):
            categorical.token_at(ticket)


def test_counts_cannot_change_after_the_draw() -> None:
    for categorical in (full_support(np.full(4, 0.25)), top_k(np.full(4, 0.25), 2)):
        with pytest.raises(ValueError, match="read-only"):
            categorical.counts[0] = 5
    ids = top_k(np.full(4, 0.25), 2).ids
    assert ids is not None
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 3


@pytest.mark.parametrize("mass_bits", [1, 2, 5])
def test_small_masses_draw_each_token_as_often_as_it_has_tickets(mass_bits: int) -> None:
    """Every grid distribution over three ids, every ticket, dense and sparse."""
    mass = 1 << mass_bits
    for first, second in product(range(mass + 1), repeat=2):
        if first + second > mass:
            continue
        counts = [first, second, mass - first - second]
        weights = np.array(counts) / mass
        for categorical in (full_support(weights, mass_bits), top_k(weights, 3, mass_bits)):
            drawn = [categorical.token_at(ticket) for ticket in range(mass)]
            assert [drawn.count(token) for token in range(3)] == counts


def test_the_ends_of_the_full_mass() -> None:
    categorical = full_support(row(2.0**-24, 0.0, 1 - 2.0**-23, 2.0**-24))
    assert [categorical.token_at(t) for t in (0, 1, limits.MASS - 2, limits.MASS - 1)] == [
        0,
        2,
        2,
        3,
    ]
