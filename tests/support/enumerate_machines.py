"""Exact laws of what the three machines commit: every ticket in place of a random one.

One ``Trio`` serves request after request. Each request is one path through the
tree of all tickets that worker and verifier draw for it, so that after the
last one the law of the committed tokens is known as Fractions.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from proto_v2.representation import Representation
from proto_v2.rng import Domain, TicketSource
from spark_rank.breaker import Breaker
from spark_rank.request import RANKS
from tests.support.enumerate_tickets import EnumeratedTickets, enumerate_runs
from tests.support.tiny_engines import Text, TinyDraft, TinyLaw, TinyTarget
from tests.support.trio import Answer, Intercept, Trio

_DOMAINS = 8


@dataclass(frozen=True)
class Ask:
    """One request: its prompt's last token, ``length`` tokens to look at, the depth."""

    first: int
    length: int
    depth: int
    representation: Representation = Representation.SPARSE_F32
    support: int = 0


class _Source:
    """The tickets of one key. Draws for tokens that nobody looks at are not branched on.

    A proposal's ticket is drawn by the worker and looked up by both ranks, once each.
    """

    def __init__(self, tickets: EnumeratedTickets, number: int, horizon: int) -> None:
        self._tickets = tickets
        self._number = number
        self._horizon = horizon
        self._proposals: dict[tuple[int, int], int] = {}
        self._lookups: Counter[tuple[int, int]] = Counter()

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        place = (position, round_)
        if place not in self._proposals:
            self._proposals[place] = self.below(1 << bits, domain, position, round_)
        else:
            self._lookups[place] += 1
            assert self._lookups[place] <= RANKS, f"drawn twice under one counter: {place}"
        return self._proposals[place]

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        if position >= self._horizon:
            return 0
        # Keys are independent streams: each has counters of its own.
        return self._tickets.below(bound, self._number * _DOMAINS + domain, position, round_)


class MachineLaw:
    """Enumerates requests through worker, rank 0 and rank 1."""

    def __init__(self, law: TinyLaw, mass_bits: int, intercept: Intercept | None = None) -> None:
        self._sources: dict[bytes, TicketSource] = {}
        self._open: Callable[[bytes], TicketSource] = self._sources.__getitem__
        self.draft = TinyDraft(law)
        self.targets = (TinyTarget(law), TinyTarget(law))
        self.trio = Trio(
            self.draft,
            self.targets,
            make_tickets=lambda key: self._open(key),
            mass_bits=mass_bits,
            target_bits=law.target_bits,
            intercept=intercept,
            breaker=Breaker(failures_max=1_000_000),  # no run may see the runs before it
        )
        self.runs = 0

    def law(
        self,
        asks: Sequence[Ask],
        *,
        before: Callable[[], None] = lambda: None,
        speculates: bool = True,
    ) -> dict[tuple[Text, ...], Fraction]:
        """The joint law of the first ``length`` tokens of every request, served together.

        Args:
            before: called before each run.
            speculates: the first round of each request must have its depth.
        """
        horizon = 1 + max(ask.length for ask in asks)
        together = len(asks) > 1

        def run(tickets: EnumeratedTickets) -> tuple[Text, ...]:
            before()
            sources: dict[bytes, TicketSource] = {}

            def open_key(key: bytes) -> TicketSource:
                if key not in sources:
                    # The first key of a run that serves several is the one of the request
                    # that they wait for, so that they begin in one step.
                    unseen = together and not sources
                    sources[key] = _Source(tickets, len(sources), 0 if unseen else horizon)
                return sources[key]

            self._open = open_key
            self.runs += 1
            answers = self._serve(asks, together)
            if speculates:
                for answer, ask in zip(answers, asks, strict=True):
                    assert answer.rounds[0].depth == ask.depth, "the worker was ready"
            return tuple(
                tuple(answer.tokens[: ask.length])
                for answer, ask in zip(answers, asks, strict=True)
            )

        return enumerate_runs(run)

    def _serve(self, asks: Sequence[Ask], together: bool) -> list[Answer]:
        trio = self.trio
        trio.answers.clear()
        trio.counts.clear()
        trio.notes.clear()
        for texts in trio.committed.values():
            texts.clear()
        if together:
            trio.busy = {"rank0"}
            trio.generate(len(asks), [asks[0].first], 2, depth=0)
            trio.run()
        answers = [
            trio.generate(
                number,
                [ask.first],
                ask.length + 1,  # the last token of a request has no draft
                depth=ask.depth,
                representation=int(ask.representation),
                support=ask.support,
            )
            for number, ask in enumerate(asks)
        ]
        if together:
            # They are admitted after the first round of the other request, and the worker
            # is ready for all of them during its second.
            trio.finish_jobs("rank0")
            trio.busy = {"rank0"}
            trio.run()
            trio.finish_jobs("rank0")
        trio.run()
        for answer in answers:
            assert answer.failed is None
            assert answer.finished is not None
        trio.check_rest()
        assert not self.draft.sessions
        assert not any(target.sessions for target in self.targets)
        return answers


def product(laws: Sequence[Mapping[Text, Fraction]]) -> dict[tuple[Text, ...], Fraction]:
    """The joint law of independent requests."""
    joint: dict[tuple[Text, ...], Fraction] = {(): Fraction(1)}
    for law in laws:
        joint = {
            (*texts, text): mass * share
            for texts, mass in joint.items()
            for text, share in law.items()
        }
    return joint
