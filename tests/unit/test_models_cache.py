"""Derived data on disk: built once, checked, rebuilt when damaged."""

import threading
from pathlib import Path

import pytest

from pp1.models.cache import cache_root, ensure, is_whole
from proto_v2.errors import Code, ProtocolError


class Builder:
    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, into: Path) -> None:
        self.runs += 1
        (into / "a.bin").write_bytes(bytes(range(256)) * 100)
        (into / "b.txt").write_text("text", "utf-8")


def test_built_once_and_kept(tmp_path: Path) -> None:
    build = Builder()
    first = ensure(tmp_path, "thing-v1", build)
    assert ensure(tmp_path, "thing-v1", build) == first == tmp_path / "thing-v1"
    assert build.runs == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thing-v1", "thing-v1.lock"]


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest"])
def test_damage_is_noticed_and_repaired(tmp_path: Path, damage: str) -> None:
    build = Builder()
    final = ensure(tmp_path, "thing-v1", build)
    data = final / "a.bin"
    content = data.read_bytes()
    if damage == "flip":
        data.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
    elif damage == "cut":
        data.write_bytes(content[:-1])
    elif damage == "gone":
        data.unlink()
    else:
        (final / "manifest.json").write_text("[", "utf-8")
    assert not is_whole(final)
    ensure(tmp_path, "thing-v1", build)
    assert build.runs == 2 and data.read_bytes() == content


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(into: Path) -> None:
        (into / "half").write_text("half", "utf-8")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        ensure(tmp_path, "thing-v1", fail)
    assert [p.name for p in tmp_path.iterdir()] == ["thing-v1.lock"]
    (tmp_path / "thing-v1.killed").mkdir()  # what a killed build leaves behind
    assert is_whole(ensure(tmp_path, "thing-v1", Builder()))
    assert not (tmp_path / "thing-v1.killed").exists()


def test_starters_at_the_same_time_build_once(tmp_path: Path) -> None:
    build = Builder()
    start = threading.Barrier(4)

    def starter() -> None:
        start.wait()
        ensure(tmp_path, "thing-v1", build)

    threads = [threading.Thread(target=starter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.runs == 1


def test_a_cache_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", "utf-8")
    with pytest.raises(ProtocolError) as caught:
        ensure(blocked / "pp1", "thing-v1", Builder())
    assert caught.value.code is Code.CONFIG_INVALID
    assert "XDG_CACHE_HOME" in str(caught.value)


def test_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_root() == tmp_path / "pp1"
    assert cache_root(tmp_path / "here") == tmp_path / "here"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_root() == Path.home() / ".cache" / "pp1"
