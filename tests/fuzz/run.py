"""Run the fuzz targets: ``python -m tests.fuzz.run --target NAME --seconds N --seed S``.

Each target runs in processes of its own, in bursts, over a corpus that grows in
``build/fuzz/NAME/corpus`` from the seeds and from ``tests/fuzz/corpus/NAME``. A
finding ends the target and is kept in ``build/fuzz/NAME``; put it into
``tests/fuzz/corpus/NAME``, where every test run replays it. ``--keep`` adds to
the tree what reaches code that nothing there reaches.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from .targets import CORPUS, TARGETS, Target, name_of

ROOT: Final = Path(__file__).parents[2]
WORK: Final = ROOT / "build" / "fuzz"
# The engine keeps a little memory for every comparison of arrays that it watches; the
# product does not (``test_targets``). So no process lives long.
BURST_SECONDS: Final = 120
MEMORY_MB: Final = 2048
INPUT_SECONDS_MOST: Final = 20
_PRODUCT: Final = tuple(str(ROOT / name) + os.sep for name in ("proto_v2", "worker", "spark_rank"))


@dataclass
class Result:
    """What the bursts of one target came to."""

    name: str
    executions: int = 0
    seconds: float = 0.0
    edges: int = 0
    features: int = 0
    inputs: int = 0
    peak_mb: int = 0
    finding: str = ""
    log: list[str] = field(default_factory=list)

    def take(self, output: str) -> None:
        """Add the figures that one burst printed."""
        shown = re.findall(
            r"^#(\d+)\s.*cov: (\d+) ft: (\d+) corp: (\d+)/.*rss: (\d+)Mb", output, re.MULTILINE
        )
        if shown:
            executions, self.edges, self.features, self.inputs, memory = map(int, shown[-1])
            self.executions += executions
            self.peak_mb = max(self.peak_mb, memory)

    def __str__(self) -> str:
        rate = self.executions / self.seconds if self.seconds else 0
        return (
            f"{self.name:12}{self.executions:>12,}{rate:>10,.0f}{self.edges:>8}{self.features:>10}"
            f"{self.inputs:>8}{self.peak_mb:>8}  {self.finding or 'none'}"
        )


HEADING: Final = (
    f"{'target':12}{'executions':>12}{'exec/s':>10}{'edges':>8}{'features':>10}"
    f"{'corpus':>8}{'MB':>8}  finding"
)


def fuzz(name: str, seconds: float | None, runs: int | None, seed: int) -> Result:
    """Run one target for a time or a number of executions, or until a finding."""
    result = Result(name)
    start = time.monotonic()
    burst = 0
    while not result.finding:
        result.seconds = time.monotonic() - start
        left = BURST_SECONDS if seconds is None else min(BURST_SECONDS, seconds - result.seconds)
        todo = None if runs is None else runs - result.executions
        if left < 1 or (todo is not None and todo <= 0):
            break
        limits = [f"-max_total_time={int(left)}", *([] if todo is None else [f"-runs={todo}"])]
        result.take(_burst(name, [*limits, f"-seed={seed + burst}"], result))
        burst += 1
    return result


def prepare(name: str) -> None:
    """Write the inputs that a target starts from."""
    corpus = WORK / name / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in TARGETS[name].inputs(name):
        (corpus / name_of(data)).write_bytes(data)


def _burst(name: str, options: Sequence[str], result: Result) -> str:
    """One process of the engine; its output, and in ``result`` what it found."""
    folder = WORK / name
    command = [sys.executable, "-m", "tests.fuzz.loop", name, str(folder / "corpus"), *options]
    command += [f"-artifact_prefix={folder}{os.sep}"]
    command += [f"-rss_limit_mb={MEMORY_MB}", f"-timeout={INPUT_SECONDS_MOST}"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, errors="replace"
    )
    if done.returncode:
        result.log = (done.stdout + done.stderr).splitlines()
        written = re.findall(r"Test unit written to (.*)$", done.stderr, re.MULTILINE)
        result.finding = written[-1] if written else f"exit code {done.returncode}"
    return done.stderr


def keep(name: str) -> int:
    """Add to the tree the inputs that reach code which none there reaches; how many."""
    target, folder = TARGETS[name], CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    known: set[tuple[CodeType, int, int]] = set()
    for data in target.inputs(name):
        known |= _arcs(target, data)
    added = 0
    found = sorted((WORK / name / "corpus").glob("*"), key=lambda path: path.stat().st_size)
    for path in found:
        data = path.read_bytes()
        arcs = _arcs(target, data)
        if not arcs <= known:
            known |= arcs
            (folder / name_of(data)).write_bytes(data)
            added += 1
    return added


def _arcs(target: Target, data: bytes) -> set[tuple[CodeType, int, int]]:
    """The jumps from line to line in the product's code."""
    arcs: set[tuple[CodeType, int, int]] = set()
    last: dict[FrameType, int] = {}

    def line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            arcs.add((frame.f_code, last.get(frame, 0), frame.f_lineno))
            last[frame] = frame.f_lineno
        elif event == "return":
            last.pop(frame, None)
        return line

    def call(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_PRODUCT) else None

    sys.settrace(call)
    try:
        target.run(data)
    finally:
        sys.settrace(None)
    return arcs


def _report(results: Sequence[Result]) -> Iterator[str]:
    yield HEADING
    for result in results:
        yield str(result)
    total = sum(result.executions for result in results)
    findings = sum(bool(result.finding) for result in results)
    yield f"{total:,} executions, {findings} findings"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 without a finding, 1 with one, 2 where the engine is not installed."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=list(TARGETS))
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--seconds", type=float, help="in all, for all targets together")
    length.add_argument("--runs", type=int, help="executions of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="targets at the same time")
    parser.add_argument("--keep", action="store_true", help="then add to the tree's corpus")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("atheris") is None:
        print("fuzzing needs atheris, which has wheels for x86-64 only", file=sys.stderr)
        return 2
    names: list[str] = given.target
    share = None if given.seconds is None else given.seconds * min(given.jobs, len(names))
    each = None if share is None else share / len(names)
    print(f"seed {given.seed}", flush=True)
    for name in names:
        prepare(name)

    def one(name: str) -> Result:
        result = fuzz(name, each, given.runs, given.seed)
        print(*result.log[-40:], str(result), sep="\n", flush=True)
        return result

    with ThreadPoolExecutor(given.jobs) as pool:
        results = list(pool.map(one, names))
    print(*_report(results), sep="\n")
    if given.keep:
        for name in names:
            print(f"{name}: {keep(name)} inputs added")
    return int(any(result.finding for result in results))


if __name__ == "__main__":
    sys.exit(main())
