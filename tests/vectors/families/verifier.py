"""The verifier ``standard-int48-v1``: target law, residual, chains. Results are the oracle's."""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any, Final

from specs import oracle
from specs.oracle import Last

from .. import philox, scene
from ..suite import File, Note
from .numbers import MASS, TARGET, f32, listed

_INF: Final = float("inf")

LAW_NOTES: Final = {
    "Equal": Note(
        "equal logits: the exact quotient, the rest to the lowest id",
        ("01-D-17",),
        "the ranks judge by different laws",
    ),
    "Softmax": Note(
        "small probabilities, whose floors no rounding of the softmax can move",
        ("01-D-17",),
        "the ranks judge by different laws",
    ),
    "Masked": Note("a logit of -inf", ("01-D-17", "01-D-19"), "a forbidden token is committed"),
    "Padding": Note(
        "logits from legal_size on, whatever they are",
        ("01-D-17",),
        "an id that means nothing is committed",
    ),
    "NotLogits": Note(
        "NaN, +inf or nothing but -inf below legal_size",
        ("01-D-18",),
        "a failed evaluation is sampled from",
    ),
    "Residual": Note("max(n - d, 0) over every id", ("01-D-22",), "corrections are biased"),
    "OutsideSupport": Note(
        "target mass outside a sparse support",
        ("01-D-22",),
        "what the draft never proposes is never said",
    ),
    "NothingLeft": Note(
        "p = q: no residual, and no rejection that would need one",
        ("01-D-21",),
        "a division by zero",
    ),
}

CHAIN_NOTES: Final = {
    "Accepted": Note(
        "a draft accepted by its ticket, or without a draw where n >= d",
        ("01-D-21",),
        "the law of the output is not the target's",
    ),
    "Edge": Note(
        "the last ticket that accepts, or the first that rejects", ("01-D-21",), "off by one"
    ),
    "Rejected": Note(
        "the first rejection ends the chain with a correction",
        ("01-D-22", "01-D-25"),
        "drafts after a rejection are used",
    ),
    "Bonus": Note(
        "a whole chain earns a token of the next row",
        ("01-D-23",),
        "a token is lost, or drawn under the wrong domain",
    ),
    "TargetOnly": Note(
        "no drafts: a token of the target's own",
        ("01-D-23",),
        "speculative and target-only rounds have two laws",
    ),
    "Stop": Note(
        "a stop token ends the request where it is committed",
        ("01-D-24", "06-P-16"),
        "text after the end",
    ),
    "Length": Note("no room for more", ("01-D-24", "06-P-16"), "one token too many or too few"),
    "StopBeforeLength": Note(
        "a stop token as the last token there is room for",
        ("01-D-24",),
        "the ranks name different reasons",
    ),
    "Masked": Note(
        "a draft that the target forbids", ("01-D-19", "01-D-21"), "a forbidden token is committed"
    ),
    "Certain": Note(
        "a draft with all of its q, or all of the target",
        ("01-D-16", "01-D-21"),
        "draws where there is nothing to draw",
    ),
    "Keyed": Note(
        "a round from the key alone",
        ("01-D-20", "02-R-1", "02-R-7", "02-R-8"),
        "the ranks part, or two uses share their noise",
    ),
    "BeforeAnyDraw": Note(
        "a chain that is none", ("01-D-20", "01-D-15", "01-D-16"), "a token without its q is judged"
    ),
}


# --- target law and residual ---------------------------------------------------------------


def _exact_law(logits: Sequence[float]) -> list[Fraction]:
    """Softmax with fifty digits."""
    getcontext().prec = 50
    peak = max(logits)
    weights = [
        Fraction(0) if z == -_INF else Fraction((Decimal(z) - Decimal(peak)).exp()) for z in logits
    ]
    total = sum(weights)
    return [weight / total for weight in weights]


def make_law() -> File:
    """Logits to counts, and what a draft leaves of them."""
    file = File("target", "standard-int48-v1", "01 Distribution: Target law", LAW_NOTES)

    def take(
        comment: str,
        flags: list[str],
        logits: Sequence[float],
        legal: int | None = None,
    ) -> None:
        legal = len(logits) if legal is None else legal
        kept = list(logits[:legal])
        if len({z for z in kept if z != -_INF}) == 1:
            alive = sum(z != -_INF for z in kept)
            p: list[float] | list[Fraction] = [0.0 if z == -_INF else 1.0 / alive for z in kept]
        else:
            p = _exact_law(kept)
            largest = kept.index(max(kept))
            for token, value in enumerate(p):
                apart = abs(value * TARGET - round(value * TARGET))
                assert token == largest or value == 0 or value < Fraction(1, 1000)
                assert token == largest or value == 0 or apart > Fraction(1, 1000)
        counts = oracle.target_counts(list(p), 48)
        assert sum(counts) == TARGET
        group = file.group("target_counts", legal_size=legal)
        group.valid(
            comment,
            flags,
            logits=[f32(z) for z in logits],
            output={"counts": [*counts, *(0 for _ in logits[legal:])]},
        )

    for size in (1, 2, 3, 5, 6, 7, 10, 100):
        take(f"{size} equal logits", ["Equal"], [0.0] * size)
    take("equal logits far from zero", ["Equal"], [1000.0] * 3)
    take("the largest finite logits", ["Equal"], [3.4028234663852886e38] * 3)
    take("the smallest finite logits", ["Equal"], [-3.4028234663852886e38] * 3)
    take("one of four masked", ["Equal", "Masked"], [0.0, 0.0, -_INF, 0.0])
    take("the first masked", ["Equal", "Masked"], [-_INF, 0.0, 0.0, 0.0])
    take("all but one masked", ["Equal", "Masked"], [-_INF, -_INF, 5.0, -_INF])
    take("far below: probability zero", ["Softmax"], [0.0, -1000.0, 3.0e38])
    take("small probabilities", ["Softmax"], [0.0, -20.0, -25.5, -30.0])
    take("small probabilities before a large one", ["Softmax"], [-12.25, -18.5, 7.0, -2.125])
    take("around one ticket", ["Softmax"], [0.0, -33.0, -33.5, -34.0])
    take("small probabilities and a mask", ["Softmax", "Masked"], [-22.0, -_INF, 0.0, -19.75])
    for pad in (0.0, 50.0, _INF, -_INF, float("nan")):
        take(f"padding of {pad}", ["Padding", "Equal"], [0.0, 0.0, 0.0, pad, pad], 3)
    wrong: tuple[tuple[str, list[float], int], ...] = (
        ("a NaN", [0.0, float("nan"), 0.0], 3),
        ("a NaN first", [float("nan"), 0.0], 2),
        ("+inf", [0.0, _INF], 2),
        ("+inf and -inf", [_INF, -_INF], 2),
        ("+inf everywhere", [_INF, _INF], 2),
        ("nothing but -inf", [-_INF, -_INF], 2),
        ("one id, and it is masked", [-_INF], 1),
        ("a NaN besides -inf", [float("nan"), -_INF], 2),
        ("nothing but -inf below legal_size", [-_INF, -_INF, 0.0], 2),
    )
    for comment, logits, legal in wrong:
        group = file.group("target_counts", legal_size=legal)
        group.invalid("LOGITS_INVALID", comment, ["NotLogits"], logits=[f32(z) for z in logits])
    _residuals(file)
    return file


def _shares(*parts: int, total: int) -> list[int]:
    """Counts in these proportions of a total, the rest on the largest."""
    scaled = [part * total // sum(parts) for part in parts]
    scaled[parts.index(max(parts))] += total - sum(scaled)
    return scaled


def _residuals(file: File) -> None:
    pairs: tuple[tuple[str, list[str], list[int], list[int]], ...] = (
        (
            "the worked example",
            ["Residual"],
            [93824992236886, 93824992236885, 0, 93824992236885],
            [5033165, 0, 1677722, 10066329],
        ),
        (
            "p = q",
            ["NothingLeft"],
            [TARGET // 4, TARGET // 2, 0, TARGET // 4],
            [MASS // 4, MASS // 2, 0, MASS // 4],
        ),
        (
            "one ticket of the target apart",
            ["Residual"],
            [TARGET // 2 + 1, TARGET // 2 - 1, 0, 0],
            [MASS // 2, MASS // 2, 0, 0],
        ),
        (
            "supports that do not meet",
            ["Residual", "OutsideSupport"],
            [0, 0, TARGET // 2, TARGET // 2],
            [MASS // 2, MASS // 2, 0, 0],
        ),
        (
            "a draft of one id",
            ["Residual", "OutsideSupport"],
            _shares(1, 2, 3, 4, total=TARGET),
            [MASS, 0, 0, 0],
        ),
        (
            "a draft of two ids",
            ["Residual", "OutsideSupport"],
            _shares(7, 1, 1, 7, total=TARGET),
            [MASS - 1, 0, 1, 0],
        ),
        ("a target of one id", ["Residual"], [0, 0, 0, TARGET], _shares(3, 3, 3, 1, total=MASS)),
        (
            "odd counts",
            ["Residual"],
            _shares(3, 5, 7, 11, total=TARGET),
            _shares(11, 7, 5, 3, total=MASS),
        ),
    )
    for comment, flags, n, c in pairs:
        left = oracle.correction_mass(oracle.from_counts(n), oracle.from_counts(c))
        counts = [int(mass * TARGET) for mass in left]
        assert [Fraction(count, TARGET) for count in counts] == list(left)
        group = file.group("residual", vocabulary_size=len(n))
        group.valid(comment, flags, target=n, **listed(c), output={"counts": counts})


# --- chains --------------------------------------------------------------------------------

Choose = Callable[[int, int, int], int]  # (index of the draft, domain, bound) -> ticket
_LAST: Final = {Last.NONE: 0, Last.CORRECTION: 1, Last.BONUS: 2, Last.TARGET_ONLY: 3}


class _Scripted:
    """Tickets of the true bounds for the oracle, which asks below its reduced ones."""

    def __init__(self, chain: "_Chain", choose: Choose) -> None:
        self.draws: list[dict[str, int]] = []
        self._chain = chain
        self._choose = choose

    def below(self, bound: int, domain: int, position: int, round_: int) -> int:
        index = position - self._chain.position
        true = self._chain.bound(index, domain)
        assert true % bound == 0, "the oracle's fractions are those of the counts"
        ticket = self._choose(index, domain, true)
        assert 0 <= ticket < true
        self.draws.append(
            {"domain": int(domain), "position": position, "bound": true, "ticket": ticket}
        )
        return ticket // (true // bound)


class _Chain:
    """Drafts, the rows that drew them, and the target after each."""

    def __init__(
        self,
        drafts: Sequence[int],
        rows: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        *,
        position: int = 41,
        round_: int = 2,
        stop_tokens: Sequence[int] = (),
        room: int = 100,
    ) -> None:
        assert all(sum(row) == MASS for row in rows)
        assert all(sum(target) == TARGET for target in targets)
        self.drafts, self.rows, self.targets = tuple(drafts), rows, targets
        self.position, self.round = position, round_
        self.stop_tokens, self.room = tuple(stop_tokens), room

    def bound(self, index: int, domain: int) -> int:
        """What the ABI draws below."""
        if domain == philox.ACCEPTANCE:
            return self.rows[index][self.drafts[index]] << 24
        if domain == philox.RESIDUAL:
            return sum(
                max(n - (c << 24), 0)
                for n, c in zip(self.targets[index], self.rows[index], strict=True)
            )
        return TARGET

    def judge(self, choose: Choose) -> tuple[dict[str, Any], list[dict[str, int]]]:
        """The oracle's verdict and the draws that it took."""
        tickets = _Scripted(self, choose)
        prefix = (0,) * self.position
        identity = oracle.Identity("request", 1, "context")
        verifier = oracle.Verifier(
            lambda text: oracle.from_counts(self.targets[len(text) - self.position]),
            identity,
            prefix,
            tickets,
            stop_tokens=frozenset(self.stop_tokens),
            room=self.room,
        )
        if self.drafts:
            rows = tuple(oracle.from_counts(row) for row in self.rows)
            found = verifier.verify(
                oracle.Proposal(
                    identity, oracle.Owner.WORKER, self.round, prefix, self.drafts, rows
                )
            )
        else:
            found = verifier.target_only(self.round)
        assert found.accepted + found.rejected + found.unverified == len(self.drafts)
        finish = 1 if found.tokens[-1] in self.stop_tokens else int(len(found.tokens) == self.room)
        if finish and found.tokens[-1] not in self.stop_tokens:
            finish = 2
        output = {
            "tokens": found.tokens,
            "accepted": found.accepted,
            "rejected": found.rejected,
            "unverified": found.unverified,
            "last": _LAST[found.last],
            "finish": finish,
        }
        assert verifier.finished == (finish != 0)
        return output, tickets.draws

    def given(self) -> dict[str, Any]:
        """The input of a test."""
        return {
            "position": self.position,
            "round": self.round,
            "drafts": list(self.drafts),
            "rows": [listed(row) for row in self.rows],
            "targets": [listed(target) for target in self.targets],
            "stop_tokens": list(self.stop_tokens),
            "room": self.room,
        }


_SIZE: Final = 6
# Draft and target shares of five places; every id is likelier than the draft says somewhere.
_DRAFT: Final = (
    (5, 3, 1, 4, 2, 1),
    (1, 6, 2, 2, 3, 2),
    (2, 2, 7, 1, 1, 3),
    (3, 1, 1, 8, 2, 1),
    (1, 1, 2, 3, 9, 4),
)
_TARGET: Final = (
    (2, 4, 3, 1, 5, 1),
    (3, 2, 2, 5, 1, 3),
    (4, 1, 3, 2, 2, 4),
    (1, 5, 2, 3, 3, 2),
    (2, 3, 1, 1, 4, 5),
    (1, 2, 3, 4, 5, 6),
)


def _rows(depth: int) -> list[list[int]]:
    return [_shares(*shares, total=MASS) for shares in _DRAFT[:depth]]


def _targets(depth: int) -> list[list[int]]:
    return [_shares(*shares, total=TARGET) for shares in _TARGET[: depth + 1]]


def _likelier_draft(depth: int) -> list[int]:
    """At each place the id whose draft share is farthest above the target's."""
    rows, targets = _rows(depth), _targets(depth)
    above = [
        [(c << 24) - n for c, n in zip(row, target, strict=True)]
        for row, target in zip(rows, targets[:depth], strict=True)
    ]
    return [one.index(max(one)) for one in above]


def _choose(accepts: int, edge: bool, last: Callable[[int], int]) -> Choose:
    """Accept that many drafts that have to be drawn for, then reject."""

    def choose(index: int, domain: int, bound: int) -> int:
        if domain != philox.ACCEPTANCE:
            return last(bound)
        drafts = _likelier_draft(5)
        n = _targets(5)[index][drafts[index]]
        if index < accepts:
            return n - 1 if edge else 0
        return n if edge else bound - 1

    return choose


def make_chains() -> File:
    """Chains with their tickets, to tokens."""
    file = File("verifier", "standard-int48-v1", "01 Distribution: Verifier", CHAIN_NOTES)
    group = file.group("verify", vocabulary_size=_SIZE, legal_size=_SIZE)

    def take(comment: str, flags: list[str], chain: _Chain, choose: Choose) -> None:
        output, draws = chain.judge(choose)
        group.valid(comment, flags, **chain.given(), draws=draws, output=output)

    for depth in range(1, 6):
        drafts = _likelier_draft(depth)
        for accepts in range(depth + 1):
            for edge in (False, True):
                what = f"{accepts} of {depth} accepted{', at the edge' if edge else ''}"
                flags = ["Accepted", "Bonus" if accepts == depth else "Rejected"]
                chain = _Chain(drafts, _rows(depth), _targets(depth), round_=depth)
                for last, where in (
                    (lambda bound: 0, "first"),
                    (lambda bound: bound - 1, "last"),
                    (lambda bound: bound // 2, "middle"),
                ):
                    if where == "middle" or not edge:
                        take(
                            f"{what}, the {where} ticket after it",
                            flags + ["Edge"] * edge,
                            chain,
                            _choose(accepts, edge, last),
                        )
    _ends(take)
    _laws(take)
    _keyed(file)
    _refused(file)
    return file


Take = Callable[[str, list[str], _Chain, Choose], None]


def _at(ticket: int) -> Choose:
    """This ticket of every draw, from the end if it is negative."""
    return lambda index, domain, bound: ticket % bound


def _then(acceptance: int, after: int) -> Choose:
    """One ticket for acceptance and another one for whatever follows."""
    return lambda index, domain, bound: (
        (acceptance if domain == philox.ACCEPTANCE else after) % bound
    )


def _by(key: bytes, position: int, round_: int) -> Choose:
    """The tickets of a key."""
    return lambda index, domain, bound: philox.below(key, bound, domain, position + index, round_)[
        0
    ]


def _ends(take: Take) -> None:
    """Stops and the limit, wherever they come."""
    depth = 5
    drafts = [1, 3, 0, 4, 2]
    rows = [
        [int(token == draft) * (MASS - 5) + int(token != draft) for token in range(_SIZE)]
        for draft in drafts
    ]
    same = [[count << 24 for count in row] for row in rows]
    targets = [*same, _shares(1, 2, 3, 4, 5, 6, total=TARGET)]

    def chain(**changes: Any) -> _Chain:
        return _Chain(drafts, rows, targets, **changes)

    for index in range(depth):
        for accepts in range(index, depth + 1):
            if accepts not in (index, index + 1, depth):
                continue
            what = f"draft {index} is a stop, rejection from draft {accepts} on"
            if accepts == depth:
                what = f"draft {index} is a stop in a chain that would be accepted whole"
            flipped = [
                row
                if place < accepts
                else [TARGET, *[0] * (_SIZE - 1)]
                if drafts[place]
                else [0, TARGET, *[0] * (_SIZE - 2)]
                for place, row in enumerate(same)
            ]
            one = _Chain(drafts, rows, [*flipped, targets[-1]], stop_tokens=[drafts[index]])
            take(what, ["Stop"], one, _at(-1))
    for room in range(1, depth + 2):
        take(
            f"room for {room} of {depth} drafts and a bonus",
            ["Length"],
            chain(room=room),
            _at(0),
        )
        if room <= depth:
            take(
                f"draft {room - 1} is a stop and the last there is room for",
                ["StopBeforeLength"],
                chain(room=room, stop_tokens=[drafts[room - 1]]),
                _at(0),
            )
    for stop in (0, 5):
        take(
            f"the bonus is the stop {stop}",
            ["Stop", "Bonus"],
            _Chain([1], rows[:1], [same[0], targets[-1]], stop_tokens=[stop]),
            _at(0 if stop == 0 else -1),
        )
    forbidden = [
        [0 if token == 1 else TARGET // 4 if token < 5 else 0 for token in range(_SIZE)],
        targets[-1],
    ]
    for ticket, stop in ((0, 0), (-1, 4)):
        take(
            f"the correction is the stop {stop}",
            ["Stop", "Rejected", "Masked"],
            _Chain([1], rows[:1], forbidden, stop_tokens=[stop, 9]),
            _at(ticket),
        )
        take(
            f"the correction {stop} is the last there is room for",
            ["Length", "Rejected"],
            _Chain([1], rows[:1], forbidden, room=1),
            _at(ticket),
        )
    only = _shares(1, 2, 3, 4, 5, 6, total=TARGET)
    for ticket in (0, 1, TARGET // 2, TARGET - 1, only[0] - 1, only[0]):
        take(
            f"target-only, ticket {ticket}",
            ["TargetOnly"],
            _Chain([], [], [only]),
            _at(ticket),
        )
    take(
        "target-only, a stop",
        ["TargetOnly", "Stop"],
        _Chain([], [], [only], stop_tokens=[0]),
        _at(0),
    )
    take(
        "target-only, the last token",
        ["TargetOnly", "Length"],
        _Chain([], [], [only], room=1),
        _at(0),
    )
    take(
        "target-only, a stop as the last token",
        ["TargetOnly", "StopBeforeLength"],
        _Chain([], [], [only], room=1, stop_tokens=[0]),
        _at(0),
    )
    take(
        "target-only at position 0 of round 1",
        ["TargetOnly"],
        _Chain([], [], [only], position=0, round_=1),
        _at(7),
    )


def _laws(take: Take) -> None:
    """Certain tokens, forbidden tokens, sparse supports."""
    last = _shares(1, 1, 1, 1, 1, 1, total=TARGET)
    zeros = [0] * _SIZE

    def at(token: int, count: int) -> list[int]:
        return [*zeros[:token], count, *zeros[token + 1 :]]

    def mixed(counts: Mapping[int, int]) -> list[int]:
        return [counts.get(token, 0) for token in range(_SIZE)]

    cases: tuple[tuple[str, list[str], int, list[int], list[int]], ...] = (
        ("certain in both", ["Certain", "Accepted", "Bonus"], 2, at(2, MASS), at(2, TARGET)),
        (
            "certain in the draft, likely in the target",
            ["Certain"],
            2,
            at(2, MASS),
            mixed({2: TARGET - 1, 3: 1}),
        ),
        (
            "certain in the draft, one ticket of the target",
            ["Certain"],
            2,
            at(2, MASS),
            mixed({2: 1, 3: TARGET - 1}),
        ),
        (
            "certain in the draft, forbidden",
            ["Certain", "Masked", "Rejected"],
            2,
            at(2, MASS),
            mixed({0: 5, 5: TARGET - 5}),
        ),
        (
            "one ticket of the draft, certain in the target",
            ["Certain", "Accepted", "Bonus"],
            4,
            mixed({4: 1, 0: MASS - 1}),
            at(4, TARGET),
        ),
        (
            "one ticket of the draft, forbidden",
            ["Masked", "Rejected"],
            4,
            mixed({4: 1, 0: MASS - 1}),
            mixed({0: TARGET - 1, 1: 1}),
        ),
        (
            "n = d exactly: no draw",
            ["Accepted", "Bonus"],
            1,
            [*_shares(1, 1, 2, total=MASS), 0, 0, 0],
            [count << 24 for count in _shares(1, 1, 2, total=MASS)] + [0, 0, 0],
        ),
        (
            "n one below d",
            ["Edge"],
            0,
            mixed({0: MASS // 2, 1: MASS // 2}),
            mixed({0: TARGET // 2 - 1, 1: TARGET // 2 + 1}),
        ),
        (
            "n one above d: no draw",
            ["Accepted", "Bonus"],
            0,
            mixed({0: MASS // 2, 1: MASS // 2}),
            mixed({0: TARGET // 2 + 1, 1: TARGET // 2 - 1}),
        ),
        (
            "a sparse draft, target mass outside",
            ["Rejected"],
            3,
            mixed({1: MASS // 4, 3: 3 * MASS // 4}),
            _shares(2, 1, 2, 1, 2, 2, total=TARGET),
        ),
    )
    for what, flags, draft, row, target in cases:
        d, n = row[draft] << 24, target[draft]
        chain = _Chain([draft], [row], [target, last])
        tickets = sorted({0, max(n - 1, 0), min(n, d - 1), d - 1}) if n < d else [0]
        for ticket in tickets:
            for after in (0, -1):
                take(
                    f"{what}; acceptance ticket {ticket}, then {after}",
                    flags,
                    chain,
                    _then(ticket, after),
                )


def _keyed(file: File) -> None:
    """Whole rounds from the keys: drafts drawn by the worker's, judged by the verifier's."""
    for generation in (1, 2):
        keys = [
            philox.derive_key(scene.SEED, scene.SESSION, 7, generation, owner)
            for owner in (philox.WORKER, philox.VERIFIER)
        ]
        group = file.group("verify_keyed", vocabulary_size=_SIZE, legal_size=_SIZE, key=keys[1])
        for depth in range(6):
            for round_ in (1, 2):
                rows = _rows(depth)
                drafts = [
                    scene.token_of(
                        dict(enumerate(row)),
                        philox.ticket(keys[0], 24, philox.PROPOSAL, 100 + i, round_),
                    )
                    for i, row in enumerate(rows)
                ]
                chain = _Chain(drafts, rows, _targets(depth), position=100, round_=round_)
                output, draws = chain.judge(_by(keys[1], 100, round_))
                group.valid(
                    f"generation {generation}, round {round_}, depth {depth}",
                    ["Keyed"],
                    **chain.given(),
                    output={**output, "draws": draws},
                )


def _refused(file: File) -> None:
    legal = 4
    group = file.group("verify", vocabulary_size=_SIZE, legal_size=legal)
    rows = [[*_shares(5, 3, 1, 4, total=MASS), 0, 0], [MASS, 0, 0, 0, 0, 0]]
    targets = [[*_shares(1, 2, 3, 4, total=TARGET), 0, 0]] * 3
    whole = {**_Chain([1, 0], rows, targets).given(), "draws": []}

    def refuse(code: str, comment: str, **changes: Any) -> None:
        group.invalid(code, comment, ["BeforeAnyDraw"], **{**whole, **changes})

    refuse(
        "Q_MISSING",
        "two drafts, one row",
        rows=[listed(rows[0])],
        targets=[listed(target) for target in targets[:2]],
    )
    refuse("Q_MISSING", "two drafts, no row", rows=[], targets=[listed(targets[0])])
    refuse("Q_MISSING", "one draft, two rows", drafts=[1])
    refuse("Q_MISSING", "no drafts, two rows", drafts=[])
    for token in (-1, legal, legal + 1, _SIZE, -(1 << 31), (1 << 31) - 1):
        refuse("TOKEN_RANGE", f"the first draft is {token}", drafts=[token, 0])
        refuse("TOKEN_RANGE", f"the second draft is {token}", drafts=[1, token])
    for token in (1, 2, 3):
        refuse("TOKEN_ZERO_Q", f"the second draft is {token}, which has no mass", drafts=[1, token])
