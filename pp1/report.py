"""What a person sees of a running request: its text, one line of figures, a summary."""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from proto_v2 import limits
from proto_v2.errors import Code, known_code
from proto_v2.messages import Finished, Tokens, tokens_from_bytes

FINISH_NAMES: Final = {0: "none", 1: "stop", 2: "length"}


class TokenText(Protocol):
    """Turns committed ids into text as they come."""

    def push(self, token: int) -> str:
        """The text that this token completes."""

    def finish(self) -> str:
        """What is left at the end."""


class IdText:
    """Ids as text, for engines without a tokenizer."""

    def push(self, token: int) -> str:
        """The id and a space."""
        return f"{token} "

    def finish(self) -> str:
        """Nothing is ever left."""
        return ""


@dataclass
class Progress:
    """Figures of one request while it runs, from its own Tokens messages."""

    started: float = field(default_factory=time.monotonic)
    first: float | None = None
    last: float | None = None
    tokens: list[int] = field(default_factory=list)
    speculative: int = 0
    target_only: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=lambda: [0] * limits.DEPTH_MAX)
    accepted_at: list[int] = field(default_factory=lambda: [0] * limits.DEPTH_MAX)
    discards: dict[str, int] = field(default_factory=dict)

    def add(self, message: Tokens) -> list[int]:
        """Take one round; its tokens."""
        now = time.monotonic()
        self.first = self.first or now
        self.last = now
        fresh = tokens_from_bytes(message.tokens, "tokens")
        self.tokens += fresh
        if message.depth:
            self.speculative += 1
            self.drafted += message.depth
            self.accepted += message.accepted
            for index in range(message.depth):
                self.drafted_at[index] += 1
                self.accepted_at[index] += index < message.accepted
        else:
            self.target_only += 1
        if message.reason:
            name = known_code(message.reason, Code.DRAFT_FAILED).name
            self.discards[name] = self.discards.get(name, 0) + 1
        return fresh

    @property
    def seconds(self) -> float:
        """From the first committed round to the last (the prompt's own time is not in it)."""
        if self.first is None or self.last is None:
            return 0.0
        return self.last - self.first

    @property
    def rate(self) -> float:
        """Tokens a second after the first round."""
        return (len(self.tokens) - 1) / self.seconds if self.seconds > 0 else 0.0

    @property
    def acceptance(self) -> list[float]:
        """Acceptance of draft i among the drafts at i, for the depths that were used."""
        return [
            accepted / drafted
            for accepted, drafted in zip(self.accepted_at, self.drafted_at, strict=True)
            if drafted
        ]

    def line(self) -> str:
        """One line of figures, the most telling first: a narrow terminal cuts the rest."""
        per_round = self.accepted / self.speculative if self.speculative else 0.0
        by_position = " ".join(f"{value:.2f}" for value in self.acceptance) or "-"
        return (
            f"{self.rate:.1f} tokens/s, {per_round:.2f} accepted/round ({by_position}), "
            f"{self.speculative} speculative + {self.target_only} target-only rounds, "
            f"{len(self.tokens)} tokens"
        )


class Screen:
    """Streams text; on a terminal the figures stay on the line below it."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal and not quiet
        self._quiet = quiet
        self._partial = ""
        self._view: Live | None = None

    def __enter__(self) -> "Screen":
        if self._live:
            self._view = Live(console=self._console, auto_refresh=False, transient=True)
            self._view.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._view is not None:
            self._view.stop()
            self._view = None
            if self._partial:
                self._console.print(self._partial, markup=False)
        elif not self._quiet:
            click.echo()

    def show(self, text: str, progress: Progress) -> None:
        """Add text and refresh the figures."""
        if self._view is None:
            if not self._quiet:
                click.echo(text, nl=False)
                sys.stdout.flush()
            return
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._console.print(line, markup=False)
        figures = Text(progress.line(), style="dim", no_wrap=True, overflow="ellipsis")
        self._view.update(Group(Text(self._partial), figures), refresh=True)


def follow(
    answers: Iterator[Tokens | Finished], text: TokenText, screen: Screen
) -> tuple[Progress, Finished]:
    """Show one request to its end."""
    progress = Progress()
    for message in answers:
        if isinstance(message, Finished):
            screen.show(text.finish(), progress)
            return progress, message
        fresh = progress.add(message)
        screen.show("".join(map(text.push, fresh)), progress)
    raise AssertionError("a stream of answers ends with Finished or raises")


def summary(progress: Progress, finished: Finished) -> dict[str, Any]:
    """The figures of a finished request, with the metrics' own names where there are any."""
    assert finished.accepted + finished.rejected + finished.unverified == finished.drafted
    return {
        "finish": FINISH_NAMES[finished.finish],
        "tokens": finished.token_count,
        "seconds": round(progress.seconds, 3),
        "seconds_to_first": round((progress.first or progress.started) - progress.started, 3),
        "tokens_per_second": round(progress.rate, 2),
        "rounds_speculative": finished.rounds_speculative,
        "rounds_target_only": finished.rounds_target_only,
        "spec_decode_num_draft_tokens": finished.drafted,
        "spec_decode_num_accepted_tokens": finished.accepted,
        "rejected": finished.rejected,
        "unverified": finished.unverified,
        "accepted_per_round": round(finished.accepted / max(1, finished.rounds_speculative), 3),
        "acceptance_by_position": [round(value, 3) for value in progress.acceptance],
        "proposals_discarded": dict(sorted(progress.discards.items())),
    }


def summary_lines(figures: dict[str, Any]) -> list[str]:
    """The summary for a person."""
    reasons: dict[str, int] = figures["proposals_discarded"]
    discards = ", ".join(f"{count} {name}" for name, count in reasons.items())
    positions = "  ".join(f"{value:.2f}" for value in figures["acceptance_by_position"]) or "-"
    return [
        f"{figures['tokens']} tokens in {figures['seconds']:.1f} s after the first: "
        f"{figures['tokens_per_second']:.1f} tokens/s (ended by {figures['finish']})",
        f"rounds: {figures['rounds_speculative']} speculative, "
        f"{figures['rounds_target_only']} target-only",
        f"drafts: {figures['spec_decode_num_draft_tokens']} = "
        f"{figures['spec_decode_num_accepted_tokens']} accepted + {figures['rejected']} rejected "
        f"+ {figures['unverified']} unverified",
        f"accepted per speculative round: {figures['accepted_per_round']:.2f}; "
        f"by position: {positions}",
        f"proposals discarded: {discards or 'none'}",
    ]
