"""Chi-square with the bound stated beforehand, standard library only."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeVar

Cell = TypeVar("Cell", bound=Hashable)

# One-sided significance of every chi-square bound in the tests.
SIX_SIGMA: Final = 6.0


def chi_square_bound(degrees: int, sigmas: float = SIX_SIGMA) -> float:
    """Wilson-Hilferty upper bound of chi-square at ``sigmas`` normal deviations."""
    spread = 2.0 / (9.0 * degrees)
    return degrees * (1.0 - spread + sigmas * math.sqrt(spread)) ** 3


def chi_square(
    observed: Mapping[Cell, int], expected: Mapping[Cell, Fraction], total: int
) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom.

    Cells expected fewer than five times are pooled. An observation in a cell of
    probability zero is not a matter of statistics and raises.
    """
    impossible = {cell for cell, count in observed.items() if count and not expected.get(cell)}
    assert not impossible, f"observed where the law has no mass: {sorted(map(str, impossible))}"
    statistic, cells = 0.0, 0
    pooled_observed, pooled_expected = 0, 0.0
    for cell, probability in expected.items():
        mean = float(probability) * total
        count = observed.get(cell, 0)
        if mean < 5.0:
            pooled_observed += count
            pooled_expected += mean
            continue
        statistic += (count - mean) ** 2 / mean
        cells += 1
    if pooled_expected >= 5.0:
        statistic += (pooled_observed - pooled_expected) ** 2 / pooled_expected
        cells += 1
    return statistic, cells - 1


def transitions(texts: list[list[int]]) -> Counter[tuple[int, int]]:
    """Counts of consecutive pairs within each text."""
    counts: Counter[tuple[int, int]] = Counter()
    for text in texts:
        counts.update(itertools.pairwise(text))
    return counts


def law_statistic(
    texts: list[list[int]], next_law: Callable[[int], Sequence[Fraction]]
) -> tuple[float, float, int]:
    """Chi-square of consecutive tokens against an order-one law, its bound and its degrees.

    Given the token before, the next one must follow ``next_law(before)``, so the
    statistic and the degrees of freedom sum over the tokens that came before.
    """
    by_last: dict[int, Counter[int]] = {}
    for (last, token), count in transitions(texts).items():
        by_last.setdefault(last, Counter())[token] += count
    statistic, degrees = 0.0, 0
    for last, counts in sorted(by_last.items()):
        row, row_degrees = chi_square(counts, dict(enumerate(next_law(last))), counts.total())
        statistic += row
        degrees += row_degrees
    return statistic, chi_square_bound(degrees), degrees
