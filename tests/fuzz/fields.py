"""Messages as plain nested lists, and other values for the places in them."""

import math
from typing import Any, Final

Path = tuple[int, ...]

_NUMBERS: Final = (0, 1, -1, 127, 128, 255, 256, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31)
_WIDE: Final = ((1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 31))
_FLOATS: Final = (math.nan, math.inf, -math.inf, -0.0, 0.0, 5e-324, 0.01, 100.0, 1e308, 0.5)


def places(value: Any, path: Path = ()) -> list[Path]:
    """Every place of a nested list: its lists, and what stands in them."""
    found = [path] if path else []
    if isinstance(value, list):
        for index, item in enumerate(value):
            found += places(item, (*path, index))
    return found


def at(value: Any, path: Path) -> Any:
    """What stands at a place."""
    for index in path:
        value = value[index]
    return value


def put(value: Any, path: Path, new: Any) -> Any:
    """A copy with another value at one place."""
    if not path:
        return new
    copy = list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


def other(value: Any, choice: int, blob: bytes = b"") -> Any:
    """Another value of about the same type; ``choice`` says which."""
    if isinstance(value, bool):
        return (not value, 0, 1)[choice % 3]
    if isinstance(value, int):
        near = (value + 1, value - 1, value ^ (1 << (choice % 64)))
        table = (*near, *_NUMBERS, *_WIDE)
        number = table[choice % len(table)]
        return number if -(1 << 63) <= number < 1 << 64 else 0
    if isinstance(value, float):
        return (*_FLOATS, int(value) if abs(value) < 1e15 else 0)[choice % 11]
    if isinstance(value, bytes):
        table_of_bytes = (
            b"",
            bytes(len(value)),
            value[:-1],
            value + b"\0",
            value[4:],
            value + value[:4],
            bytes([*value[:-1], value[-1] ^ 1]) if value else b"\1",
            blob,
        )
        return table_of_bytes[choice % len(table_of_bytes)]
    if isinstance(value, str):
        return ("", value + "x", "é" * 401, "a\nb", value[:-1], blob.hex(), 0)[choice % 7]
    if isinstance(value, list):
        return ([], value * 2, value[:-1], value[::-1], value + value[-1:], None)[choice % 6]
    return choice
