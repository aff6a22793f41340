"""What a file of test vectors is made of, and how it is written down.

A file has notes (what each flag means) and groups; a group names one operation
and what its tests share. ``File.text`` gives the same bytes for the same tests.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

VERSION: Final = "1.0.0"

# JSON readers that hold numbers as binary64 lose integers from here on.
_JSON_INTEGER_MAX: Final = (1 << 53) - 1
# Longer byte strings are written as runs.
_HEX_BYTES_MAX: Final = 512
_RUN_BYTES_MIN: Final = 64


@dataclass(frozen=True, slots=True)
class Note:
    """What a flag stands for: the sentences or rules behind it, and what a mistake costs."""

    description: str
    spec: tuple[str, ...]
    effect: str


@dataclass(frozen=True, slots=True)
class Limit:
    """The bound of ``proto_v2/limits.py`` that a test is next to, and on which side."""

    name: str
    offset: int


@dataclass(slots=True)
class Group:
    """Tests of one operation that share ``params``."""

    file: "File"
    operation: str
    params: dict[str, Any]
    tests: list[dict[str, Any]] = field(default_factory=list)

    def valid(
        self,
        comment: str,
        flags: Sequence[str],
        *,
        output: Mapping[str, Any] | None = None,
        limit: Limit | None = None,
        **given: Any,
    ) -> None:
        """A test that a receiver must take, and what it must get from it."""
        self._add(comment, flags, given, "valid", output, limit, {})

    def invalid(
        self,
        code: str,
        comment: str,
        flags: Sequence[str],
        *,
        field: str | None = None,
        only: str | None = None,
        output: Mapping[str, Any] | None = None,
        limit: Limit | None = None,
        **given: Any,
    ) -> None:
        """A test that a receiver must refuse with ``code``; ``only`` is the one rule that does."""
        more = {"code": code, "field": field, "only_rule": only}
        self._add(comment, flags, given, "invalid", output, limit, more)

    def _add(
        self,
        comment: str,
        flags: Sequence[str],
        given: Mapping[str, Any],
        result: str,
        output: Mapping[str, Any] | None,
        limit: Limit | None,
        more: Mapping[str, Any],
    ) -> None:
        written = {name: plain(value) for name, value in given.items()}
        key = json.dumps([self.operation, self.params, written], sort_keys=True)
        verdict = (result, more.get("code"))
        if key in self.file.seen:
            assert self.file.seen[key] == verdict, f"one input, two results: {comment}"
            return
        self.file.seen[key] = verdict
        assert set(flags) <= set(self.file.notes), f"{flags} without a note"
        test: dict[str, Any] = {
            "tc_id": len(self.file.seen),
            "comment": comment,
            "flags": list(flags),
            "input": written,
            "result": result,
        }
        test.update((name, value) for name, value in more.items() if value is not None)
        if output is not None:
            test["output"] = {name: plain(value) for name, value in output.items()}
        if limit is not None:
            test["limit"] = {"name": limit.name, "offset": limit.offset}
        self.tests.append(test)


@dataclass(slots=True)
class File:
    """One file of vectors."""

    name: str
    algorithm: str
    section: str
    notes: dict[str, Note]
    groups: list[Group] = field(default_factory=list)
    seen: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def group(self, operation: str, **params: Any) -> Group:
        """A new group; its params are written as they are given."""
        group = Group(self, operation, {name: plain(value) for name, value in params.items()})
        self.groups.append(group)
        return group

    def text(self) -> str:
        """The file, one test a line."""
        used = {flag for group in self.groups for test in group.tests for flag in test["flags"]}
        assert used == set(self.notes), f"{self.name}: unused {set(self.notes) - used}"
        head: dict[str, Any] = {
            "algorithm": self.algorithm,
            "section": self.section,
            "schema": "schema.json",
            "generator_version": VERSION,
            "number_of_tests": len(self.seen),
        }
        lines = ["{"]
        lines += [f" {_line(name)}: {_line(value)}," for name, value in head.items()]
        notes = [
            f"  {_line(flag)}: "
            + _line({"description": n.description, "spec": list(n.spec), "effect": n.effect})
            for flag, n in sorted(self.notes.items())
        ]
        lines += [' "notes": {', ",\n".join(notes), " },", ' "test_groups": [']
        groups = []
        for group in self.groups:
            tests = ",\n".join(f"    {_line(test)}" for test in group.tests)
            groups.append(
                f'  {{\n   "operation": {_line(group.operation)},\n'
                f'   "params": {_line(group.params)},\n   "tests": [\n{tests}\n   ]\n  }}'
            )
        lines += [",\n".join(groups), " ]", "}"]
        return "\n".join(lines) + "\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(", ", ": "))


def plain(value: Any) -> Any:
    """A value as JSON: large integers and bytes in hex, sequences and mappings within."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int):
        return value if abs(value) <= _JSON_INTEGER_MAX else f"{'-' * (value < 0)}0x{abs(value):x}"
    if isinstance(value, bytes):
        return value.hex() if len(value) <= _HEX_BYTES_MAX else _runs(value)
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    assert isinstance(value, list | tuple), f"no JSON for {type(value).__name__}"
    return [plain(inner) for inner in value]


def _runs(data: bytes) -> list[dict[str, Any]]:
    """Long bytes as pieces of hex, each standing there ``times`` times."""
    pieces: list[dict[str, Any]] = []
    literal, at = 0, 0
    while at < len(data):
        width, length = max(((w, _run(data, at, w)) for w in (1, 4, 8)), key=lambda run: run[1])
        if length < _RUN_BYTES_MIN:
            at += 1
            continue
        if literal < at:
            pieces.append({"hex": data[literal:at].hex(), "times": 1})
        pieces.append({"hex": data[at : at + width].hex(), "times": length // width})
        at = literal = at + length // width * width
    if literal < at:
        pieces.append({"hex": data[literal:].hex(), "times": 1})
    return pieces


def _run(data: bytes, at: int, width: int) -> int:
    """How many bytes from ``at`` on repeat their first ``width``, whole units only."""
    unit = data[at : at + width]
    if len(unit) < width or data[at + width : at + 2 * width] != unit:
        return 0
    low, high = 2, (len(data) - at) // width
    while low < high:
        middle = (low + high + 1) // 2
        if data[at : at + middle * width] == unit * middle:
            low = middle
        else:
            high = middle - 1
    return low * width
