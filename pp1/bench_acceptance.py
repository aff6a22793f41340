"""Acceptance of the real drafters against the real target, on real prompts.

Teacher forced: the target writes a continuation of each prompt by itself, and
at every position the expected acceptance of one draft is computed from the two
laws, with the integer counts that would travel:

* q travels: ``sum_i min(p_i, q_i)`` (Leviathan et al. 2023, corollary 3.6);
* ids only: the verifier takes q for one-hot at the drafted id, so a draft is
  accepted with probability p at it: ``sum_i q_i p_i``.

Both keep the output law; the difference is what sending q is worth. The drafter
"own law" is the target itself: it shows what the support policy alone costs.
"""

import json as json_module
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from proto_v2 import limits
from proto_v2.dyadic import Categorical, full_support, top_k
from proto_v2.rng import Domain, KeyedTickets
from spark_rank.engine import TargetEngine, VerifyItem
from spark_rank.engines import create as create_target
from worker.engine import DraftEngine
from worker.engines import create as create_draft

from .models import smollm2

PROMPTS: Final = (
    ("The capital of France is", False),
    ("In the morning the fishermen", False),
    ("import os\n\ndef list_files(path):\n", False),
    ("one two three four one two three four one two", False),
    ("What is gravity?", True),
    ("Explain how bread rises.", True),
    ("How do I sort a list in Python?", True),
    ("Repeat this sentence twice: the cat sat on the mat.", True),
)
TEMPERATURES: Final = (1.0, 0.7)
DRAFTERS: Final = ("smollm2", "ngram")
OWN_LAW: Final = "own law"
IDS_ONLY: Final = "ids only"
DENSE: Final = "dense"

_KEY: Final = bytes(range(limits.KEY_BYTES))
_REPEATS: Final = 5


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Mean expected acceptance of one draft; by support size, dense, and ids only."""

    drafter: str
    temperature: float
    positions: int
    by_policy: dict[str, float]


@dataclass(frozen=True, slots=True)
class Cost:
    """Best of a few timings, in milliseconds, one process, single requests.

    ``speedup`` is what a round of depth 5 yields per time against target-only:
    below 1.0, speculation loses on this machine. It leaves out the wire.
    """

    drafter: str
    draft_ms: float
    target_one_ms: float
    target_six_ms: float
    tokens_per_round: float
    speedup: float


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of ``measure``."""

    acceptance: tuple[Acceptance, ...]
    costs: tuple[Cost, ...]


@dataclass(slots=True)
class _Tally:
    positions: int = 0
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, p: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        """Count one position: target law and draft weights, float64 ``[V]``."""
        self.positions += 1
        for support in limits.SUPPORTS_NAMED:
            self._add(f"k={support}", _overlap(p, top_k(weights, support)))
        dense = full_support(weights)
        self._add(DENSE, _overlap(p, dense))
        self._add(IDS_ONLY, float(p @ dense.counts) / limits.MASS)

    def _add(self, policy: str, value: float) -> None:
        self.sums[policy] = self.sums.get(policy, 0.0) + value

    def result(self, drafter: str, temperature: float) -> Acceptance:
        means = {policy: value / self.positions for policy, value in self.sums.items()}
        return Acceptance(drafter, temperature, self.positions, means)


def _overlap(p: NDArray[np.float64], q: Categorical) -> float:
    held = p if q.ids is None else p[q.ids]
    return float(np.minimum(held, q.counts / limits.MASS).sum())


def _law(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    weights = logits.astype(np.float64)
    np.exp(weights - weights.max(), out=weights)
    weights /= weights.sum()
    return weights


def measure(quick: bool) -> Report:
    """Load the engines and measure; quick is a smaller sample of the same.

    Raises:
        ProtocolError: MODEL_MISSING and what else the engines raise on loading.
    """
    tokenizer = smollm2.load().tokenizer()
    prompts = [tokenizer.encode(text, chat) for text, chat in PROMPTS[:: 2 if quick else 1]]
    target = create_target("smollm2")
    drafters = {name: create_draft(name) for name in DRAFTERS}
    acceptance: list[Acceptance] = []
    for temperature in TEMPERATURES[: 1 if quick else None]:
        acceptance += _follow(target, drafters, prompts, temperature, 8 if quick else 32)
    dense = {row.drafter: row.by_policy[DENSE] for row in acceptance if row.temperature == 1.0}
    one, six = (_target_ms(target, prompts[0], drafts) for drafts in (0, limits.DEPTH_MAX))
    costs = [
        _cost(name, _draft_ms(drafter, prompts[0]), one, six, dense[name])
        for name, drafter in drafters.items()
    ]
    return Report(tuple(acceptance), tuple(costs))


def _follow(
    target: TargetEngine,
    drafters: dict[str, DraftEngine],
    prompts: Sequence[Sequence[int]],
    temperature: float,
    length: int,
) -> list[Acceptance]:
    """Let the target write ``length`` tokens after each prompt; judge every drafter on them."""
    stop_tokens = target.identity().stop_tokens
    tickets = KeyedTickets(_KEY)
    tallies = {name: _Tally() for name in (*drafters, OWN_LAW)}
    sessions = [index.to_bytes(limits.ID_BYTES, "little") for index in range(len(prompts))]
    for session, prompt in zip(sessions, prompts, strict=True):
        target.open(session, prompt, temperature)
        for drafter in drafters.values():
            drafter.open(session, prompt)
    live = list(sessions)
    for step in range(length):
        results = target.verify([VerifyItem(session, (), owned=True) for session in live])
        ended = set()
        for session, logits in zip(live, results, strict=True):
            assert logits is not None, "an owned item has logits"
            p = _law(logits[0])
            tallies[OWN_LAW].add(p, p)
            for name, drafter in drafters.items():
                tallies[name].add(p, drafter.next_weights(session, (), temperature))
            ticket = tickets.ticket(
                limits.MASS_BITS, Domain.TARGET_ONLY, step, sessions.index(session)
            )
            token = full_support(p).token_at(ticket)
            target.commit(session, (token,))
            for drafter in drafters.values():
                drafter.extend(session, (token,))
            if token in stop_tokens:
                ended.add(session)
        live = [session for session in live if session not in ended]
        if not live:
            break
    for session in sessions:
        target.close(session)
        for drafter in drafters.values():
            drafter.close(session)
    return [tally.result(name, temperature) for name, tally in tallies.items()]


def _target_ms(target: TargetEngine, prompt: Sequence[int], drafts: int) -> float:
    session = bytes(limits.ID_BYTES)
    item = VerifyItem(session, tuple(prompt[:1]) * drafts, owned=True)
    target.open(session, prompt, 1.0)
    best = float("inf")
    for _ in range(_REPEATS + 1):  # the first also computes the prompt
        start = time.perf_counter()
        target.verify([item])
        best = min(best, time.perf_counter() - start)
        target.rollback(session)
    target.close(session)
    return best * 1e3


def _draft_ms(drafter: DraftEngine, prompt: Sequence[int]) -> float:
    session = bytes(limits.ID_BYTES)
    drafter.open(session, prompt)
    best = float("inf")
    for index in range(_REPEATS + 1):
        start = time.perf_counter()
        drafter.next_weights(session, tuple(prompt[:1]) * index, 1.0)
        best = min(best, time.perf_counter() - start)
    drafter.close(session)
    return best * 1e3


def _cost(name: str, draft_ms: float, one: float, six: float, acceptance: float) -> Cost:
    tokens = sum(acceptance**accepted for accepted in range(limits.DEPTH_MAX + 1))
    round_ms = limits.DEPTH_MAX * draft_ms + six
    return Cost(name, draft_ms, one, six, tokens, tokens * one / round_ms)


def show(report: Report, console: Console) -> None:
    """Print the report as two tables."""
    policies = [f"k={support}" for support in limits.SUPPORTS_NAMED] + [DENSE, IDS_ONLY]
    table = Table(title="expected acceptance of one draft")
    for heading in ("drafter", "T", "positions", *policies, "q is worth"):
        table.add_column(heading, justify="left" if heading == "drafter" else "right")
    for row in report.acceptance:
        gain = row.by_policy[DENSE] / row.by_policy[IDS_ONLY]
        values = [f"{row.by_policy[policy]:.3f}" for policy in policies]
        table.add_row(
            row.drafter, f"{row.temperature:g}", str(row.positions), *values, f"{gain:.1f}x"
        )
    console.print(table)
    costs = Table(title="cost at T = 1, dense, depth 5, without the wire")
    for heading in ("drafter", "draft ms", "target ms, 1", "target ms, 6", "tokens", "speed-up"):
        costs.add_column(heading, justify="left" if heading == "drafter" else "right")
    for cost in report.costs:
        times = (cost.draft_ms, cost.target_one_ms, cost.target_six_ms)
        costs.add_row(
            cost.drafter,
            *(f"{value:.1f}" for value in times),
            f"{cost.tokens_per_round:.2f}",
            f"{cost.speedup:.2f}x",
        )
    console.print(costs)
    if all(cost.speedup < 1.0 for cost in report.costs):
        console.print("On this machine no drafter makes this small target faster than alone.")


def run(json: bool, quick: bool) -> None:
    """Measure and print to standard output, as tables or as one JSON object."""
    report = measure(quick)
    if json:
        print(json_module.dumps(asdict(report), indent=2))
    else:
        show(report, Console())
