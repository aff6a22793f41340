"""How a vector writes values down, read back. Standard library only."""

import json
from pathlib import Path
from typing import Any, Final

DIRECTORY: Final = Path(__file__).parents[2] / "specs" / "vectors"


def files() -> dict[str, dict[str, Any]]:
    """Every file of vectors by name."""
    return {
        path.stem: json.loads(path.read_text())
        for path in sorted(DIRECTORY.glob("*.json"))
        if path.stem != "schema"
    }


def integer(value: int | str) -> int:
    """An integer: a JSON number, or hexadecimal where JSON readers would round it."""
    return value if isinstance(value, int) else int(value, 16)


def unhex(value: str | list[dict[str, Any]]) -> bytes:
    """Bytes: hexadecimal, or pieces of it that stand there a number of times."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    return b"".join(bytes.fromhex(piece["hex"]) * piece["times"] for piece in value)
