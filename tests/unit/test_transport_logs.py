"""Log lines: one JSON object or one readable line each, and never an exception."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proto_v2.errors import Code, ProtocolError
from transport.logs import Log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def log(path: Path) -> Iterator[Log]:
    made = Log("worker", file=path, format="json")
    yield made
    made.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_json_line(log: Log, path: Path) -> None:
    log.note(logging.WARNING, "reset 100%s", {"generation": 3, "session": b"\xab\xcd", "event": 1})
    (line,) = lines(path)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "program": "worker",
        "event": "reset 100%s",
        "generation": 3,
        "session": "abcd",
    }


def test_fields_without_a_json_form_are_still_logged(log: Log, path: Path) -> None:
    loop: list[object] = []
    loop.append(loop)
    log.note(logging.INFO, "odd", {"thing": object, "nan": float("nan"), "lone": "\ud800"})
    log.note(logging.INFO, "odder", {"loop": loop, "keys": {(1, 2): 3}})
    odd, odder = lines(path)
    assert odd["thing"] == "<class 'object'>"
    assert odd["lone"] == "'\\ud800'"
    assert odder["loop"] == "[[...]]"
    assert log.lost == 0


def test_a_traceback_stays_in_its_line(log: Log, path: Path) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        log.note(logging.ERROR, "failed", error=error)
    (line,) = lines(path)
    assert "test_transport_logs.py" in line["traceback"]
    assert "ValueError: two\nlines" in line["traceback"]


def test_levels_and_what_libraries_log(path: Path) -> None:
    log = Log("rank", level="warning", file=path, format="json")
    log.note(logging.INFO, "quiet")
    log.note(logging.WARNING, "loud")
    logging.getLogger("asyncio").warning("slow %s", "callback")
    log.close()
    log.note(logging.WARNING, "after the end")
    assert [line["event"] for line in lines(path)] == ["loud", "slow callback"]


def test_text_for_people_is_one_line(path: Path) -> None:
    log = Log("worker", file=path, format="text")
    log.note(logging.INFO, "peer\nforged", {"reason": "a\nb", "bytes": b"\1", "n": 2})
    log.close()
    (line,) = path.read_text().splitlines()
    assert line.endswith("info    peer\\nforged reason='a\\nb' bytes=01 n=2")


def test_auto_is_json_when_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    log = Log("worker")
    log.note(logging.INFO, "hello")
    log.close()
    assert json.loads(capsys.readouterr().err)["event"] == "hello"


def test_a_full_disk_is_counted_and_never_raises() -> None:
    log = Log("worker", file=Path("/dev/full"), format="json")
    for _ in range(3):
        log.note(logging.INFO, "into the void")
    assert log.lost == 3
    log.close()


def test_a_file_that_cannot_be_opened_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ProtocolError) as caught:
        Log("worker", file=tmp_path / "no" / "log")
    assert caught.value.code is Code.CONFIG_INVALID
