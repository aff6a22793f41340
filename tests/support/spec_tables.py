"""The tables of the specification that are made from the code.

A region between ``<!-- table: NAME -->`` and ``<!-- end -->`` in ``specs/*.md``
is what ``TABLES[NAME]()`` renders; ``python -m tests.support.spec_tables``
writes it, a test compares.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from proto_v2 import limits, messages, validate
from proto_v2.errors import REGISTRY, Code
from proto_v2.negotiate import _BOUNDS, _IDENTITIES
from proto_v2.representation import NAMES
from proto_v2.rng import Domain
from proto_v2.slots import SlotState
from spark_rank.pair import Phase
from spark_rank.verify import Finish, LastToken

SPECS: Final = Path(__file__).parents[2] / "specs"
_REGION: Final = re.compile(r"(<!-- table: ([a-z_]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _rows(header: list[str], rows: list[list[object]]) -> str:
    lines = [header, ["---"] * len(header), *([str(cell) for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _type_name(kind: Any) -> str:
    if isinstance(kind, msgspec.inspect.StructType):
        return f"[{kind.cls.__name__}]"
    if isinstance(kind, msgspec.inspect.IntType):
        low, high = kind.ge, kind.le
        return "u64" if high is None else f"int {low}..{high}"
    if isinstance(kind, msgspec.inspect.BytesType):
        low, high = kind.min_length or 0, kind.max_length
        return f"bin {low}" if low == high else f"bin {low}..{high}"
    if isinstance(kind, msgspec.inspect.StrType):
        return f"str 0..{kind.max_length}"
    if isinstance(kind, msgspec.inspect.VarTupleType):
        low, high = kind.min_length or 0, kind.max_length
        count = f"{low}" if low == high else f"{low}..{high}"
        return f"array {count} of {_type_name(kind.item_type)}"
    if isinstance(kind, msgspec.inspect.BoolType):
        return "bool"
    assert isinstance(kind, msgspec.inspect.FloatType), kind
    return "float64"


def _fields(struct: type[msgspec.Struct]) -> str:
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    return ", ".join(f"`{field.name}` {_type_name(field.type)}" for field in info.fields)


def render_messages() -> str:
    """Every kind with its fields in order."""
    return _rows(
        ["kind", "message", "fields after the kind, in order"],
        [[kind, struct.__name__, _fields(struct)] for kind, struct in messages.KINDS.items()],
    )


def render_parts() -> str:
    """Every record inside a message."""
    parts = messages.Part.__subclasses__()
    return _rows(["record", "fields, in order"], [[part.__name__, _fields(part)] for part in parts])


def render_errors() -> str:
    """The error registry."""
    return _rows(
        ["code", "name", "scope", "disposition", "meaning"],
        [
            [int(code), code.name, entry.scope.name.lower(), entry.disposition.name.lower(),
             entry.text]
            for code, entry in sorted(REGISTRY.items())
        ],
    )  # fmt: skip


def _rule(number: int, rule: Callable[..., None]) -> list[object]:
    assert rule.__doc__ is not None
    source = re.search(rf"def {rule.__name__}\(.*?(?=\ndef |\nSTEP_|\nROW_|\n# ---)",
                       Path(validate.__file__).read_text(), re.DOTALL)  # fmt: skip
    assert source is not None
    codes = sorted({Code[name] for name in re.findall(r"Code\.([A-Z_]+)", source.group())})
    return [
        f"V{number:02d}", f"`{rule.__name__}`", " ".join(rule.__doc__.split()),
        ", ".join(f"{code.name} ({int(code)})" for code in codes),
        REGISTRY[codes[0]].disposition.name.lower(),
    ]  # fmt: skip


def render_rules() -> str:
    """The semantic rules in the order in which they are judged."""
    rules: list[Callable[..., None]] = [
        *validate.STEP_RULES,
        *validate.STEP_ENTRY_RULES,
        *validate.ROW_RULES,
    ]
    return _rows(
        ["rule", "function", "what holds", "code", "disposition"],
        [_rule(number, rule) for number, rule in enumerate(rules, 1)],
    )


def render_identities() -> str:
    """Identities of HELLO in the order in which they are compared."""
    return _rows(
        ["field", "code when unequal"],
        [[f"`{field}`", f"{code.name} ({int(code)})"] for field, code in _IDENTITIES],
    )


def render_bounds() -> str:
    """Bounds of HELLO with the least value that the protocol needs."""
    return _rows(["field", "at least"], [[f"`{field}`", floor] for field, floor in _BOUNDS])


def render_limits() -> str:
    """Every bound of the contract."""
    rows: list[list[object]] = [
        [f"`{name}`", value] for name, value in vars(limits).items() if name.isupper()
    ]
    return _rows(["bound", "value"], rows)


def render_enums() -> str:
    """The registered numbers of small enumerations."""
    enums: list[tuple[str, dict[int, str]]] = [
        ("role", {int(role): role.name.lower() for role in messages.Role}),
        ("representation", {int(number): name for number, name in NAMES.items()}),
        ("RNG domain", {int(domain): domain.name.lower() for domain in Domain}),
        ("last token", {int(last): last.name.lower() for last in LastToken}),
        ("finish", {int(finish): finish.name.lower() for finish in Finish}),
        ("decision kind", {int(kind): kind.name.lower() for kind in messages.DecisionKind}),
    ]
    return _rows(
        ["enumeration", "values"],
        [[name, ", ".join(f"{n} {word}" for n, word in values.items())] for name, values in enums],
    )


def render_states() -> str:
    """Names of the states that the text speaks of."""
    return _rows(
        ["machine", "states"],
        [
            ["slot", ", ".join(state.name for state in SlotState)],
            ["step on one rank", ", ".join(phase.name for phase in Phase)],
        ],
    )


TABLES: Final[dict[str, Callable[[], str]]] = {
    name.removeprefix("render_"): function
    for name, function in list(globals().items())
    if name.startswith("render_")
}


def regions(text: str) -> list[tuple[str, str]]:
    """(name, content) of every generated region of a text."""
    return [(match.group(2), match.group(3)) for match in _REGION.finditer(text)]


def rewrite(text: str) -> str:
    """The text with every region made anew."""
    return _REGION.sub(lambda m: m.group(1) + TABLES[m.group(2)]() + m.group(4), text)


def main() -> None:
    """Rewrite the tables in place."""
    for path in sorted(SPECS.glob("*.md")):
        text = path.read_text()
        path.write_text(rewrite(text))
        print(path.name, [name for name, _ in regions(text)])


if __name__ == "__main__":
    main()
