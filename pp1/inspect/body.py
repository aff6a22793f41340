"""A MessagePack body as named items, each with its true place in the bytes.

The walk goes on as far as the bytes make sense, also where the codec refuses
them, so that a person sees the place. It judges nothing: what is wrong with a
body is what the codec says.
"""

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import inspect

Value: TypeAlias = int | float | str | bytes | bool | list["Value"] | None
Path: TypeAlias = tuple[int, ...]

# No message has as many items; bytes that claim more are shown up to here.
_ITEMS_MAX: Final = 4096
_DEPTH_MAX: Final = 8

_NUMBERS: Final = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
# Bytes of the length that follows the type byte.
_BIN: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_STR: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_ARRAY: Final = {0xDC: 2, 0xDD: 4}


class Count(int):
    """How many elements an array has that follow as items of their own."""


@dataclass(frozen=True, slots=True)
class Item:
    """One value, or the head of an array whose elements follow.

    ``path`` holds the index at each level of arrays, as in the codec's messages.
    """

    path: Path
    name: str
    offset: int
    size: int
    value: Value


@dataclass(frozen=True, slots=True)
class Walked:
    """The items in the order of the bytes, where they end, and why not at the end of the body."""

    items: list[Item]
    end: int
    reason: str | None


class _Stop(Exception):
    """The bytes make no sense from here on."""


def walk(body: bytes, kind: inspect.StructType | None) -> Walked:
    """Name every value of a body; ``kind`` is the type information of its message."""
    walker = _Walker(body)
    reason = None
    try:
        walker.record((), "", kind)
    except _Stop as stop:
        reason = str(stop)
    last = walker.items[-1] if walker.items else None
    return Walked(walker.items, last.offset + last.size if last else 0, reason)


class _Walker:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.place = 0
        self.items: list[Item] = []
        self._left = _ITEMS_MAX

    def record(self, path: Path, name: str, info: inspect.StructType | None) -> None:
        """An array whose elements have names."""
        names = [] if info is None else [(field.name, field.type) for field in info.fields]
        if info is not None and info.tag is not None:
            names.insert(0, ("kind", inspect.IntType()))
        start = self.place
        count = self._array()
        self._note(path, name, start, Count(count))
        for index in range(count):
            known = index < len(names)
            own = names[index][0] if known else f"[{index}]"
            joined = f"{name}.{own}" if name and known else f"{name}{own}"
            self._element((*path, index), joined, names[index][1] if known else None)

    def _element(self, path: Path, name: str, info: inspect.Type | None) -> None:
        start = self.place
        if isinstance(info, inspect.VarTupleType) and isinstance(
            info.item_type, inspect.StructType
        ):
            count = self._array()
            self._note(path, name, start, Count(count))
            for index in range(count):
                self.record((*path, index), f"{name}[{index}]", info.item_type)
            return
        value = self._value(0)
        self._note(path, name, start, value)

    def _note(self, path: Path, name: str, start: int, value: Value) -> None:
        self.items.append(Item(path, name, start, self.place - start, value))

    def _array(self) -> int:
        """Take the head of an array; how many elements it has."""
        first = self._peek()
        if 0x90 <= first <= 0x9F:
            self.place += 1
            return first & 0x0F
        if first in _ARRAY:
            return self._length(_ARRAY[first])
        raise _Stop(f"an array was expected, not type byte 0x{first:02x}")

    def _value(self, depth: int) -> Value:
        first = self._peek()
        if first <= 0x7F or first >= 0xE0:
            self.place += 1
            return first if first <= 0x7F else first - 0x100
        if first in (0xC0, 0xC2, 0xC3):
            self.place += 1
            return None if first == 0xC0 else first == 0xC3
        if first in _NUMBERS:
            layout = _NUMBERS[first]
            number: int | float = layout.unpack(self._take(1, layout.size))[0]
            return number
        if first in _BIN:
            return self._take(0, self._length(_BIN[first]))
        if 0xA0 <= first <= 0xBF or first in _STR:
            size = self._length(_STR[first]) if first in _STR else first & 0x1F
            return self._take(0 if first in _STR else 1, size).decode(errors="backslashreplace")
        if 0x90 <= first <= 0x9F or first in _ARRAY:
            if depth == _DEPTH_MAX:
                raise _Stop(f"more than {_DEPTH_MAX} arrays within each other")
            return [self._value(depth + 1) for _ in range(self._array())]
        raise _Stop(f"type byte 0x{first:02x} has no place in a body")

    def _peek(self) -> int:
        """The type byte of the next value."""
        self._left -= 1
        if self._left < 0:
            raise _Stop(f"more than {_ITEMS_MAX} values")
        if self.place >= len(self.body):
            raise _Stop("the body ends here")
        return self.body[self.place]

    def _length(self, width: int) -> int:
        """Take the type byte and the length after it."""
        return int.from_bytes(self._take(1, width))

    def _take(self, skip: int, size: int) -> bytes:
        """Take ``size`` bytes after ``skip`` that are known already."""
        start, end = self.place + skip, self.place + skip + size
        if end > len(self.body):
            raise _Stop(f"{end - len(self.body)} bytes are missing")
        self.place = end
        return self.body[start:end]
