"""Every ticket in place of a random one: exact laws of code that draws tickets.

``enumerate_runs`` calls a function again and again until it has seen every
possible sequence of tickets, and weighs each call by the exact probability of
its sequence. A function that draws only through its ``TicketSource`` thereby
yields the law of its result as Fractions, with no sampling error at all.

The source answers like a keyed one: the same question (domain, position,
round) has one answer within a run. Asking it twice is refused unless a test
plants just that fault.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeVar

from proto_v2.rng import Domain

T = TypeVar("T")

RUNS_MAX = 2_000_000


class EnumeratedTickets:
    """A ``TicketSource`` that follows a path through the tree of tickets.

    ``path`` holds the tickets of the first draws; draws beyond it answer 0 and
    extend it. ``bounds`` are the bounds of the draws of ``path``. Domains are
    plain numbers here, so that the oracle can ask as well as the product.
    """

    def __init__(self, path: list[int], *, repeats: bool) -> None:
        self.path = path
        self.bounds: list[int] = []
        self._repeats = repeats
        self._answers: dict[tuple[int, int, int], tuple[int, int]] = {}

    def ticket(self, bits: int, domain: int, position: int, round_: int) -> int:
        """One of ``2**bits`` tickets."""
        assert 1 <= bits <= 32
        return self.below(1 << bits, domain, position, round_)

    def below(self, bound: int, domain: int, position: int, round_: int) -> int:
        """One of ``bound`` tickets."""
        assert 1 <= bound <= 1 << 62
        key = (int(domain), position, round_)
        if key in self._answers:
            assert self._repeats, f"drawn twice under one counter: {key}"
            asked, answer = self._answers[key]
            assert asked == bound, f"one counter, two bounds: {key}"
            return answer
        place = len(self.bounds)
        self.bounds.append(bound)
        if place == len(self.path):
            self.path.append(0)
        answer = self.path[place]
        assert answer < bound, "the draws depend on something other than the tickets"
        self._answers[key] = (bound, answer)
        return answer


class ScriptedTickets:
    """A ``TicketSource`` with one answer for each domain, for forced draws.

    A domain that the script does not name may not be drawn from at all.
    """

    def __init__(self, answers: Mapping[Domain, int]) -> None:
        self._answers = dict(answers)
        self.drawn: list[tuple[Domain, int, int, int]] = []

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        """The scripted answer; it must lie below ``2**bits``."""
        return self.below(1 << bits, domain, position, round_)

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        """The scripted answer; it must lie below ``bound``."""
        assert domain in self._answers, f"drew from {domain.name}"
        self.drawn.append((domain, bound, position, round_))
        assert self._answers[domain] < bound
        return self._answers[domain]


def enumerate_runs(
    run: Callable[[EnumeratedTickets], T], *, repeats: bool = False
) -> dict[T, Fraction]:
    """The exact law of ``run``'s result over all its tickets.

    Args:
        run: a deterministic function of the tickets it draws; its result must
            be hashable.
        repeats: whether it may ask for one counter twice (and get one answer).

    Returns:
        Probability of each result; they sum to one.
    """
    law: dict[T, Fraction] = {}
    path: list[int] = []
    for _ in range(RUNS_MAX):
        tickets = EnumeratedTickets(path, repeats=repeats)
        result = run(tickets)
        weight = 1
        for bound in tickets.bounds:
            weight *= bound
        law[result] = law.get(result, Fraction(0)) + Fraction(1, weight)
        while path and path[-1] + 1 == tickets.bounds[len(path) - 1]:
            path.pop()
        if not path:
            assert sum(law.values()) == 1
            return law
        path[-1] += 1
    raise AssertionError(f"more than {RUNS_MAX} runs; use a smaller mass")
