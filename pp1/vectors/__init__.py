"""The test vectors of the specification, as installed (``specs/vectors`` in the source tree)."""

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any


def directory() -> Traversable:
    """Where the files are; ``README.md`` of ``specs/vectors`` says how to read them."""
    return files(__package__) / "data"


def names() -> list[str]:
    """The names of the files of vectors, without ``.json``."""
    found = (
        entry.name.removesuffix(".json")
        for entry in directory().iterdir()
        if entry.name.endswith(".json")
    )
    return sorted(name for name in found if name != "schema")


def load(name: str) -> dict[str, Any]:
    """One file of vectors, or ``schema``."""
    loaded: dict[str, Any] = json.loads((directory() / f"{name}.json").read_text())
    return loaded
