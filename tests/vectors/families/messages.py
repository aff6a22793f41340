"""Bodies: every kind, every field at its bounds, every other encoding, every wrong shape."""

import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from .. import pack
from ..layout import KIND_OF, LIMITS, MESSAGES, RECORDS, Field, Shape
from ..pack import Raw
from ..suite import File, Group, Limit, Note

NOTES: Final = {
    "Typical": Note(
        "a whole message with another value in every field",
        ("03-W-6",),
        "fields are read in another order",
    ),
    "Bound": Note(
        "a value at a bound of its field, or just inside",
        ("03-W-6", "08-E-1"),
        "a peer that keeps to the bound is refused",
    ),
    "BeyondBound": Note(
        "a value outside the range of its field",
        ("03-W-6", "08-E-1", "07-T-6"),
        "an integer that does not fit its place is cut, or memory is had for a "
        "list that nobody may send",
    ),
    "Width": Note(
        "a value at the end of one MessagePack width",
        ("03-W-6",),
        "the encoding chosen for it is not the shortest",
    ),
    "LongerForm": Note(
        "the right value in a longer MessagePack form",
        ("03-W-6",),
        "one value has two encodings, so that digests over bodies differ between peers",
    ),
    "WrongType": Note(
        "a value of another type", ("03-W-6",), "a placeholder or a cast is taken for a value"
    ),
    "IntegerForFloat": Note(
        "an integer where a float64 belongs: the same number in another encoding",
        ("03-W-6",),
        "one value has two encodings",
    ),
    "ElementCount": Note(
        "an element too few or too many",
        ("03-W-6", "08-E-2"),
        "optional fields grow, and no two peers agree which",
    ),
    "Trailing": Note(
        "bytes after the array",
        ("03-W-6",),
        "bytes that no check has seen travel under a valid checksum",
    ),
    "Truncated": Note("the body ends within a value", ("03-W-6", "04-V-1"), "reads beyond a frame"),
    "ForgedLength": Note(
        "a MessagePack length far beyond the body",
        ("03-W-3", "07-T-6"),
        "memory is had for what is claimed",
    ),
    "NotAnArray": Note(
        "a body that is no array, or an empty one",
        ("03-W-6",),
        "another failure than a code of the registry",
    ),
    "Nesting": Note(
        "arrays within arrays, deeper than any message", ("04-V-1", "07-T-5"), "the stack overflows"
    ),
    "Utf8": Note(
        "a text that is not UTF-8",
        ("03-W-6", "04-V-1"),
        "another failure than a code of the registry, or two readings of one text",
    ),
    "KindMismatch": Note(
        "header and body name different registered kinds",
        ("03-W-7",),
        "a message is counted, allowed or refused as another one",
    ),
    "KindUnknown": Note(
        "a kind that is not registered", ("03-W-6",), "another failure than a code of the registry"
    ),
    "Payload": Note(
        "a payload and the kind that it may come with",
        ("03-W-1",),
        "bytes that no check covers are kept, or a missing q is not noticed",
    ),
    "NaN": Note(
        "a float64 that is not a number: the codec takes it, the rules refuse it",
        ("03-W-6", "04-V-1"),
        "a codec refuses with another code than its peers",
    ),
}

_U64_MAX: Final = (1 << 64) - 1
_I64_MIN: Final = -(1 << 63)
# Which bound of the table of limits a field's own bound is, where it is one.
_LIMIT_OF: Final = {
    ("bin", 16): "DIGEST_BYTES",
    ("bin", 32): "VOCABULARY_HASH_BYTES",
    ("bin", 8): "KEY_BYTES",
    ("str", 200): "IDENTITY_CHARS_MAX",
    ("str", 400): "TEXT_CHARS_MAX",
    ("int", (1 << 31) - 1): "POSITION_MAX",
    ("int", (1 << 63) - 1): "GENERATION_MAX",
    ("array", 4): "REQUESTS_MAX",
    ("array", 5): "DEPTH_MAX",
    ("array", 64): "STOP_TOKENS_MAX",
}
_LIMIT_OF_NAME: Final = {
    "session_id": "ID_BYTES",
    "nonce": "ID_BYTES",
    "session_seed": "SEED_BYTES",
    "seed": "SEED_BYTES",
    "round": "ROUND_MAX",
}


def _limit(field: Field, offset: int) -> Limit | None:
    if field.shape.kind == "int" and field.name in ("token", "last"):
        return None
    name = _LIMIT_OF_NAME.get(field.name) or _LIMIT_OF.get((field.shape.kind, field.shape.high))
    return Limit(name, offset) if name else None


# --- values --------------------------------------------------------------------------------


def typical(shape: Shape, salt: int) -> Any:
    """A value within its bounds that differs with ``salt``."""
    if shape.kind == "int":
        return max(shape.low, min(shape.high, 17 + salt))
    if shape.kind == "float64":
        return 0.5 + salt
    if shape.kind == "bool":
        return salt % 2 == 0
    if shape.kind == "str":
        return f"name-{salt}"
    if shape.kind == "bin":
        size = shape.high if shape.low == shape.high else min(shape.high, 16 if salt % 2 else 8)
        return bytes((salt * 16 + place) % 256 for place in range(size))
    if shape.kind == "record":
        return [
            typical(field.shape, salt + place) for place, field in enumerate(RECORDS[shape.record])
        ]
    assert shape.item is not None
    return [typical(shape.item, salt + place) for place in range(max(shape.low, 1))]


def least(shape: Shape) -> Any:
    """The smallest value of a shape."""
    if shape.kind in ("int", "float64", "bool"):
        return {"int": shape.low, "float64": 0.0, "bool": False}[shape.kind]
    if shape.kind == "str":
        return ""
    if shape.kind == "bin":
        return bytes(shape.low)
    if shape.kind == "record":
        return [least(field.shape) for field in RECORDS[shape.record]]
    assert shape.item is not None
    return [least(shape.item) for _ in range(shape.low)]


def most(shape: Shape) -> Any:
    """The largest value of a shape, records as many as there may be."""
    if shape.kind in ("int", "float64", "bool"):
        return {"int": shape.high, "float64": float("inf"), "bool": True}[shape.kind]
    if shape.kind == "str":
        return "z" * shape.high
    if shape.kind == "bin":
        return b"\xff" * shape.high
    if shape.kind == "record":
        return [most(field.shape) for field in RECORDS[shape.record]]
    assert shape.item is not None
    return [most(shape.item) for _ in range(shape.high)]


def shown(shape: Shape, value: Any) -> Any:
    """A value as the output of a test: bytes and floats by name, records by field."""
    if shape.kind == "bin":
        return {"bin": value}
    if shape.kind == "float64":
        return {"f64": struct.pack(">d", value).hex()}
    if shape.kind == "record":
        return {
            field.name: shown(field.shape, inner)
            for field, inner in zip(RECORDS[shape.record], value, strict=True)
        }
    if shape.kind == "array":
        assert shape.item is not None
        return [shown(shape.item, inner) for inner in value]
    return value


def _take(
    group: Group,
    kind: int,
    values: list[Any],
    comment: str,
    flags: list[str],
    limit: Limit | None = None,
) -> None:
    name, fields = MESSAGES[kind]
    group.valid(
        comment,
        flags,
        limit=limit,
        body=pack.packed([kind, *values]),
        output={
            "message": name,
            "fields": {
                field.name: shown(field.shape, value)
                for field, value in zip(fields, values, strict=True)
            },
        },
    )


# --- places --------------------------------------------------------------------------------

Place = tuple[tuple[int, ...], Field]


def _places(fields: tuple[Field, ...], at: tuple[int, ...] = ()) -> Iterator[Place]:
    """Every field of a message, and of the first record in each of its lists."""
    for number, field in enumerate(fields):
        yield (*at, number), field
        if field.shape.kind == "array":
            assert field.shape.item is not None
            item = field.shape.item
            if item.kind == "record":
                yield from _places(RECORDS[item.record], (*at, number, 0))
            else:
                yield (*at, number, 0), Field(field.name, item)


def _put(values: list[Any], at: tuple[int, ...], value: Any) -> list[Any]:
    """The values with another one at a place."""
    if len(at) == 1:
        return [*values[: at[0]], value, *values[at[0] + 1 :]]
    return _put(values, at[:1], _put(values[at[0]], at[1:], value))


def _path(fields: tuple[Field, ...], at: tuple[int, ...]) -> str:
    field = fields[at[0]]
    if len(at) == 1:
        return field.name
    assert field.shape.item is not None
    inner = f"{field.name}[{at[1]}]"
    return inner if len(at) == 2 else f"{inner}.{_path(RECORDS[field.shape.item.record], at[2:])}"


def _at_bounds(shape: Shape) -> Iterator[tuple[Any, str, int | None]]:
    """Values inside: what they are, and their distance from the upper bound."""
    if shape.kind == "int":
        yield shape.low, f"{shape.low}, the least", None
        yield shape.high - 1, f"{shape.high - 1}", -1
        yield shape.high, f"{shape.high}, the most", 0
    elif shape.kind == "float64":
        for value, what in (
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (5e-324, "the least subnormal"),
            (1.7976931348623157e308, "the largest finite"),
            (float("inf"), "infinity"),
            (float("-inf"), "-infinity"),
        ):
            yield value, what, None
    elif shape.kind == "bool":
        yield True, "true", None
        yield False, "false", None
    elif shape.kind == "str":
        yield "", "no characters", None
        yield "y" * (shape.high - 1), f"{shape.high - 1} characters", -1
        yield "y" * shape.high, f"{shape.high} characters, the most", 0
    elif shape.kind == "bin":
        if shape.low < shape.high:
            yield bytes(shape.low), f"{shape.low} bytes", None
            yield b"\xa5" * (shape.high - 1), f"{shape.high - 1} bytes", -1
        yield b"\xa5" * shape.high, f"{shape.high} bytes", 0
    elif shape.kind == "array":
        assert shape.item is not None
        if shape.low < shape.high:
            yield [], "no elements", None
        for offset in (-1, 0):
            size = shape.high + offset
            if shape.low <= size:
                elements = [typical(shape.item, place) for place in range(size)]
                yield elements, f"{size} elements", offset


def _beyond_bounds(shape: Shape) -> Iterator[tuple[Any, str, int | None]]:
    """Values outside, as ``_at_bounds``."""
    if shape.kind == "int":
        if shape.high < _U64_MAX:
            yield shape.high + 1, f"{shape.high + 1}, one above", 1
            yield 1 << 63, f"{1 << 63}", 1 if shape.high + 1 == 1 << 63 else None
            yield _U64_MAX, f"{_U64_MAX}", None
        yield shape.low - 1, f"{shape.low - 1}, one below", None
        yield _I64_MIN, f"{_I64_MIN}", None
    elif shape.kind == "str":
        yield "y" * (shape.high + 1), f"{shape.high + 1} characters", 1
    elif shape.kind == "bin":
        if shape.low == shape.high:
            yield b"", "no bytes", None
            yield b"\xa5" * (shape.low - 1), f"{shape.low - 1} bytes", -1
        yield b"\xa5" * (shape.high + 1), f"{shape.high + 1} bytes", 1
    elif shape.kind == "array":
        assert shape.item is not None
        for size, offset in (
            (shape.high + 1, 1),
            *(((shape.low - 1, -1), (0, None)) if shape.low else ()),
        ):
            yield [typical(shape.item, place) for place in range(size)], f"{size} elements", offset


_OTHER_TYPE: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "int": (("nil", None), ("a text of digits", "7"), ("a float", 7.0), ("true", True)),
    "float64": (("nil", None), ("a text", "1.0"), ("true", True)),
    "bool": (("nil", None), ("the integer 1", 1), ("a text", "true")),
    "str": (("nil", None), ("bytes", b"name"), ("an integer", 7)),
    "bin": (("nil", None), ("a text", "0123456789abcdef"), ("an array of integers", [1, 2])),
    "array": (("nil", None), ("a map", Raw(b"\x80")), ("bytes", b""), ("an integer", 1)),
    "record": (("nil", None), ("a map", Raw(b"\x80")), ("an integer", 1)),
}
# Everything else that MessagePack has, for one place of each type.
_EVERY_TYPE: Final[tuple[tuple[str, Any], ...]] = (
    ("nil", None),
    ("true", True),
    ("false", False),
    ("an integer", 7),
    ("a negative integer", -7),
    ("a float", 1.5),
    ("a float32", Raw(b"\xca" + struct.pack(">f", 1.5))),
    ("a text", "text"),
    ("bytes", b"bytes"),
    ("an array", []),
    ("a map", Raw(b"\x80")),
    ("a map of one", Raw(b"\x81\x01\x02")),
    ("an extension", Raw(b"\xd4\x05\x01")),
    ("a timestamp", Raw(b"\xd6\xff\x00\x00\x00\x01")),
    ("an extension of 16", Raw(b"\xd8\x05" + bytes(16))),
    ("the byte that MessagePack never uses", Raw(b"\xc1")),
)


def _same_kind(kind: str, value: Any) -> bool:
    if isinstance(value, Raw):
        return kind == "float64" and value.data[0] == 0xCA
    types = {
        "int": int,
        "float64": float,
        "bool": bool,
        "str": str,
        "bin": bytes,
        "array": list,
        "record": list,
    }
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, types[kind]) or (kind == "float64" and isinstance(value, int))


def make() -> File:
    """The file."""
    file = File("messages", "PP1 message bodies", "03 Wire: Body", NOTES)
    covered: set[str] = set()
    for kind, (name, fields) in MESSAGES.items():
        group = file.group("decode_body", kind=kind, message=name)
        base = [typical(field.shape, place) for place, field in enumerate(fields)]
        _take(group, kind, base, "a typical message", ["Typical"])
        _take(
            group, kind, [least(field.shape) for field in fields], "the smallest values", ["Bound"]
        )
        _take(group, kind, [most(field.shape) for field in fields], "the largest values", ["Bound"])
        for at, field in _places(fields):
            _one_field(group, kind, base, at, field, covered)
        _structure(group, kind, base)
    _value_kinds(file)
    _tokens(file)
    _text(file)
    _kinds(file)
    _frames(file)
    return file


def _one_field(
    group: Group, kind: int, base: list[Any], at: tuple[int, ...], field: Field, covered: set[str]
) -> None:
    path, shape = _path(MESSAGES[kind][1], at), field.shape

    def refuse(
        code: str, value: Any, what: str, flags: list[str], limit: Limit | None = None
    ) -> None:
        group.invalid(
            code,
            f"{path} is {what}",
            flags,
            limit=limit,
            body=pack.packed([kind, *_put(base, at, value)]),
        )

    if len(at) == 2:  # an element of a plain list: its types and bounds, not those of the list
        shape = replace(shape)
    for value, what, offset in _at_bounds(shape):
        _take(
            group,
            kind,
            _put(base, at, value),
            f"{path} is {what}",
            ["Bound"],
            None if offset is None else _limit(field, offset),
        )
    for value, what, offset in _beyond_bounds(shape):
        refuse(
            "MALFORMED",
            value,
            what,
            ["BeyondBound"],
            None if offset is None else _limit(field, offset),
        )
    for what, value in _OTHER_TYPE[shape.kind][: 4 if shape.kind not in covered else 2]:
        refuse("MALFORMED", value, what, ["WrongType"])
    covered.add(shape.kind)
    value = base
    for number in at:
        value = value[number]
    for form in pack.longer_forms(value)[:1]:
        refuse("NOT_CANONICAL", Raw(form), f"in a longer form, {form[:1].hex()}", ["LongerForm"])
    if shape.kind == "float64":
        refuse("NOT_CANONICAL", 1, "the integer 1", ["IntegerForFloat", "LongerForm"])
    if shape.kind == "record" or (
        shape.kind == "array" and shape.item is not None and shape.item.kind == "record"
    ):
        one = value[0]
        refuse(
            "MALFORMED",
            [one[:-1], *value[1:]],
            "a list whose record lacks its last element",
            ["ElementCount"],
        )
        refuse(
            "MALFORMED",
            [one[1:], *value[1:]],
            "a list whose record lacks its first element",
            ["ElementCount"],
        )
        refuse(
            "MALFORMED",
            [[*one, None], *value[1:]],
            "a list whose record has one more element",
            ["ElementCount"],
        )
        for what, other in _OTHER_TYPE["record"]:
            refuse(
                "MALFORMED", [other, *value[1:]], f"a list that begins with {what}", ["WrongType"]
            )
        longer = pack.longer_forms(one)[0]
        refuse(
            "NOT_CANONICAL",
            [Raw(longer), *value[1:]],
            "a list whose record has a longer header",
            ["LongerForm"],
        )


def _structure(group: Group, kind: int, base: list[Any]) -> None:
    whole = [kind, *base]
    body = pack.packed(whole)

    def refuse(code: str, what: str, flags: list[str], data: bytes) -> None:
        group.invalid(code, what, flags, body=data)

    items = [pack.packed(item) for item in whole]
    if base:
        refuse(
            "MALFORMED", "the last element is missing", ["ElementCount"], pack.packed(whole[:-1])
        )
        refuse(
            "MALFORMED",
            "the header counts one element more than there is",
            ["Truncated"],
            pack.array_heads(len(whole) + 1)[0] + b"".join(items),
        )
        refuse(
            "MALFORMED",
            "the header counts one element less than there are",
            ["ElementCount", "Trailing"],
            pack.array_heads(len(whole) - 1)[0] + b"".join(items),
        )
    for extra, what in ((None, "nil"), (0, "zero"), ([], "an empty array")):
        refuse(
            "MALFORMED", f"one more element, {what}", ["ElementCount"], pack.packed([*whole, extra])
        )
    for head in pack.array_heads(len(whole))[1:]:
        refuse(
            "NOT_CANONICAL",
            f"the array in a longer form, {head[:1].hex()}",
            ["LongerForm"],
            head + b"".join(items),
        )
    for form in pack.longer_forms(kind):
        refuse(
            "NOT_CANONICAL",
            f"the kind in a longer form, {form[:1].hex()}",
            ["LongerForm"],
            pack.packed([Raw(form), *base]),
        )
    for other, what in (
        (None, "nil"),
        (str(kind), "a text"),
        (float(kind), "a float"),
        (True, "true"),
    ):
        refuse("MALFORMED", f"the kind is {what}", ["WrongType"], pack.packed([other, *base]))
    refuse(
        "MALFORMED", "the fields without the kind", ["ElementCount"], pack.packed(base or [None])
    )
    for tail, what in ((b"\0", "a zero"), (b"\xc0", "nil"), (body, "the same body again")):
        refuse("MALFORMED", f"{what} after the array", ["Trailing"], body + tail)
    for cut in sorted({1, len(body) // 2, len(body) - 1}):
        if cut < len(body):
            refuse("MALFORMED", f"the first {cut} of {len(body)} bytes", ["Truncated"], body[:cut])
    refuse("MALFORMED", "no bytes", ["NotAnArray", "Truncated"], b"")
    refuse("MALFORMED", "an empty array", ["NotAnArray"], b"\x90")
    refuse("MALFORMED", "the kind alone, without an array", ["NotAnArray"], pack.packed(kind))
    refuse(
        "MALFORMED", "a map from the kind", ["NotAnArray"], b"\x81" + pack.packed(kind) + b"\xc0"
    )
    refuse("MALFORMED", "the body as bytes", ["NotAnArray"], pack.packed(body))
    refuse(
        "MALFORMED",
        "2^32 - 1 elements announced",
        ["ForgedLength"],
        b"\xdd\xff\xff\xff\xff" + b"".join(items),
    )
    if base:
        refuse(
            "MALFORMED",
            "a thousand arrays instead of the first field",
            ["Nesting"],
            pack.array_heads(len(whole))[0] + items[0] + b"\x91" * 1000,
        )
    other = {1: 2, 4: 5, 5: 4, 21: 22, 22: 21, 23: 24, 24: 23}.get(kind, 4)
    group.invalid(
        "KIND_MISMATCH",
        f"the body of {MESSAGES[other][0]}",
        ["KindMismatch"],
        body=pack.packed(
            [
                other,
                *(typical(field.shape, place) for place, field in enumerate(MESSAGES[other][1])),
            ]
        ),
    )


def _value_kinds(file: File) -> None:
    """One place of each type: every other type, every longer form, every forged length."""
    places = (
        ("Ping", 0),
        ("Generate", 3),
        ("Decide", 1),
        ("Refuse", 1),
        ("Applied", 1),
        ("Generate", 6),
    )
    for name, number in places:
        kind = KIND_OF[name]
        fields = MESSAGES[kind][1]
        base = [typical(field.shape, place) for place, field in enumerate(fields)]
        shape = fields[number].shape
        at: tuple[int, ...] = (number,)
        if name == "Decide":
            assert shape.item is not None
            shape, at = shape.item, (number, 0)
        group = file.group("decode_body", kind=kind, message=name)
        path = _path(fields, at)
        for what, value in _EVERY_TYPE:
            if not _same_kind(shape.kind, value):
                group.invalid(
                    "MALFORMED",
                    f"{path} is {what}",
                    ["WrongType"],
                    body=pack.packed([kind, *_put(base, at, value)]),
                )
        values: dict[str, list[Any]] = {
            "int": [0, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 63) - 1],
            "float64": [0.0, 1.0, -2.5, float("inf")],
            "str": ["", "a", "a" * 31, "a" * 32, "a" * 255, "a" * 256],
            "bin": [bytes(16)],
            "array": [[], [1] * 15, [1] * 16],
        }
        for value in values.get(shape.kind, []):
            size = "" if isinstance(value, int | float) else f" of {len(value)}"
            for form in pack.longer_forms(value):
                what = f"{value if not size else shape.kind}{size} as {form[:1].hex()}"
                group.invalid(
                    "NOT_CANONICAL",
                    f"{path} is {what}",
                    ["LongerForm"],
                    body=pack.packed([kind, *_put(base, at, Raw(form))]),
                )
        heads = {
            "str": ((0xD9, "B"), (0xDA, "H"), (0xDB, "I")),
            "bin": ((0xC4, "B"), (0xC5, "H"), (0xC6, "I")),
            "array": ((0xDC, "H"), (0xDD, "I")),
        }
        for tag, code in heads.get(shape.kind, ()):
            for claimed in (
                (1 << 8 * struct.calcsize(code)) - 1,
                1 << 8 * struct.calcsize(code) - 1,
            ):
                head = struct.pack(f">B{code}", tag, claimed)
                group.invalid(
                    "MALFORMED",
                    f"{path} announces {claimed} with {tag:02x}",
                    ["ForgedLength"],
                    body=pack.packed([kind, *_put(base, at, Raw(head))]),
                )
    kind = KIND_OF["Ping"]
    group = file.group("decode_body", kind=kind, message="Ping")
    for power in (7, 8, 16, 31, 32, 53, 63):
        for value in ((1 << power) - 1, 1 << power, (1 << power) + 1):
            _take(group, kind, [value], f"token {value}", ["Width"])
    for depth in (2, 511, 512, 513, 100_000):
        group.invalid(
            "MALFORMED", f"{depth} arrays within each other", ["Nesting"], body=b"\x91" * depth
        )
    kind = KIND_OF["Generate"]
    group = file.group("decode_body", kind=kind, message="Generate")
    fields = MESSAGES[kind][1]
    base = [typical(field.shape, place) for place, field in enumerate(fields)]
    quiet = struct.unpack(">d", bytes.fromhex("7ff8000000000000"))[0]
    _take(group, kind, _put(base, (3,), quiet), "temperature is a quiet NaN", ["NaN"])
    kind = KIND_OF["Rows"]
    group = file.group("decode_body", kind=kind, message="Rows")
    row = typical(MESSAGES[kind][1][1].shape, 0)[0]
    for value in (
        0,
        1,
        -1,
        -32,
        -33,
        -128,
        -129,
        -32768,
        -32769,
        127,
        128,
        32767,
        32768,
        65536,
        -(1 << 31),
        (1 << 31) - 1,
    ):
        _take(group, kind, [1, [[*row[:2], value, *row[3:]]]], f"token {value}", ["Width"])
        for form in pack.longer_forms(value):
            group.invalid(
                "NOT_CANONICAL",
                f"token {value} as {form[:1].hex()}",
                ["LongerForm"],
                body=pack.packed([kind, 1, [[*row[:2], Raw(form), *row[3:]]]]),
            )


def _tokens(file: File) -> None:
    """Packed token lists at the longest prefix, by whole tokens."""
    longest = int(LIMITS["PREFIX_TOKENS_MAX"])
    for name, number in (("Reset", 8), ("Open", 5), ("Generate", 1)):
        kind = KIND_OF[name]
        fields = MESSAGES[kind][1]
        base = [typical(field.shape, place) for place, field in enumerate(fields)]
        group = file.group("decode_body", kind=kind, message=name)
        for offset in (-1, 0, 1):
            values = _put(base, (number,), pack.tokens([7]) * (longest + offset))
            comment = f"{fields[number].name} of {longest + offset} tokens"
            limit = Limit("PREFIX_TOKENS_MAX", offset)
            if offset <= 0:
                _take(group, kind, values, comment, ["Bound"], limit)
            else:
                group.invalid(
                    "MALFORMED",
                    comment,
                    ["BeyondBound"],
                    limit=limit,
                    body=pack.packed([kind, *values]),
                )


def _text(file: File) -> None:
    """Texts count characters, whatever they weigh; and what is not UTF-8."""
    for name, number, longest in (("Refuse", 1, 400), ("Hello", 4, 200)):
        kind = KIND_OF[name]
        fields = MESSAGES[kind][1]
        base = [typical(field.shape, place) for place, field in enumerate(fields)]
        path = fields[number].name
        group = file.group("decode_body", kind=kind, message=name)
        for char in ("\u00e9", "\u20ac", "\U0001f600"):
            _take(
                group,
                kind,
                _put(base, (number,), char * longest),
                f"{path} is U+{ord(char):04X} {longest} times",
                ["Bound"],
            )
            over = _put(base, (number,), char * (longest + 1))
            group.invalid(
                "MALFORMED",
                f"{path} is U+{ord(char):04X} {longest + 1} times",
                ["BeyondBound"],
                body=pack.packed([kind, *over]),
            )
        for char in ("\0", "\n", "\x7f", "\ufeff", "\uffff", "\U0010ffff"):
            _take(
                group,
                kind,
                _put(base, (number,), char),
                f"{path} is U+{ord(char):04X}",
                ["Typical"],
            )
        for data, what in (
            (b"\x80", "a continuation byte alone"),
            (b"\xc3", "a cut sequence"),
            (b"\xc0\x80", "an overlong zero"),
            (b"\xe0\x80\xaf", "an overlong slash"),
            (b"\xed\xa0\x80", "a surrogate"),
            (b"\xf4\x90\x80\x80", "beyond U+10FFFF"),
            (b"\xff", "the byte ff"),
            (b"a\xf0\x9f\x98", "a cut sequence after a letter"),
        ):
            bad = _put(base, (number,), Raw(pack.text_heads(len(data))[0] + data))
            group.invalid(
                "MALFORMED", f"{path} is {what}", ["Utf8"], body=pack.packed([kind, *bad])
            )


def _kinds(file: File) -> None:
    unknown = (0, 7, 9, 17, 19, 29, 39, 47, 127, 128, 255)
    for kind in unknown:
        group = file.group("decode_body", kind=kind, message="")
        for data, what in (
            (pack.packed([kind, 5]), "with a body of that kind"),
            (pack.packed([4, 5]), "with a body of Ping"),
            (b"", "with an empty body"),
        ):
            group.invalid("KIND_UNKNOWN", f"kind {kind} {what}", ["KindUnknown"], body=data)
    group = file.group("decode_body", kind=4, message="Ping")
    for kind in (*unknown, 256, 260, 1 << 32, -1, -4, 1 << 63):
        group.invalid(
            "MALFORMED",
            f"kind {kind} in the body only",
            ["KindUnknown"],
            body=pack.packed([kind, 5]),
        )
    for kind, (name, fields) in MESSAGES.items():
        if kind != 4:
            values = [typical(field.shape, place) for place, field in enumerate(fields)]
            group.invalid(
                "KIND_MISMATCH",
                f"the body of {name} as Ping",
                ["KindMismatch"],
                body=pack.packed([kind, *values]),
            )
    group.invalid(
        "KIND_MISMATCH",
        "the body of Pong, in a longer form, as Ping",
        ["KindMismatch", "LongerForm"],
        body=b"\xdc\x00\x02\x05\x05",
    )


def _frames(file: File) -> None:
    """Whole messages: what comes with a payload."""
    group = file.group("decode_message")
    rows = pack.packed([13, 1, [typical(MESSAGES[13][1][1].shape, 0)[0]]])
    values = [1, [typical(MESSAGES[13][1][1].shape, 0)[0]]]
    for payload, what in (
        (b"\x01" * 12, "with a payload"),
        (b"", "with an empty payload"),
        (None, "without one, read as an empty one"),
    ):
        group.valid(
            f"Rows {what}",
            ["Payload"],
            frames=pack.message(13, rows, payload),
            output={
                "message": "Rows",
                "fields": {
                    field.name: shown(field.shape, value)
                    for field, value in zip(MESSAGES[13][1], values, strict=True)
                },
                "payload": payload or b"",
            },
        )
    for kind, (name, fields) in MESSAGES.items():
        if kind != 13:
            body = pack.packed(
                [kind, *(typical(field.shape, place) for place, field in enumerate(fields))]
            )
            group.invalid(
                "FRAME_COUNT",
                f"{name} with a payload",
                ["Payload"],
                frames=pack.message(kind, body, b"\x01"),
            )
    group.invalid(
        "FRAME_COUNT",
        "Ping with an empty payload",
        ["Payload"],
        frames=pack.message(4, pack.packed([4, 5]), b""),
    )
    group.invalid(
        "MALFORMED",
        "a body that is broken comes before a payload that is not wanted",
        ["Payload"],
        frames=pack.message(4, b"\xc1", b"x"),
    )
