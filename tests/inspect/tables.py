"""The tables of the Kaitai description and the Wireshark dissector, made from the code.

A region between ``# table: NAME`` and ``# end`` in ``specs/pp1_v2.ksy`` (``--`` in
``specs/pp1_v2.lua``) is what ``TABLES[NAME]()`` renders;
``python -m tests.inspect.tables`` writes it, a test compares.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from msgspec import inspect

from pp1.inspect.output import TOKENS
from proto_v2 import limits
from proto_v2.envelope import WIRE_VERSION
from proto_v2.errors import Code
from proto_v2.messages import KINDS, DecisionKind, Part, Role
from proto_v2.representation import NAMES
from spark_rank.verify import Finish, LastToken
from tests.support.spec_tables import SPECS

PATHS: Final = (SPECS / "pp1_v2.ksy", SPECS / "pp1_v2.lua")
_REGION: Final = re.compile(
    r"(^ *(?:#|--) table: ([a-z_]+)\n)(.*?)(^ *(?:#|--) end$)", re.DOTALL | re.MULTILINE
)
_STRUCTS: Final[list[type[msgspec.Struct]]] = [*KINDS.values(), *Part.__subclasses__()]


def snake(name: str) -> str:
    """``StepEntry`` as ``step_entry``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def fields_of(struct: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Name and type information of every field, in order."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return [(field.name, field.type) for field in info.fields]


def _enums() -> Iterable[tuple[str, dict[int, str]]]:
    yield "message_kind", {kind: snake(struct.__name__) for kind, struct in KINDS.items()}
    yield "role", {int(role): role.name.lower() for role in Role}
    yield "representation", {int(n): name.replace("-", "_") for n, name in NAMES.items()}
    yield "last_token", {int(last): last.name.lower() for last in LastToken}
    yield "finish", {int(finish): finish.name.lower() for finish in Finish}
    yield "decision_kind", {int(kind): kind.name.lower() for kind in DecisionKind}
    yield "code", {int(code): code.name.lower() for code in Code}


def _kaitai_type(info: Any) -> str:
    match info:
        case inspect.StructType(cls=cls):
            return snake(cls.__name__)
        case inspect.IntType():
            return "mp_int"
        case inspect.BytesType():
            return "mp_bin"
        case inspect.StrType():
            return "mp_str"
        case inspect.BoolType():
            return "mp_bool"
        case inspect.FloatType():
            return "mp_float"
        case inspect.VarTupleType(item_type=item):
            return f"{_kaitai_type(item)}_array"
    raise AssertionError(info)


def render_kaitai_cases() -> str:
    """The type of the fields of each kind."""
    return "".join(
        f"            {kind}: {snake(struct.__name__)}\n" for kind, struct in KINDS.items()
    )


def render_kaitai_types() -> str:
    """Every message and record, and arrays of what they hold."""
    lines: list[str] = []
    arrays: dict[str, str] = {}
    for struct in _STRUCTS:
        part = issubclass(struct, Part)
        seq = ["      - id: head\n        type: mp_array\n"] if part else []
        for name, info in fields_of(struct):
            kind = _kaitai_type(info)
            seq.append(f"      - id: {name}\n        type: {kind}\n")
            if isinstance(info, inspect.VarTupleType):
                arrays[kind] = _kaitai_type(info.item_type)
        head = f"  {snake(struct.__name__)}:\n"
        lines.append(head + ("    seq:\n" + "".join(seq) if seq else "    seq: []\n"))
    for name, item in sorted(arrays.items()):
        lines.append(
            f"  {name}:\n    seq:\n      - id: head\n        type: mp_array\n"
            f"      - id: items\n        type: {item}\n"
            "        repeat: expr\n        repeat-expr: head.count\n"
        )
    return "".join(lines)


def render_kaitai_enums() -> str:
    """The registered numbers."""
    return "".join(
        f"  {name}:\n" + "".join(f"    {number}: {word}\n" for number, word in values.items())
        for name, values in _enums()
    )


def _lua_type(name: str, info: Any) -> str:
    match info:
        case inspect.StructType(cls=cls):
            return cls.__name__
        case inspect.IntType(ge=low):
            return "int" if (low or 0) < 0 else "uint"
        case inspect.BytesType():
            return "tokens" if name in TOKENS else "bytes"
        case inspect.StrType():
            return "string"
        case inspect.BoolType():
            return "bool"
        case inspect.FloatType():
            return "double"
        case inspect.VarTupleType(item_type=item):
            return f"{_lua_type(name, item)}[]"
    raise AssertionError(info)


def render_lua_structs() -> str:
    """Fields of every message and record, by its name."""
    lines = ["local STRUCTS = {\n"]
    for struct in _STRUCTS:
        fields = "".join(
            f'    {{"{name}", "{_lua_type(name, info)}"}},\n' for name, info in fields_of(struct)
        )
        lines.append(f"  {struct.__name__} = {{\n{fields}  }},\n" if fields else
                     f"  {struct.__name__} = {{}},\n")  # fmt: skip
    return "".join(lines) + "}\n"


def render_lua_kinds() -> str:
    """Names of the kinds."""
    rows = "".join(f'  [{kind}] = "{struct.__name__}",\n' for kind, struct in KINDS.items())
    return "local KINDS = {\n" + rows + "}\n"


def render_lua_names() -> str:
    """Names of registered numbers."""
    tables = [
        f"local {name.upper()} = {{\n"
        + "".join(f'  [{number}] = "{word}",\n' for number, word in values.items())
        + "}\n"
        for name, values in _enums()
        if name != "message_kind"
    ]
    return "".join(tables)


def render_lua_limits() -> str:
    """Bounds that are checked before anything is read."""
    values = {
        "WIRE_VERSION": WIRE_VERSION,
        "HEADER_BYTES": limits.HEADER_BYTES,
        "BODY_BYTES_MAX": limits.BODY_BYTES_MAX,
        "PAYLOAD_BYTES_MAX": limits.PAYLOAD_BYTES_MAX,
        "FRAMES_MAX": limits.FRAMES_MAX,
    }
    return "".join(f"local {name} = {value}\n" for name, value in values.items())


def render_kaitai_bounds() -> str:
    """Lengths of the header, against their bounds."""
    return "".join(
        f"      - id: {name}\n        type: u4le\n        valid:\n          max: {most}\n"
        for name, most in (
            ("body_bytes", limits.BODY_BYTES_MAX),
            ("payload_bytes", limits.PAYLOAD_BYTES_MAX),
        )
    )


TABLES: Final[dict[str, Callable[[], str]]] = {
    name.removeprefix("render_"): function
    for name, function in list(globals().items())
    if name.startswith("render_")
}


def regions(text: str) -> list[tuple[str, str]]:
    """(name, content) of every generated region of a text."""
    return [(match.group(2), match.group(3)) for match in _REGION.finditer(text)]


def main() -> None:
    """Rewrite the tables in place."""
    for path in PATHS:
        text = path.read_text()
        path.write_text(_REGION.sub(lambda m: m.group(1) + TABLES[m.group(2)]() + m.group(4), text))
        print(path.name, [name for name, _ in regions(text)])


if __name__ == "__main__":
    main()
