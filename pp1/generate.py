"""``pp1 generate``: send a prompt to daemons that run already."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from pp1.client import Client
from pp1.models import smollm2
from pp1.report import IdText, Screen, TokenText, follow, summary, summary_lines
from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Info
from proto_v2.representation import NAMES
from transport.config import command
from transport.security import read_keys

SUPPORT: Final = 32  # the seed design's bounded candidate
_REPRESENTATIONS: Final = {name: representation for representation, name in NAMES.items()}


def request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of one request, shared by ``generate`` and ``demo``."""
    options = (
        click.option("--max-tokens", type=click.IntRange(1), default=128, show_default=True),
        click.option(
            "--temperature",
            type=click.FloatRange(0, limits.TEMPERATURE_MAX),
            default=0.7,
            show_default=True,
            help="Of the target; 0 is greedy.",
        ),
        click.option(
            "--draft-temperature",
            type=click.FloatRange(limits.TEMPERATURE_MIN, limits.TEMPERATURE_MAX),
            default=None,
            help="Of the drafter; unset follows --temperature.",
        ),
        click.option("--seed", default=None, help="Any text; unset draws fresh entropy."),
        click.option(
            "--num-speculative-tokens",
            type=click.IntRange(0, limits.DEPTH_MAX),
            default=limits.DEPTH_MAX,
            show_default=True,
            help="Depth of a chain; 0 runs target-only.",
        ),
        click.option(
            "--representation",
            type=click.Choice(sorted(_REPRESENTATIONS)),
            default="sparse-f32",
            show_default=True,
            help="How q travels.",
        ),
        click.option(
            "--support",
            type=click.IntRange(0),
            default=None,
            help="k of the top-k that q is drawn on, 0 for the whole vocabulary; unset is 32.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object only."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def seed_bytes(text: str | None) -> bytes:
    """The session seed of a seed text; empty asks rank 0 for fresh entropy."""
    if text is None:
        return b""
    return hashlib.blake2b(text.encode(), digest_size=limits.SEED_BYTES).digest()


def run_request(
    client: Client,
    prompt: list[int],
    text: TokenText,
    options: dict[str, Any],
    timeout_s: float,
    info: Info,
) -> dict[str, Any]:
    """Send one request, show it, give its figures and its text."""
    support: int | None = options["support"]
    if support is None:
        support = min(SUPPORT, info.vocabulary_size)
    as_json: bool = options["as_json"]
    key = client.start(
        prompt,
        tokens_max=options["max_tokens"],
        temperature=options["temperature"],
        draft_temperature=options["draft_temperature"],
        seed=seed_bytes(options["seed"]),
        depth=options["num_speculative_tokens"],
        representation=_REPRESENTATIONS[options["representation"]],
        support=support,
    )
    collected: list[str] = []

    class Collecting:
        def push(self, token: int) -> str:
            collected.append(text.push(token))
            return collected[-1]

        def finish(self) -> str:
            collected.append(text.finish())
            return collected[-1]

    try:
        with Screen(quiet=as_json) as screen:
            progress, finished = follow(client.stream(key, timeout_s), Collecting(), screen)
    except KeyboardInterrupt:
        client.abort(key)
        raise
    figures = summary(progress, finished)
    return {"text": "".join(collected), "token_ids": progress.tokens, **figures}


def show_result(result: dict[str, Any], as_json: bool) -> None:
    """Print the figures, or everything as JSON."""
    if as_json:
        click.echo(json.dumps(result, ensure_ascii=False))
        return
    click.echo()
    for line in summary_lines(result):
        click.echo(line)


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ProtocolError(
            Code.PARAMETER_RANGE, "tokens", "ids separated by commas", text
        ) from None


def _prompt(info: Info, prompt: str, tokens: str | None, raw: bool) -> tuple[list[int], TokenText]:
    if tokens is not None:
        return _parse_ids(tokens), IdText()
    vocabulary = smollm2.vocabulary_of()
    if info.vocabulary_hash != vocabulary.map_hash:
        raise ProtocolError(
            Code.VOCABULARY_HASH_MISMATCH,
            "prompt",
            f"a target of SmolLM2's vocabulary {vocabulary.map_hash.hex()}, or --tokens",
            f"{info.target_checkpoint} with {info.vocabulary_hash.hex()}",
        )
    tokenizer = smollm2.load().tokenizer()
    return tokenizer.encode(prompt, chat=not raw), tokenizer.stream()


@command("generate", help="Generate from a prompt with daemons that run already.")
@click.option(
    "--connect",
    default="tcp://127.0.0.1:5700",
    show_default=True,
    help="Rank 0's address for requests.",
)
@click.option("--prompt", default="Why is the sky blue?", show_default=True)
@click.option("--raw", is_flag=True, help="Take the prompt as plain text, without chat turns.")
@click.option("--tokens", default=None, help="A prompt of token ids, for any vocabulary.")
@click.option(
    "--timeout-s",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="For a ready rank 0, and between answers.",
)
@click.option(
    "--curve-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Own secret certificate, where rank 0 lets in certain keys only.",
)
@click.option(
    "--server-key",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Rank 0's public certificate: talk CURVE to it.",
)
@request_options
def generate(
    connect: str,
    prompt: str,
    raw: bool,
    tokens: str | None,
    timeout_s: float,
    curve_key: Path | None,
    server_key: Path | None,
    **options: Any,
) -> None:
    """Send one request and show it."""
    keys = read_keys(curve_key, ()).connect("server-key", server_key)
    with Client(connect, keys) as client:
        info = client.wait_ready(timeout_s)
        ids, text = _prompt(info, prompt, tokens, raw)
        show_result(run_request(client, ids, text, options, timeout_s, info), options["as_json"])
