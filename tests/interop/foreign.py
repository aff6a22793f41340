"""The worker in the other language, as a child process."""

import subprocess
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).with_name("worker.mjs")
_STOP_S: Final = 5.0


class ForeignWorker:
    """``node worker.mjs``, started, listening, and never left behind. A context manager."""

    def __init__(
        self, vocabulary_size: int, seed: int, *options: str, listen: str = "tcp://127.0.0.1:0"
    ) -> None:
        self.process = subprocess.Popen(
            ["node", str(SCRIPT), "--listen", listen,
             "--vocabulary-size", str(vocabulary_size), "--seed", str(seed), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            self.stop()
            raise AssertionError(f"the worker listens; it said {line!r}")
        self.address = line.split()[-1]

    def stop(self) -> int:
        """End it; its exit code."""
        self.process.terminate()
        return self._ended()

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        try:
            code = self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def __enter__(self) -> "ForeignWorker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
