"""``pp1 bench``: figures as ratios, each comparison side by side in one run."""

import importlib

import click

from pp1.models.threads import limit_threads


@click.group(help="Measure on this machine; every comparison is interleaved in one run.")
def bench() -> None:
    """Group of the benchmarks."""
    limit_threads()


@bench.command(help="Acceptance of the drafters on real prompts, by support size and temperature.")
@click.option("--quick", is_flag=True, help="Fewer prompts and positions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def acceptance(quick: bool, as_json: bool) -> None:
    """Teacher-forced acceptance and the cost of drafter and target."""
    importlib.import_module("pp1.bench_acceptance").run(json=as_json, quick=quick)


@bench.command(help="Tokens per second, speculative against target-only, through real daemons.")
@click.option("--quick", is_flag=True, help="Two prompts and short texts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def generate(quick: bool, as_json: bool) -> None:
    """Both arms alternate on the same three processes."""
    importlib.import_module("pp1.bench_generate").run(json=as_json, quick=quick)
