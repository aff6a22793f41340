"""Directories of derived data: built once, checked on every load, shared by processes.

A build goes to a temporary directory and is renamed when whole, so that a
reader never sees half of one; a lock keeps several daemons that start at once
from building the same thing. Every file is checked against the XXH3 digest in
the manifest before it is used, and a directory that fails is rebuilt. (The
digests detect damage, not malice: the cache belongs to the user who runs the
daemons.)
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

from proto_v2.errors import Code, ProtocolError

Progress = Callable[[int, int], None]

_MANIFEST = "manifest.json"
_CHUNK = 1 << 22


def no_progress(done: int, total: int) -> None:
    """A ``Progress`` that shows nothing."""


def cache_root(explicit: Path | None = None) -> Path:
    """``explicit``, else ``$XDG_CACHE_HOME/pp1``, else ``~/.cache/pp1``."""
    if explicit is not None:
        return explicit
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "pp1"


def ensure(root: Path, key: str, build: Callable[[Path], None]) -> Path:
    """The whole, checked directory ``root/key``; ``build`` fills it when needed.

    ``key`` names every input of the build, its version included.

    Raises:
        ProtocolError: CONFIG_INVALID when the cache cannot be written.
    """
    final = root / key
    if is_whole(final):
        return final
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(root / f"{key}.lock"):
            if is_whole(final):  # another process built it while this one waited
                return final
            for stale in root.glob(f"{key}.*/"):  # left by a build that was killed
                shutil.rmtree(stale, ignore_errors=True)
            temporary = Path(tempfile.mkdtemp(prefix=f"{key}.", dir=root))
            try:
                build(temporary)
                _seal(temporary)
                shutil.rmtree(final, ignore_errors=True)
                temporary.rename(final)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise ProtocolError(
            Code.CONFIG_INVALID,
            "cache",
            f"a directory with room for the model at {root}; set XDG_CACHE_HOME to another",
            error,
        ) from error
    return final


def is_whole(directory: Path) -> bool:
    """Whether every file that the manifest names is there with its digest."""
    try:
        manifest = json.loads((directory / _MANIFEST).read_text("utf-8"))
        return bool(manifest) and all(
            _digest(directory / name) == digest for name, digest in manifest.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def _seal(directory: Path) -> None:
    names = sorted(path.name for path in directory.iterdir())
    for name in names:
        with (directory / name).open("rb") as stream:
            os.fsync(stream.fileno())
    manifest = {name: _digest(directory / name) for name in names}
    (directory / _MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")


def _digest(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
    return state.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # released by the system when the process ends
        yield
