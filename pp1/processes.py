"""Daemons as child processes: started, watched, and never left behind.

A child listens on a port of its own choosing and says which in its log, so
that nothing races for a port. It gets SIGTERM if this process dies, whatever
way it dies.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from proto_v2.errors import Code, ExitCode, ProtocolError

_PR_SET_PDEATHSIG: Final = 1
_STOP_S: Final = 5.0
_LINES_KEPT: Final = 400


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class DaemonFailed(Exception):
    """A child ended before it should have; carries its exit code and last word."""

    def __init__(self, name: str, exit_code: int, last_line: str) -> None:
        super().__init__(f"{name} ended with exit code {exit_code}: {last_line}")
        self.exit_code = exit_code


class Daemon:
    """One child process of ``python -m MODULE ARGS``, its log lines and its addresses."""

    def __init__(self, name: str, module: str, args: Sequence[str]) -> None:
        self.name = name
        self.lines: deque[dict[str, Any]] = deque(maxlen=_LINES_KEPT)
        self.addresses: dict[str, str] = {}
        self._last_line = ""
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *args, "--log-format", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on, in order
            preexec_fn=_die_with_parent,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._take(line.rstrip("\n"))
        with self._changed:
            self._changed.notify_all()

    def _take(self, line: str) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        with self._changed:
            if isinstance(found, dict):
                self.lines.append(found)
                if found.get("event") == "link":
                    self.addresses[found["name"]] = found["address"]
            elif line:
                self._last_line = line
            self._changed.notify_all()

    def address(self, link: str, timeout_s: float) -> str:
        """Where the child listens. Raises ``DaemonFailed`` if it ends or says nothing in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while link not in self.addresses:
                left = deadline - time.monotonic()
                if self.process.poll() is not None and not self._reader.is_alive():
                    raise self.failure()
                if left <= 0:
                    raise ProtocolError(
                        Code.PEER_UNREACHABLE,
                        self.name,
                        f"listening within {timeout_s:g} s",
                        "not yet",
                    )
                self._changed.wait(min(left, 0.1))
            return self.addresses[link]

    def failure(self) -> DaemonFailed:
        """What to raise for a child that has ended."""
        code = self.process.wait()
        self._reader.join(1.0)
        return DaemonFailed(self.name, code, self._last_line or "no message")

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event so far (at most the last few hundred lines are kept)."""
        with self._changed:
            return [line for line in self.lines if line.get("event") == event]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the child still runs."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self) -> int:
        """End the child: SIGTERM, then SIGKILL; its exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            code = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._reader.join(1.0)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


class Trio:
    """Worker leader, rank 1 and rank 0 on loopback, as three processes."""

    def __init__(
        self,
        *,
        worker: Sequence[str] = (),
        ranks: Sequence[str] = (),
        rank_zero: Sequence[str] = (),
        start_timeout_s: float = 120.0,
    ) -> None:
        """Start all three; the arguments are theirs, without addresses.

        Raises:
            DaemonFailed: one of them ended at once. None is left running.
        """
        self.start_timeout_s = start_timeout_s
        self.daemons: dict[str, Daemon] = {}
        self._ranks = tuple(ranks)
        self._rank_zero = tuple(rank_zero)
        self._worker = tuple(worker)
        try:
            self.start_worker("tcp://127.0.0.1:*")
            self.start_rank_one("tcp://127.0.0.1:*")
            worker_at = self.daemons["worker"].address("leader", start_timeout_s)
            pair_at = self.daemons["rank 1"].address("pair", start_timeout_s)
            self.daemons["rank 0"] = Daemon(
                "rank 0",
                "spark_rank",
                [
                    "--rank", "0", "--pair", pair_at, "--worker", worker_at,
                    "--requests", "tcp://127.0.0.1:*", *self._ranks, *self._rank_zero,
                ],
            )  # fmt: skip
            self.address = self.daemons["rank 0"].address("requests", start_timeout_s)
        except BaseException:
            self.stop()
            raise

    def start_worker(self, listen: str) -> None:
        """Start a worker, in the place of the earlier one if there was one."""
        self.daemons["worker"] = Daemon("worker", "worker", ["--listen", listen, *self._worker])

    def start_rank_one(self, listen: str) -> None:
        """Start a rank 1, in the place of the earlier one if there was one."""
        self.daemons["rank 1"] = Daemon(
            "rank 1", "spark_rank", ["--rank", "1", "--pair", listen, *self._ranks]
        )

    def failure(self) -> DaemonFailed | None:
        """Why one of the three has ended, if one has."""
        for daemon in self.daemons.values():
            if daemon.process.poll() is not None:
                return daemon.failure()
        return None

    def stop(self) -> dict[str, int]:
        """End all that run, rank 0 first; their exit codes."""
        order = ("rank 0", "worker", "rank 1")
        return {name: self.daemons[name].stop() for name in order if name in self.daemons}

    def __enter__(self) -> "Trio":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def all_clean(exit_codes: dict[str, int]) -> bool:
    """Whether every daemon ended in an orderly way."""
    return all(code == ExitCode.OK for code in exit_codes.values())
