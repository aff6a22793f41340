"""The messages of the wire as the tables of 03-wire.md give them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TEXT: Final = (Path(__file__).parents[2] / "specs" / "03-wire.md").read_text()
_FIELD: Final = re.compile(r"`(\w+)` (.*?)(?=, `|$)")
_U64_MAX: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What a value may be. ``low`` and ``high`` bound an integer, or a length.

    ``kind`` is int, float64, bool, str, bin, array or record; ``item`` is the
    shape of an array's elements, ``record`` the name of a record.
    """

    kind: str
    low: int = 0
    high: int = 0
    item: "Shape | None" = None
    record: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message or record."""

    name: str
    shape: Shape


def _bounds(text: str) -> tuple[int, int]:
    low, _, high = text.partition("..")
    return int(low), int(high or low)


def _shape(text: str) -> Shape:
    if found := re.fullmatch(r"\[(\w+)\]", text):
        return Shape("record", record=found[1])
    if found := re.fullmatch(r"array (\S+) of (.*)", text):
        return Shape("array", *_bounds(found[1]), item=_shape(found[2]))
    if text == "u64":
        return Shape("int", 0, _U64_MAX)
    kind, _, bounds = text.partition(" ")
    assert kind in ("int", "float64", "bool", "str", "bin"), text
    return Shape(kind, *(_bounds(bounds) if bounds else (0, 0)))


def _fields(text: str) -> tuple[Field, ...]:
    return tuple(Field(name, _shape(shape)) for name, shape in _FIELD.findall(text))


def _table(name: str) -> str:
    return _TEXT.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]


# kind -> (name, fields)
MESSAGES: Final = {
    int(kind): (name, _fields(fields))
    for kind, name, fields in re.findall(
        r"^\| (\d+) \| (\w+) \| (.*) \|$", _table("messages"), re.MULTILINE
    )
}
RECORDS: Final = {
    name: _fields(fields)
    for name, fields in re.findall(r"^\| (\w+) \| (`.*) \|$", _table("parts"), re.MULTILINE)
}
KIND_OF: Final = {name: kind for kind, (name, _) in MESSAGES.items()}
LIMITS: Final = {
    name: float(value) if "." in value else int(value)
    for name, value in re.findall(r"^\| `(\w+)` \| ([\d.]+) \|$", _table("limits"), re.MULTILINE)
}
