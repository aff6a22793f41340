"""Configuration: precedence, origins, strictness and exit codes."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from proto_v2.errors import Code, ExitCode, ProtocolError
from transport.config import Program, command, exit_code_for, service_options

ROOT = Path(__file__).parents[2]


@command("worker", help="A program.")
@click.option("--listen", default="tcp://127.0.0.1:5600")
@click.option("--num-speculative-tokens", type=click.IntRange(1, 5), default=5)
@click.option("--temperature", type=float, default=1.0)
@click.option("--allow-remote", is_flag=True)
@click.option("--model", type=click.Path(path_type=Path))
@click.option("--peer", multiple=True)
@service_options
def program(**options: Any) -> int:
    for name, value in options.items():
        click.echo(f"{name}={value}")
    if options["model"] is not None:
        raise ProtocolError(Code.MODEL_MISSING, "model", "a file", f"two\nlines {options['model']}")
    return int(ExitCode.CHECK_FAILED) if options["peer"] == ("fail",) else 0


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def invoke(*arguments: str, toml: str | None = None, **environment: str) -> Result:
        if toml is not None:
            path = tmp_path / "pp1.toml"
            path.write_text(toml)
            arguments = ("--config", str(path), *arguments)
        return CliRunner().invoke(program, arguments, env=environment)

    return invoke


def test_flag_over_environment_over_file_over_default(run: Run) -> None:
    toml = "[worker]\nlisten = 'file'\nnum-speculative-tokens = 2\ntemperature = 2\n[rank]\nx = 1\n"
    result = run(
        "--listen",
        "flag",
        toml=toml,
        PP1_WORKER_LISTEN="env",
        PP1_WORKER_NUM_SPECULATIVE_TOKENS="3",
    )
    assert result.exit_code == 0, result.output
    values = result.stdout.splitlines()
    for line in ("listen=flag", "num_speculative_tokens=3", "temperature=2.0", "peer=()"):
        assert line in values


def test_print_config_shows_origins_and_is_itself_a_file(run: Run) -> None:
    toml = '[worker]\npeer = ["a", "\\"\\u0001\\\\"]\n'
    shown = run(
        "--temperature", "0.1", "--print-config", toml=toml, PP1_WORKER_ALLOW_REMOTE="1"
    ).stdout
    lines = shown.splitlines()
    for line in (
        'listen = "tcp://127.0.0.1:5600"  # default',
        "temperature = 0.1  # flag",
        "allow-remote = true  # environment",
        "# model is unset  # default",
    ):
        assert line in lines
    assert any(line.startswith("peer = [") and line.endswith("# file") for line in lines)
    again = run("--print-config", toml=shown).stdout
    assert tomllib.loads(again) == tomllib.loads(shown)
    assert tomllib.loads(shown)["worker"]["peer"] == ["a", '"\x01\\']


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("[worker]\nlisten = 5", "listen"),
        ("[worker]\nnum-speculative-tokens = '5'", "num-speculative-tokens"),
        ("[worker]\nnum-speculative-tokens = true", "num-speculative-tokens"),
        ("[worker]\nnum-speculative-tokens = 2.0", "num-speculative-tokens"),
        ("[worker]\nnum-speculative-tokens = 6", "num-speculative-tokens"),
        ("[worker]\nnum_speculative_tokens = 5", "num_speculative_tokens"),
        ("[worker]\nallow-remote = 1", "allow-remote"),
        ("[worker]\npeer = 'one'", "peer"),
        ("[worker]\nlog-level = 'loud'", "log-level"),
        ("[worker]\npeer = [1]", "peer"),
        ("[worker]\ntemperature = [1.0]", "temperature"),
        ("[worker]\nconfig = 'other.toml'", "config"),
        ("[wroker]\nlisten = 'x'", "[worker]"),
        ("worker = 1", "worker"),
        ("listen = 'x'\n[worker]", "listen"),
        ("[worker", "config"),
    ],
)
def test_a_mistake_in_the_file_is_one_line_that_names_the_key(
    run: Run, toml: str, named: str
) -> None:
    result = run(toml=toml)
    assert result.exit_code == ExitCode.CONFIG
    (line,) = result.stderr.splitlines()
    assert line.startswith("pp1: CONFIG_INVALID (900)")
    assert named in line
    assert result.stdout == ""


@pytest.mark.parametrize(
    "environment",
    [
        {"PP1_WORKER_NUM_SPECULATIVE_TOKENS": "many"},
        {"PP1_WORKER_METRICS_PORT": "65536"},
        {"PP1_WORKER_CONFIG": "/no/such/file"},
    ],
)
def test_a_mistake_in_the_environment_is_a_config_error(
    run: Run, environment: dict[str, str]
) -> None:
    result = run(**environment)
    assert result.exit_code == ExitCode.CONFIG
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [("--nonsense",), ("--temperature", "hot"), ("stray",)])
def test_a_mistake_on_the_command_line_is_a_usage_error(
    run: Run, arguments: tuple[str, ...]
) -> None:
    assert run(*arguments).exit_code == ExitCode.USAGE


def test_a_protocol_error_at_start_is_one_line_and_its_exit_code(run: Run) -> None:
    result = run("--model", "m")
    assert result.exit_code == ExitCode.PREFLIGHT
    (line,) = result.stderr.splitlines()
    assert line.startswith("pp1: MODEL_MISSING (902)")
    assert "field model: wanted a file, got two" in line


def test_what_the_program_returns_is_the_exit_code(run: Run) -> None:
    assert run("--peer", "fail").exit_code == ExitCode.CHECK_FAILED


def test_a_program_works_below_a_group() -> None:
    group = click.Group("pp1", commands=[program])
    result = CliRunner().invoke(group, ["worker", "--print-config"], env={"PP1_WORKER_LISTEN": "x"})
    assert 'listen = "x"  # environment' in result.stdout
    result = CliRunner().invoke(group, ["worker", "--config", "/no/such/file"])
    assert (result.exit_code, len(result.stderr.splitlines())) == (ExitCode.CONFIG, 1)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (Code.CONFIG_INVALID, 3),
        (Code.ADDRESS_IN_USE, 6),
        (Code.MEMORY_SHORT, 6),
        (Code.MODEL_MISSING, 6),
        (Code.WIRE_RANGE, 4),
        (Code.NOT_NEGOTIATED, 4),
        (Code.PEER_UNREACHABLE, 5),
        (Code.PROMPT_RANGE, 1),
        (Code.NOT_OURS, 1),
    ],
)
def test_exit_codes(code: Code, exit_code: int) -> None:
    assert exit_code_for(code) == exit_code


def test_every_code_has_an_exit_code_that_says_failure() -> None:
    assert all(exit_code_for(code) not in (ExitCode.OK, ExitCode.USAGE) for code in Code)


def test_python_without_assertions_is_refused() -> None:
    source = "from transport.config import command\ncommand('worker')(lambda: print('started'))()\n"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONOPTIMIZE"}
    for flags, code in (([], ExitCode.OK), (["-O"], ExitCode.CONFIG)):
        done = subprocess.run(
            [sys.executable, *flags, "-c", source],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stderr
        assert ("started" in done.stdout) is (code == ExitCode.OK)


def test_a_decorated_function_is_a_program() -> None:
    assert isinstance(program, Program)
    assert program.help == "A program."
