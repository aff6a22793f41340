"""A listing as lines for a person, or as one JSON object a line for a script."""

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from pp1.inspect import zmtp
from pp1.inspect.body import Count
from pp1.inspect.connections import Seen
from pp1.inspect.message import Inspected
from pp1.inspect.rows import Field, Numbers, whole
from pp1.inspect.rules import Broken
from pp1.inspect.stream import Thing
from proto_v2 import limits
from proto_v2.errors import Code, one_line
from proto_v2.messages import KINDS, DecisionKind, Role
from proto_v2.representation import NAMES
from spark_rank.verify import Finish, LastToken

# Fields that hold packed token ids (specs/03, "Fields").
TOKENS: Final = frozenset({"prompt", "suffix", "tokens"})
_SHOWN: Final = 8
_BYTES_SHOWN: Final = 32
_CODES: Final = {int(code): code.name for code in Code}
_MEANINGS: Final[dict[str, dict[int, str]]] = {
    "role": {int(role): role.name.lower() for role in Role},
    "representation": {int(number): name for number, name in NAMES.items()},
    "last": {int(last): last.name.lower() for last in LastToken},
    "finish": {int(finish): finish.name.lower() for finish in Finish},
    "code": _CODES,
    "reason": _CODES,
    "status": _CODES,
}
_KIND_NAMES: Final = {number: kind.__name__ for number, kind in KINDS.items()}
_DECISIONS: Final = {int(kind): kind.name.lower() for kind in DecisionKind}
_CHECKSUMS: Final = frozenset({"checksum", "body_checksum", "link_epoch"})


def _last_name(field: Field) -> str:
    return field.name.rpartition(".")[2]


def _tokens(field: Field) -> list[int] | None:
    value = field.value
    if _last_name(field) not in TOKENS or not isinstance(value, bytes) or len(value) % 4:
        return None
    ids: list[int] = np.frombuffer(value, dtype="<i4").tolist()
    return ids


def _meaning(field: Field) -> str | None:
    """The registered name of a number, where it has one."""
    if not isinstance(field.value, int) or isinstance(field.value, Count):
        return None
    name = _last_name(field)
    if name == "kind":
        table = _KIND_NAMES if field.name in ("header.kind", "body.kind") else _DECISIONS
        return table.get(field.value)
    return _MEANINGS.get(name, {}).get(field.value)


def _plain(field: Field) -> Any:
    """The value as JSON has it: bytes in hex, token ids as a list, no NaN."""
    tokens = _tokens(field)
    if tokens is not None:
        return tokens
    value = field.value
    if isinstance(value, np.ndarray):
        return [_finite(number) for number in _numbers(value)]
    if isinstance(value, list):
        return _plain_list(value)
    return value.hex() if isinstance(value, bytes) else _finite(value)


def _numbers(values: Numbers) -> list[int | float]:
    return [whole(value) if isinstance(value, float) else value for value in values.tolist()]


def _plain_list(values: list[Any]) -> list[Any]:
    return [
        _plain_list(value)
        if isinstance(value, list)
        else value.hex()
        if isinstance(value, bytes)
        else _finite(value)
        for value in values
    ]


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(field: Field) -> str:
    """The value on one line, cut where it is long."""
    value, name = field.value, _last_name(field)
    tokens = _tokens(field)
    if tokens is not None:
        return _some(tokens, len(tokens))
    if isinstance(value, np.ndarray):
        return _some(_numbers(value[:_SHOWN]), len(value))
    if isinstance(value, bytes):
        if name == "magic":
            return repr(value)
        cut = value[:_BYTES_SHOWN].hex()
        return cut if len(value) <= _BYTES_SHOWN else f"{cut}... ({len(value)} bytes)"
    if isinstance(value, str):
        return json.dumps(one_line(value), ensure_ascii=False)
    if isinstance(value, list):
        return _some(_plain_list(value[:_SHOWN]), len(value))
    if isinstance(value, Count):
        return f"array of {value}"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if name in _CHECKSUMS and isinstance(value, int):
        return f"{value:016x}"
    if name == "mass":
        return f"{value} of {limits.MASS}"
    meaning = _meaning(field)
    return f"{value} {meaning}" if meaning else str(value)


def _some(values: list[Any], count: int) -> str:
    shown = ", ".join(str(value) for value in values[:_SHOWN])
    return f"[{shown}]" if count <= _SHOWN else f"[{shown}, ...] ({count})"


def _command_text(command: zmtp.Command) -> str:
    if command.name != "READY":
        return f"{one_line(command.name)} {command.data[:_BYTES_SHOWN].hex()}".rstrip()
    words = (
        f"{one_line(name)}={value.decode('ascii', errors='backslashreplace')!r}"
        for name, value in zmtp.properties(command.data)
    )
    return " ".join(["READY", *words])


class Listing:
    """Counts what it renders: ``messages``, and ``broken`` rules of PP1 or of the transport."""

    def __init__(self, *, as_json: bool, brief: bool) -> None:
        self.messages = 0
        self.broken = 0
        self._as_json = as_json
        self._brief = brief
        self._begin_ns: int | None = None

    def render(self, thing: Thing, seen: Seen | None = None) -> Iterator[str]:
        """The lines of one thing."""
        if isinstance(thing, Inspected):
            self.messages += 1
            self.broken += len(thing.broken)
        elif isinstance(thing, zmtp.Remark):
            self.broken += thing.fault
        if self._as_json:
            yield json.dumps(self._record(thing, seen), ensure_ascii=False)
        elif isinstance(thing, Inspected):
            yield self._heading(thing, seen)
            yield from self._fields(thing)
        else:
            yield self._heading(thing, seen)

    def summary(self, connections: int | None) -> str:
        """The last line."""
        if self._as_json:
            record = {"type": "summary", "messages": self.messages, "broken": self.broken}
            return json.dumps(
                record if connections is None else {**record, "connections": connections}
            )
        where = "" if connections is None else f"TCP connections: {connections}, "
        return f"{where}messages: {self.messages}, rules broken: {self.broken}"

    def _heading(self, thing: Thing, seen: Seen | None) -> str:
        where = ""
        if seen is not None:
            ends = [
                f"{end} ({role})" if role else str(end)
                for end, role in zip((seen.source, seen.destination), seen.roles, strict=True)
            ]
            where = f"{self._since(seen) / 1e9:+.6f} s  {ends[0]} -> {ends[1]}  "
        if isinstance(thing, Inspected):
            sizes = " + ".join(str(size) for size in thing.frames)
            kind = "" if thing.kind is None else f" ({thing.kind})"
            return f"{where}message {self.messages}: {thing.name}{kind}, {sizes} bytes"
        if isinstance(thing, zmtp.Greeting):
            version = ".".join(str(part) for part in thing.version)
            side = "server" if thing.as_server else "client"
            return f"{where}ZMTP {version} greeting: {one_line(thing.mechanism)}, as {side}"
        if isinstance(thing, zmtp.Command):
            return f"{where}ZMTP command: {_command_text(thing)}"
        return f"{where}at byte {thing.offset}: {'! ' if thing.fault else ''}{thing.text}"

    def _since(self, seen: Seen) -> int:
        if self._begin_ns is None:
            self._begin_ns = seen.time_ns
        return seen.time_ns - self._begin_ns

    def _fields(self, thing: Inspected) -> Iterator[str]:
        faults: dict[str, list[Broken]] = {}
        for fault in thing.broken:
            faults.setdefault(fault.field, []).append(fault)
        for field in thing.fields:
            found = faults.pop(field.name, [])
            if found or not self._brief:
                marks = "".join(f"  ! {fault}" for fault in found)
                yield f"{field.offset:8}  {field.name:<34} {_text(field)}{marks}"
        for name, found in faults.items():  # about what is not there
            for fault in found:
                yield f"{'-':>8}  {name:<34} ! {fault}"

    def _record(self, thing: Thing, seen: Seen | None) -> dict[str, Any]:
        record: dict[str, Any] = {"type": type(thing).__name__.lower(), "offset": thing.offset}
        if isinstance(thing, Inspected):
            record["type"] = "message"
        if seen is not None:
            record |= {
                "time_ns": seen.time_ns,
                "source": str(seen.source),
                "destination": str(seen.destination),
                "roles": seen.roles,
            }
        if isinstance(thing, zmtp.Greeting):
            return record | {
                "version": thing.version,
                "mechanism": thing.mechanism,
                "as_server": thing.as_server,
            }
        if isinstance(thing, zmtp.Command):
            return record | {"name": thing.name, "data": thing.data.hex()}
        if isinstance(thing, zmtp.Remark):
            return record | {"text": thing.text, "fault": thing.fault}
        record |= {"number": self.messages, "kind": thing.kind, "name": thing.name}
        record |= {"frames": thing.frames}
        if not self._brief:
            record["fields"] = [
                {"name": field.name, "offset": field.offset, "size": field.size}
                | {"value": _plain(field)}
                | ({"meaning": meaning} if (meaning := _meaning(field)) else {})
                for field in thing.fields
            ]
        record["broken"] = [
            {
                "rule": fault.rule,
                "code": int(fault.code),
                "name": fault.code.name,
                "field": fault.field,
                "wanted": fault.wanted,
                "got": fault.got,
            }
            for fault in thing.broken
        ]
        return record
