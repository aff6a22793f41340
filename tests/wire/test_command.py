"""The command as a person runs it: real model, real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pp1.processes import Trio

ROOT = Path(__file__).parents[2]
PP1 = [sys.executable, "-c", "from pp1.cli import main; main()"]
LIMIT_S = 240.0


def run(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PP1, *args],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def gone(pid: int) -> bool:
    """No such process, or only its exit status is left for somebody to collect."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_demo_speaks_json_and_ends_cleanly() -> None:
    done = run("demo", "--json", "--max-tokens", "16", "--seed", "1", "--prompt", "Say hello.")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["exit_codes"] == {"rank 0": 0, "worker": 0, "rank 1": 0}
    assert 1 <= result["tokens"] <= 16
    assert len(result["token_ids"]) == result["tokens"]
    assert result["text"].strip()
    drafted = result["spec_decode_num_draft_tokens"]
    accepted = result["spec_decode_num_accepted_tokens"]
    assert accepted + result["rejected"] + result["unverified"] == drafted
    assert result["rounds_speculative"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_demo_leaves_no_process_behind(number: signal.Signals) -> None:
    with subprocess.Popen(
        [*PP1, "demo", "--max-tokens", "2000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        line = ""
        while "three processes" not in line:
            line = demo.stdout.readline()
            assert line, "the demo ended before it began"
        children = children_of(demo.pid)
        assert len(children) == 3
        demo.send_signal(number)
        demo.stdout.read()
        assert demo.wait(LIMIT_S) == (128 + number if number == signal.SIGINT else -number)
    deadline = time.monotonic() + 30
    while not all(gone(child) for child in children):
        assert time.monotonic() < deadline, "a daemon outlives the demo"
        time.sleep(0.05)


MARKOV = ["--engine", "markov"]


@pytest.fixture(scope="module")
def markov_trio():  # type: ignore[no-untyped-def]
    with Trio(worker=MARKOV, ranks=[*MARKOV, "--draft-engine", "markov"]) as trio:
        yield trio


def test_generate_with_token_ids(markov_trio: Trio) -> None:
    args = ["generate", "--connect", markov_trio.address, "--tokens", "1, 2,3", "--json",
            "--max-tokens", "30", "--seed", "s", "--temperature", "1"]  # fmt: skip
    first, second = run(*args), run(*args)
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    assert result["tokens"] == 30
    assert result["finish"] == "length"
    assert result["text"].split() == [str(token) for token in result["token_ids"]]
    assert json.loads(second.stdout)["token_ids"] == result["token_ids"]
    other = json.loads(run(*args[:-3], "t", *args[-2:]).stdout)
    assert other["token_ids"] != result["token_ids"]


def test_greedy_target_gives_one_text(markov_trio: Trio) -> None:
    args = ["generate", "--connect", markov_trio.address, "--tokens", "5", "--json",
            "--max-tokens", "20", "--temperature", "0"]  # fmt: skip
    texts = {json.loads(run(*args).stdout)["text"] for _ in range(2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("args", "exit_code", "words"),
    [
        (["--tokens", "1,x"], 1, ["PARAMETER_RANGE", "tokens"]),
        (["--tokens", "1,999"], 1, ["PROMPT_TOKEN", "999"]),
        (["--tokens", "1", "--max-tokens", "100000"], 1, ["PROMPT_RANGE", "100000"]),
        (["--tokens", "1", "--support", "1000"], 1, ["PARAMETER_RANGE", "support"]),
        (["--prompt", "hello"], 4, ["VOCABULARY_HASH_MISMATCH"]),
        (["--tokens", "1", "--num-speculative-tokens", "6"], 2, ["num-speculative-tokens"]),
        (["--tokens", "1", "--temperature", "-1"], 2, ["temperature"]),
        (["--tokens", "1", "--temperature", "nan"], 1, ["PARAMETER_RANGE", "temperature"]),
    ],
)
def test_bad_requests_are_one_line(
    markov_trio: Trio, args: list[str], exit_code: int, words: list[str]
) -> None:
    done = run("generate", "--connect", markov_trio.address, *args)
    assert done.returncode == exit_code, done.stderr
    assert done.stdout.strip() == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_nobody_there_is_exit_5() -> None:
    done = run("generate", "--connect", "tcp://127.0.0.1:9", "--tokens", "1", "--timeout-s", "0.5")
    assert done.returncode == 5
    assert "PEER_UNREACHABLE" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_print_config_shows_origins(tmp_path: Path) -> None:
    config = tmp_path / "pp1.toml"
    config.write_text('[rank]\npair-ms = 7000\ntarget-ms = 9000\nengine = "markov"\n')
    done = run(
        "rank", "--rank", "0", "--config", str(config), "--target-ms", "8000", "--print-config",
        env={"PP1_RANK_PAIR_MS": "6000", "PP1_RANK_STEP_MS": "5000"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "target-ms = 8000  # flag" in lines
    assert "pair-ms = 6000  # environment" in lines
    assert "step-ms = 5000  # environment" in lines
    assert 'engine = "markov"  # file' in lines
    assert "connect-ms = 60000  # default" in lines


def test_help_lists_the_verbs() -> None:
    done = run("--help")
    assert done.returncode == 0
    for verb in ("demo", "generate", "worker", "rank", "bench"):
        assert verb in done.stdout


def test_the_engine_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code block of "Write an engine", as it stands there, drafts for the exact target."""
    text = (ROOT / "README.md").read_text()
    code = text.split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "uniform_draft.py").write_text(code)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    with Trio(
        worker=["--engine", "uniform_draft:UniformDraft"],
        ranks=["--engine", "markov", "--draft-checkpoint", "uniform-v1"],
    ) as trio:
        done = run("generate", "--connect", trio.address, "--tokens", "1,2,3", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tokens"] == 128
    assert result["spec_decode_num_accepted_tokens"] > 0
    assert result["proposals_discarded"] == {}
