"""Tokens per second of speculative against target-only generation.

Three real processes per drafter; the two arms alternate prompt by prompt on the
same daemons, so whatever else the machine does hits both. One request at a
time; the time is from the first committed round to the last, so that start-up
and prompt are in neither arm.
"""

import json as json_module
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

from pp1.client import Client
from pp1.demo import prepare_models
from pp1.processes import Trio
from pp1.report import IdText, Screen, follow, summary
from proto_v2 import limits

PROMPTS: Final = (
    "Explain why the sky is blue.",
    "Repeat this sentence three times: the cat sat on the mat.",
    "How do I sort a list in Python?",
    "Write a short story about a lighthouse.",
)
DRAFTERS: Final = ("smollm2", "ngram")
TEMPERATURES: Final = (1.0, 0.7)
SILENCE_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians over the prompts; ``ratio`` is the median of the per-prompt ratios."""

    drafter: str
    temperature: float
    target_only_tokens_per_second: float
    speculative_tokens_per_second: float
    ratio: float
    accepted_per_round: float


def _arm(
    client: Client, prompt: Sequence[int], temperature: float, depth: int, length: int
) -> dict[str, float]:
    key = client.start(
        prompt, tokens_max=length, temperature=temperature, depth=depth,
        seed=len(prompt).to_bytes(limits.SEED_BYTES, "little"),
    )  # fmt: skip
    with Screen(quiet=True) as screen:
        progress, finished = follow(client.stream(key, SILENCE_S), IdText(), screen)
    return summary(progress, finished)


def measure(quick: bool) -> list[Comparison]:
    """Run every drafter and temperature."""
    prompts = PROMPTS[:2] if quick else PROMPTS
    length = 24 if quick else 64
    model = prepare_models("smollm2", quiet=False)
    tokenizer = model.tokenizer()
    found = []
    for drafter in DRAFTERS:
        with (
            Trio(worker=["--engine", drafter], ranks=["--draft-engine", drafter]) as trio,
            Client(trio.address) as client,
        ):
            client.wait_ready(SILENCE_S, worker=True)
            for temperature in TEMPERATURES:
                pairs = []
                for text in prompts:
                    prompt = tokenizer.encode(text, chat=True)
                    plain = _arm(client, prompt, temperature, 0, length)
                    drafted = _arm(client, prompt, temperature, limits.DEPTH_MAX, length)
                    pairs.append((plain, drafted))
                found.append(_compare(drafter, temperature, pairs))
    return found


def _compare(
    drafter: str, temperature: float, pairs: list[tuple[dict[str, float], dict[str, float]]]
) -> Comparison:
    rate = "tokens_per_second"
    usable = [(plain, drafted) for plain, drafted in pairs if plain[rate] and drafted[rate]]
    return Comparison(
        drafter=drafter,
        temperature=temperature,
        target_only_tokens_per_second=round(statistics.median(p[rate] for p, _ in usable), 2),
        speculative_tokens_per_second=round(statistics.median(d[rate] for _, d in usable), 2),
        ratio=round(statistics.median(d[rate] / p[rate] for p, d in usable), 3),
        accepted_per_round=round(statistics.median(d["accepted_per_round"] for _, d in usable), 3),
    )


def run(json: bool, quick: bool) -> None:
    """Measure and print to standard output."""
    found = measure(quick)
    if json:
        print(json_module.dumps([asdict(comparison) for comparison in found], indent=2))
        return
    table = Table(
        "drafter", "T", "target-only tok/s", "speculative tok/s", "ratio", "accepted/round"
    )
    for one in found:
        table.add_row(
            one.drafter,
            f"{one.temperature:g}",
            f"{one.target_only_tokens_per_second:.1f}",
            f"{one.speculative_tokens_per_second:.1f}",
            f"{one.ratio:.2f}",
            f"{one.accepted_per_round:.2f}",
        )
    console = Console()
    console.print(table)
    if all(one.ratio < 1 for one in found):
        console.print(
            "Speculation loses on this machine: drafter, both ranks and the target's own "
            "pass share its cores. The ratio is what a faster drafter has to beat."
        )
