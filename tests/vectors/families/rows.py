"""Rows: descriptors (V09 to V15), payload frames (V22), and what their bytes say (V23 to V40)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from .. import philox, scene
from ..layout import LIMITS
from ..scene import DENSE, LEGAL_SIZE, MASS, SPARSE, VOCABULARY_SIZE, Values
from ..suite import File, Group, Limit, Note

NOTES: Final = {
    "Usable": Note(
        "a row that is what its step asked for", ("01-D-7", "01-D-14"), "a proposal is lost"
    ),
    "Bound": Note(
        "a number at its bound, or one beside it", ("01-D-14", "04-V14"), "a bound is off by one"
    ),
    "V09": Note(
        "no row beyond the depth of the step",
        ("04-V09",),
        "more drafts than were fixed before drawing",
    ),
    "V10": Note("row i is for position i of the chain", ("04-V10",), "a q of another place"),
    "V11": Note("the representation is the step's", ("04-V11",), "bytes are read in another way"),
    "V12": Note("the token is a legal id", ("04-V12", "03-W-8"), "a placeholder is committed"),
    "V13": Note("a token has a q", ("04-V13", "01-D-16"), "an acceptance without its q is biased"),
    "V14": Note(
        "as many entries as representation and support allow",
        ("04-V14",),
        "a row larger than its slot",
    ),
    "V15": Note("the byte length follows from the entries", ("04-V15",), "reads beyond a row"),
    "V22": Note(
        "the payload is the rows back to back, each of an entry of the step",
        ("04-V22", "03-W-9"),
        "bytes of one row are read as another's",
    ),
    "V23": Note(
        "the checksum binds the bytes to place, preceding tokens, token and shape",
        ("04-V23", "04-V-7"),
        "a q of another place, round or session is used",
    ),
    "V24": Note("as many bytes as the entries need", ("04-V24", "01-D-14"), "reads beyond a row"),
    "V25": Note(
        "support ids are legal ids", ("04-V25", "01-D-12", "01-D-14"), "mass outside the vocabulary"
    ),
    "V26": Note(
        "support ids ascend strictly", ("04-V26", "01-D-11", "01-D-14"), "one id has two masses"
    ),
    "V27": Note(
        "the bits of every value are at most those of 1.0",
        ("04-V27", "01-D-14"),
        "NaN, infinities, negative zeros and negative masses enter the law",
    ),
    "V28": Note(
        "no sparse entry is zero", ("04-V28", "01-D-11", "01-D-14"), "one q has two byte strings"
    ),
    "V29": Note(
        "every value is a whole number of tickets",
        ("04-V29", "01-D-14"),
        "the receiver's counts are rounded, so they are not those that drew",
    ),
    "V30": Note(
        "the counts sum to 2^24",
        ("04-V30", "01-D-10", "01-D-14"),
        "the receiver normalises, so its q is not the one that drew",
    ),
    "V31": Note(
        "dense padding is zero", ("04-V31", "01-D-12", "01-D-14"), "mass outside the vocabulary"
    ),
    "V32": Note(
        "the token has mass in its own q",
        ("04-V32", "01-D-15"),
        "a token that cannot have been drawn is accepted with certainty",
    ),
    "V39": Note(
        "at most k ids have mass where k was asked for",
        ("04-V39",),
        "another distribution than the agreed one",
    ),
    "V40": Note(
        "the token is what counts and ticket give",
        ("04-V40", "01-D-27"),
        "some other distribution drew the token",
    ),
    "Registered": Note(
        "the representation is a registered one",
        ("01-D-13", "01-D-14"),
        "bytes of a form that is not agreed are read",
    ),
    "Order": Note(
        "two rules broken at once: the earlier one gives the code",
        ("01-D-14", "04-V-1"),
        "two ranks give two reasons",
    ),
    "Subnormal": Note(
        "positive values below one ticket",
        ("01-D-14",),
        "a process that flushes subnormals reads them as zero",
    ),
    "Extreme": Note(
        "all mass on one id, or one ticket on an id",
        ("01-D-16",),
        "certain tokens, or the rarest, cannot be sent",
    ),
}

_ONE: Final = 0x3F800000


def _q(counts: Mapping[int, int]) -> dict[str, Any]:
    """A q as the output of a test: ids that have mass and their counts."""
    kept = {token: count for token, count in sorted(counts.items()) if count}
    return {"ids": list(kept), "counts": list(kept.values())}


# --- payloads alone ------------------------------------------------------------------------


def _decode(
    group: Group,
    comment: str,
    flags: list[str],
    representation: int,
    payload: bytes,
    entries: int,
    counts: Mapping[int, int] | None = None,
    code: str | None = None,
    only: str | None = None,
    limit: Limit | None = None,
) -> None:
    given: Values = {"representation": representation, "entries": entries, "payload": payload}
    if counts is not None:
        group.valid(comment, flags, output=_q(counts), limit=limit, **given)
    else:
        assert code is not None
        group.invalid(code, comment, flags, only=only, limit=limit, **given)


# q values that are not in +0.0 .. 1.0, by their bits.
_PATTERNS: Final = (
    (0x80000000, "-0.0"),
    (0x80000001, "the smallest negative subnormal"),
    (0xBF800000, "-1.0"),
    (0xBF000000, "-0.5"),
    (_ONE + 1, "the number after 1.0"),
    (0x40000000, "2.0"),
    (0x4B800000, "2^24"),
    (0x7F7FFFFF, "the largest finite number"),
    (0x7F800000, "infinity"),
    (0xFF800000, "-infinity"),
    (0x7FC00000, "a quiet NaN"),
    (0x7F800001, "a signalling NaN"),
    (0x7FFFFFFF, "a NaN with every bit"),
    (0xFFC00000, "a negative NaN"),
    (0xFFFFFFFF, "every bit"),
    (0x3F800100, "1.00003"),
)
# Positive values that are not whole tickets.
_NOT_DYADIC: Final = (
    (0x00000001, "the smallest subnormal"),
    (0x007FFFFF, "the largest subnormal"),
    (0x00800000, "the smallest normal number"),
    (0x33000000, "half a ticket"),
    (0x337FFFFF, "just below one ticket"),
    (0x33800001, "just above one ticket"),
    (0x33C00000, "one ticket and a half"),
    (0x34200000, "two tickets and a half"),
    (0x3EFFFFFF, "just below a half"),
)


def _payloads(file: File) -> None:
    group = file.group("decode_payload", vocabulary_size=VOCABULARY_SIZE, legal_size=LEGAL_SIZE)
    half = MASS // 2

    def dense_bits(*values: int) -> bytes:
        return scene.bits(*values, *(0 for _ in range(VOCABULARY_SIZE - len(values))))

    shapes: tuple[tuple[str, dict[int, int], list[str]], ...] = (
        ("three ids", {1: 1 << 22, 5: MASS - (1 << 22) - 1, 9: 1}, ["Usable"]),
        ("all mass on the first id", {0: MASS}, ["Extreme"]),
        ("all mass on the last legal id", {LEGAL_SIZE - 1: MASS}, ["Extreme"]),
        ("one ticket, and the rest", {3: 1, 4: MASS - 1}, ["Extreme"]),
        ("the rest, and one ticket", {3: MASS - 1, 4: 1}, ["Extreme"]),
        ("two halves", {2: half, 7: half}, ["Usable"]),
        ("odd counts", {0: 5592405, 1: 5592405, 2: 5592406}, ["Usable"]),
        (
            "every legal id",
            dict.fromkeys(range(9), MASS // 16) | {9: 7 * MASS // 16},
            ["Bound"],
        ),
        ("one ticket on nine ids", dict.fromkeys(range(9), 1) | {9: MASS - 9}, ["Extreme"]),
        (
            "powers of two",
            {token: MASS >> token + 1 for token in range(9)} | {9: MASS >> 9},
            ["Usable"],
        ),
    )
    for what, counts, flags in shapes:
        _decode(group, f"dense, {what}", flags, DENSE, scene.dense(counts), VOCABULARY_SIZE, counts)
        _decode(group, f"sparse, {what}", flags, SPARSE, scene.sparse(counts), len(counts), counts)

    whole, few = scene.dense({1: half, 2: half}), scene.sparse({1: half, 2: half})
    for number in (0, 3, 4, 255, 256, -1):
        _decode(
            group,
            f"representation {number}",
            ["Registered"],
            number,
            whole,
            VOCABULARY_SIZE,
            code="REPRESENTATION_MISMATCH",
        )
    for entries in (0, 1, VOCABULARY_SIZE - 1, VOCABULARY_SIZE + 1, (1 << 32) - 1, 1 << 63):
        _decode(
            group,
            f"{entries} dense entries of {VOCABULARY_SIZE}",
            ["V24"],
            DENSE,
            whole,
            entries,
            code="ROW_ENTRIES",
        )
    for entries in (0, LEGAL_SIZE + 1, VOCABULARY_SIZE, (1 << 32) - 1, 1 << 63):
        _decode(
            group,
            f"{entries} sparse entries of at most {LEGAL_SIZE}",
            ["V24"],
            SPARSE,
            bytes(8 * min(entries, 20)),
            entries,
            code="ROW_ENTRIES",
        )
    for extra in (-len(whole), -4, -1, 1, 4):
        data = (whole + bytes(4))[: len(whole) + extra]
        _decode(
            group,
            f"dense, {len(data)} bytes for {len(whole)}",
            ["V24"],
            DENSE,
            data,
            VOCABULARY_SIZE,
            code="ROW_BYTES",
            only="V24" if extra > 0 else None,
            limit=Limit("DENSE_ENTRY_BYTES", extra) if abs(extra) == 1 else None,
        )
    _decode(
        group,
        "dense, as many bytes as entries",
        ["Bound"],
        DENSE,
        scene.dense({8: MASS}),
        VOCABULARY_SIZE,
        {8: MASS},
        limit=Limit("DENSE_ENTRY_BYTES", 0),
    )
    for extra in (-16, -8, -1, 1, 8):
        data = (few + bytes(8))[: len(few) + extra]
        _decode(
            group,
            f"sparse, {len(data)} bytes for {len(few)}",
            ["V24"],
            SPARSE,
            data,
            2,
            code="ROW_BYTES",
            only="V24" if extra > 0 else None,
            limit=Limit("SPARSE_ENTRY_BYTES", extra) if abs(extra) == 1 else None,
        )
    _decode(
        group,
        "sparse, as many bytes as entries",
        ["Bound"],
        SPARSE,
        scene.sparse({8: MASS}),
        1,
        {8: MASS},
        limit=Limit("SPARSE_ENTRY_BYTES", 0),
    )

    quarter = MASS // 4
    values = scene.bits(0x3E800000, 0x3E800000, 0x3F000000)
    for bad, what in (
        (LEGAL_SIZE, "the first padding id"),
        (VOCABULARY_SIZE - 1, "a padding id"),
        (VOCABULARY_SIZE, "beyond the row"),
        ((1 << 31) - 1, "the largest int32"),
    ):
        _decode(
            group,
            f"the last id is {what}",
            ["V25"],
            SPARSE,
            scene.ids(1, 2, bad) + values,
            3,
            code="ID_RANGE",
            only="V25",
        )
        _decode(
            group,
            f"the middle id is {what}",
            ["V25", "V26", "Order"],
            SPARSE,
            scene.ids(1, bad, 3) + values,
            3,
            code="ID_RANGE",
        )
    for bad in (-1, -2, -(1 << 31)):
        _decode(
            group,
            f"the first id is {bad}",
            ["V25"],
            SPARSE,
            scene.ids(bad, 2, 3) + values,
            3,
            code="ID_RANGE",
            only="V25",
        )
    for order, what in (
        ((1, 1, 2), "the first twice"),
        ((1, 2, 2), "the last twice"),
        ((2, 1, 3), "the first two swapped"),
        ((1, 3, 2), "the last two swapped"),
        ((9, 5, 0), "descending"),
        ((4, 4, 4), "one id three times"),
        ((0, 9, 0), "the first again at the end"),
    ):
        _decode(
            group,
            f"ids {what}",
            ["V26"],
            SPARSE,
            scene.ids(*order) + values,
            3,
            code="ID_ORDER",
            only="V26",
        )
    zero_twice = scene.ids(1, 2, 2) + scene.bits(0x3F000000, 0x3F000000, 0)
    _decode(
        group,
        "an id twice, once with mass zero",
        ["V26", "V28", "Order"],
        SPARSE,
        zero_twice,
        3,
        code="ID_ORDER",
    )

    for pattern, what in _PATTERNS:
        alone = "V27" if pattern == 0x80000000 else None
        _decode(
            group,
            f"dense, a value is {what}",
            ["V27"],
            DENSE,
            dense_bits(0x3F000000, pattern, 0x3F000000),
            VOCABULARY_SIZE,
            code="VALUE_BITS",
            only=alone,
        )
        _decode(
            group,
            f"sparse, a value is {what}",
            ["V27"],
            SPARSE,
            scene.ids(1, 2, 3) + scene.bits(0x3F000000, pattern, 0x3F000000),
            3,
            code="VALUE_BITS",
        )
        _decode(
            group,
            f"dense, a padding value is {what}",
            ["V27"],
            DENSE,
            scene.dense({1: MASS})[:-4] + scene.bits(pattern),
            VOCABULARY_SIZE,
            code="VALUE_BITS",
        )
    for first, second, what in (
        (0x40000000, 0xBF800000, "2 and -1"),
        (0x3FC00000, 0xBF000000, "1.5 and -0.5"),
    ):
        _decode(
            group,
            f"dense, {what} sum to one",
            ["V27"],
            DENSE,
            dense_bits(first, second),
            VOCABULARY_SIZE,
            code="VALUE_BITS",
            only="V27",
        )
        _decode(
            group,
            f"sparse, {what} sum to one",
            ["V27"],
            SPARSE,
            scene.ids(1, 2) + scene.bits(first, second),
            2,
            code="VALUE_BITS",
            only="V27",
        )
    for place in range(3):
        bits = [0x3F000000, 0x3F000000]
        bits.insert(place, 0)
        _decode(
            group,
            f"sparse, entry {place} is zero",
            ["V28"],
            SPARSE,
            scene.ids(1, 2, 3) + scene.bits(*bits),
            3,
            code="VALUE_ZERO",
            only="V28",
        )
    for pattern, what in _NOT_DYADIC:
        flags = ["V29", *(["Subnormal"] if pattern < 0x00800000 else [])]
        below = pattern < 0x33800000
        alone = "V29" if below else None
        _decode(
            group,
            f"dense, {what} besides 1.0",
            flags,
            DENSE,
            dense_bits(_ONE, pattern),
            VOCABULARY_SIZE,
            code="VALUE_DYADIC",
            only=alone,
        )
        _decode(
            group,
            f"sparse, {what} before 1.0",
            flags,
            SPARSE,
            scene.ids(1, 2) + scene.bits(pattern, _ONE),
            2,
            code="VALUE_DYADIC",
            only=alone,
        )
    for offset in (-2, -1, 1, 2):
        limit = Limit("MASS", offset) if abs(offset) == 1 else None
        counts = {2: half, 7: half + offset}
        _decode(
            group,
            f"dense, {abs(offset)} too {'few' if offset < 0 else 'many'}",
            ["V30"],
            DENSE,
            scene.dense(counts),
            VOCABULARY_SIZE,
            code="MASS_WRONG",
            only="V30",
            limit=limit,
        )
        _decode(
            group,
            f"sparse, {abs(offset)} too {'few' if offset < 0 else 'many'}",
            ["V30"],
            SPARSE,
            scene.sparse(counts),
            2,
            code="MASS_WRONG",
            only="V30",
        )
    _decode(
        group,
        "as many as there are",
        ["Bound"],
        DENSE,
        scene.dense({2: half + 1, 7: half - 1}),
        VOCABULARY_SIZE,
        {2: half + 1, 7: half - 1},
        limit=Limit("MASS", 0),
    )
    _decode(
        group,
        "dense, nothing at all",
        ["V30"],
        DENSE,
        bytes(4 * VOCABULARY_SIZE),
        VOCABULARY_SIZE,
        code="MASS_WRONG",
        only="V30",
    )
    _decode(
        group,
        "dense, 1.0 everywhere",
        ["V30"],
        DENSE,
        dense_bits(*[_ONE] * LEGAL_SIZE),
        VOCABULARY_SIZE,
        code="MASS_WRONG",
        only="V30",
    )
    _decode(
        group,
        "sparse, 1.0 everywhere",
        ["V30"],
        SPARSE,
        scene.ids(*range(LEGAL_SIZE)) + scene.bits(*[_ONE] * LEGAL_SIZE),
        LEGAL_SIZE,
        code="MASS_WRONG",
        only="V30",
    )
    _decode(
        group,
        "the mass of 2^23, as of another semantics",
        ["V30"],
        SPARSE,
        scene.sparse({1: half}),
        1,
        code="MASS_WRONG",
        only="V30",
    )
    for place in (LEGAL_SIZE, VOCABULARY_SIZE - 1):
        for count in (1, quarter, MASS):
            counts = {place: count} if count == MASS else {2: MASS - count, place: count}
            _decode(
                group,
                f"{count} tickets on padding id {place}",
                ["V31"],
                DENSE,
                scene.dense(counts),
                VOCABULARY_SIZE,
                code="PADDING_NOT_ZERO",
                only="V31",
            )
    _orders(group, dense_bits)


def _orders(group: Group, dense_bits: Any) -> None:
    """Pairs of broken rules of the table of D-14; each comes before the next."""
    nan, small = 0x7FC00000, 0x33000000
    sparse = (
        ("V24", "V25", "ROW_BYTES", scene.ids(10, 11) + scene.bits(0x3F000000, 0x3F000000, 0), 2),
        ("V25", "V26", "ID_RANGE", scene.ids(2, 1, 10) + scene.bits(0x3F000000, 0x3F000000, 1), 3),
        ("V25", "V27", "ID_RANGE", scene.ids(1, 10) + scene.bits(nan, 0x3F000000), 2),
        ("V25", "V30", "ID_RANGE", scene.ids(-1, 5) + scene.bits(0x3F000000, _ONE), 2),
        ("V26", "V27", "ID_ORDER", scene.ids(2, 1) + scene.bits(nan, 0x3F000000), 2),
        ("V26", "V28", "ID_ORDER", scene.ids(2, 1) + scene.bits(0, _ONE), 2),
        ("V26", "V30", "ID_ORDER", scene.ids(2, 2) + scene.bits(_ONE, _ONE), 2),
        ("V27", "V28", "VALUE_BITS", scene.ids(1, 2) + scene.bits(0, nan), 2),
        ("V27", "V29", "VALUE_BITS", scene.ids(1, 2) + scene.bits(small, nan), 2),
        ("V28", "V29", "VALUE_ZERO", scene.ids(1, 2, 3) + scene.bits(small, 0, _ONE), 3),
        ("V28", "V30", "VALUE_ZERO", scene.ids(1, 2) + scene.bits(0x3F000000, 0), 2),
        ("V29", "V30", "VALUE_DYADIC", scene.ids(1, 2) + scene.bits(0x3F000000, small), 2),
    )
    for rule, later, code, payload, entries in sparse:
        _decode(
            group,
            f"sparse, {rule} and {later}",
            [rule, later, "Order"],
            SPARSE,
            payload,
            entries,
            code=code,
        )
    padding = [0] * LEGAL_SIZE
    dense = (
        ("V27", "V29", "VALUE_BITS", dense_bits(small, nan)),
        ("V27", "V31", "VALUE_BITS", dense_bits(nan, *padding[1:], _ONE)),
        ("V29", "V30", "VALUE_DYADIC", dense_bits(small, 0x3F000000)),
        ("V29", "V31", "VALUE_DYADIC", dense_bits(small, *padding[1:], _ONE)),
        ("V30", "V31", "MASS_WRONG", dense_bits(_ONE, *padding[1:], _ONE)),
    )
    for rule, later, code, payload in dense:
        _decode(
            group,
            f"dense, {rule} and {later}",
            [rule, later, "Order"],
            DENSE,
            payload,
            VOCABULARY_SIZE,
            code=code,
        )


def _large(file: File) -> None:
    """Rows of the sizes that are in use, and the largest there may be."""
    size = int(LIMITS["VOCABULARY_SIZE_DEFAULT"])
    legal = size - 280
    group = file.group("decode_payload", vocabulary_size=size, legal_size=legal)
    counts = {5: MASS - 2, legal - 2: 1, legal - 1: 1}
    _decode(
        group,
        "dense, 517120 bytes",
        ["Usable"],
        DENSE,
        scene.dense(counts, size),
        size,
        counts,
        limit=Limit("DENSE_ROW_BYTES_DEFAULT", 0),
    )
    for extra in (-1, 1):
        data = (scene.dense(counts, size) + bytes(1))[: 4 * size + extra]
        _decode(
            group,
            f"dense, {len(data)} bytes",
            ["V24"],
            DENSE,
            data,
            size,
            code="ROW_BYTES",
            limit=Limit("DENSE_ROW_BYTES_DEFAULT", extra),
        )
    _decode(
        group,
        "dense, mass on the first padding id",
        ["V31"],
        DENSE,
        scene.dense({5: MASS - 1, legal: 1}, size),
        size,
        code="PADDING_NOT_ZERO",
        only="V31",
    )
    for offset in (-1, 0, 1):
        entries = size + offset
        data = scene.dense(counts, entries)
        if offset:
            _decode(
                group,
                f"{entries} entries",
                ["V24", "Bound"],
                DENSE,
                data,
                entries,
                code="ROW_ENTRIES",
                limit=Limit("VOCABULARY_SIZE_DEFAULT", offset),
            )
    _decode(
        group,
        "as many entries as ids",
        ["Bound"],
        DENSE,
        scene.dense({6: MASS}, size),
        size,
        {6: MASS},
        limit=Limit("VOCABULARY_SIZE_DEFAULT", 0),
    )
    wide = file.group("decode_payload", vocabulary_size=1 << 20, legal_size=1 << 20)
    counts = {0: MASS - 1, (1 << 20) - 1: 1}
    _decode(
        wide,
        "the largest row there may be",
        ["Bound"],
        DENSE,
        scene.dense(counts, 1 << 20),
        1 << 20,
        counts,
    )
    _decode(
        wide,
        "sparse, the largest id",
        ["Extreme"],
        SPARSE,
        scene.sparse({(1 << 20) - 1: MASS}),
        1,
        {(1 << 20) - 1: MASS},
    )
    _decode(
        wide,
        "sparse, one above the largest id",
        ["V25"],
        SPARSE,
        scene.sparse({1 << 20: MASS}),
        1,
        code="ID_RANGE",
        only="V25",
    )


# --- descriptors ---------------------------------------------------------------------------


def _descriptors(file: File) -> None:
    for one, name in ((scene.entry(), "dense"), (scene.sparse_entry(), "sparse")):
        group = file.group("check_row", terms=scene.terms(), step=scene.step(one), entry=0)
        rows, _ = scene.chain(one)

        def judge(
            comment: str,
            flags: list[str],
            index: int,
            code: str | None = None,
            only: str | None = None,
            rows: Sequence[Values] = rows,
            group: Group = group,
            name: str = name,
            **changes: Any,
        ) -> None:
            row = {**rows[min(index, 4)], **changes}
            given: Values = {"index": index, "body": scene.rows(row)}
            if code is None:
                group.valid(f"{name}, {comment}", flags, **given)
            else:
                group.invalid(code, f"{name}, {comment}", flags, only=only, **given)

        for index in range(5):
            judge(f"row {index}", ["Usable"], index)
        for index in (5, 6):
            judge(
                f"row {index} of a chain of five",
                ["V09", "Bound"],
                index,
                "DEPTH_MISMATCH",
                "V09",
                position=one["position"] + index,
            )
        for index in (0, 2, 4):
            for position in sorted(
                {
                    0,
                    one["position"] + index - 1,
                    one["position"] + index + 1,
                    one["position"] + index + 256,
                    (1 << 31) - 1,
                }
            ):
                judge(
                    f"row {index} at position {position}",
                    ["V10"],
                    index,
                    "ROW_POSITION",
                    "V10",
                    position=position,
                )
        other = DENSE if one["representation"] == SPARSE else SPARSE
        entries, size = (VOCABULARY_SIZE, 48) if other == DENSE else (3, 24)
        judge(
            f"the other representation, {other}",
            ["V11"],
            0,
            "REPRESENTATION_MISMATCH",
            "V11",
            representation=other,
            entries=entries,
            byte_length=size,
        )
        for number in (0, 3, 255):
            judge(
                f"representation {number}",
                ["V11"],
                0,
                "REPRESENTATION_MISMATCH",
                representation=number,
            )
        for token in (
            -(1 << 31),
            -2,
            -1,
            LEGAL_SIZE,
            LEGAL_SIZE + 1,
            VOCABULARY_SIZE,
            (1 << 31) - 1,
        ):
            judge(
                f"token {token}",
                ["V12", *(["Bound"] if abs(token - 5) < 8 else [])],
                0,
                "TOKEN_RANGE",
                "V12",
                token=token,
            )
        for token in (0, 1, LEGAL_SIZE - 1):
            judge(f"token {token}", ["Bound"], 0, token=token)
        judge(
            "no entries and no bytes",
            ["V13"],
            0,
            "Q_MISSING",
            "V13" if one["representation"] == SPARSE else None,
            entries=0,
            byte_length=0,
        )
        judge("no entries", ["V13"], 0, "Q_MISSING", entries=0)
        judge("no bytes", ["V13"], 0, "Q_MISSING", byte_length=0)
        if one["representation"] == SPARSE:
            for entries in (1, 2, 3, 4):
                judge(
                    f"{entries} of at most 4 entries",
                    ["Bound"],
                    0,
                    entries=entries,
                    byte_length=8 * entries,
                )
            for entries in (5, 6, 10, 16160, 1 << 29):
                size = min(8 * entries, (1 << 32) - 1)
                judge(
                    f"{entries} of at most 4 entries",
                    ["V14"],
                    0,
                    "ROW_ENTRIES",
                    "V14" if size == 8 * entries else None,
                    entries=entries,
                    byte_length=size,
                )
            for size in (1, 8, 16, 23, 25, 32, 12, 48, (1 << 32) - 1):
                judge(
                    f"{size} bytes for 3 entries", ["V15"], 0, "ROW_BYTES", "V15", byte_length=size
                )
        else:
            for entries in (1, LEGAL_SIZE, VOCABULARY_SIZE - 1, VOCABULARY_SIZE + 1, (1 << 32) - 1):
                judge(
                    f"{entries} entries of {VOCABULARY_SIZE}",
                    ["V14"],
                    0,
                    "ROW_ENTRIES",
                    "V14",
                    entries=entries,
                    byte_length=4 * VOCABULARY_SIZE,
                )
            for size in (4, 40, 47, 49, 52, 96, (1 << 32) - 1):
                judge(
                    f"{size} bytes for {VOCABULARY_SIZE} entries",
                    ["V15"],
                    0,
                    "ROW_BYTES",
                    "V15",
                    byte_length=size,
                )
        broken: list[tuple[str, str, int, Values]] = [
            ("V09", "DEPTH_MISMATCH", 5, {}),
            ("V10", "ROW_POSITION", 0, {"position": 0}),
            ("V11", "REPRESENTATION_MISMATCH", 0, {"representation": 0}),
            ("V12", "TOKEN_RANGE", 0, {"token": -1}),
            ("V14", "ROW_ENTRIES", 0, {"entries": 11}),
            ("V15", "ROW_BYTES", 0, {"byte_length": 7}),
        ]
        for first in range(len(broken) - 1):
            for second in range(first + 1, len(broken)):
                (rule, code, index, change), (later, _, _, too) = broken[first], broken[second]
                place = {"position": one["position"] + 5} if index == 5 else {}
                judge(
                    f"{rule} and {later}",
                    [rule, later, "Order"],
                    index,
                    code,
                    None,
                    **{**place, **change, **too},
                )
        judge("V12 and V13", ["V12", "V13", "Order"], 0, "TOKEN_RANGE", None, token=10, entries=0)
        judge(
            "V13 and V14", ["V13", "V14", "Order"], 0, "Q_MISSING", None, entries=99, byte_length=0
        )
    full = scene.sparse_entry(support=0)
    group = file.group(
        "check_row", terms=scene.terms(support_max=12), step=scene.step(full), entry=0
    )
    for entries in (LEGAL_SIZE - 1, LEGAL_SIZE, LEGAL_SIZE + 1):
        row = scene.seal(full, 0, (), 1, b"", entries=entries, byte_length=8 * entries, checksum=0)
        comment = f"full support, {entries} entries of {LEGAL_SIZE} legal ids"
        if entries <= LEGAL_SIZE:
            group.valid(comment, ["Bound"], index=0, body=scene.rows(row))
        else:
            group.invalid(
                "ROW_ENTRIES", comment, ["V14", "Bound"], index=0, only="V14", body=scene.rows(row)
            )


# --- payload frames ------------------------------------------------------------------------


def _frames(file: File) -> None:
    entries = [scene.sparse_entry(), scene.sparse_entry(slot=1, session_id=scene.OTHER_SESSION)]
    group = file.group("split_payload", step=scene.step(*entries))
    rows, payloads = scene.chain(entries[0])
    more, more_payloads = scene.chain(entries[1], 1)
    whole = b"".join(payloads)
    for count in range(6):
        group.valid(
            f"{count} rows",
            ["Usable"],
            body=scene.rows(*rows[:count]),
            payload=b"".join(payloads[:count]),
            output={"lengths": [len(one) for one in payloads[:count]]},
        )
    group.valid(
        "ten rows of two requests",
        ["Usable"],
        body=scene.rows(*rows, *more),
        payload=b"".join([*payloads, *more_payloads]),
        output={"lengths": [24] * 10},
    )
    uneven = [{**rows[0], "byte_length": 1}, {**rows[1], "byte_length": 47}]
    group.valid(
        "the lengths are judged later, here only their sum",
        ["Usable"],
        body=scene.rows(*uneven),
        payload=whole[:48],
        output={"lengths": [1, 47]},
    )
    for extra in (-24, -1, 1, 24):
        payload = (whole + bytes(24))[: len(whole) + extra]
        group.invalid(
            "ROW_BYTES",
            f"{len(payload)} bytes for {len(whole)}",
            ["V22"],
            only="V22",
            body=scene.rows(*rows),
            payload=payload,
        )
    group.invalid(
        "ROW_BYTES", "bytes without a row", ["V22"], only="V22", body=scene.rows(), payload=b"x"
    )
    for size in (0, 23, 25, 1 << 31, (1 << 32) - 1):
        row = {**rows[0], "byte_length": size}
        group.invalid(
            "ROW_BYTES",
            f"a row of {size} bytes in a payload of 24",
            ["V22"],
            only="V22",
            body=scene.rows(row),
            payload=payloads[0],
        )
    twice = [{**rows[0], "byte_length": (1 << 32) - 1}, {**rows[1], "byte_length": 25}]
    group.invalid(
        "ROW_BYTES",
        "two lengths whose sum in 32 bits is the payload's",
        ["V22"],
        body=scene.rows(*twice),
        payload=whole[:24],
    )
    for place in (2, 3, 4, 255):
        row = {**rows[0], "entry": place}
        group.invalid(
            "ROW_COUNT",
            f"entry {place} of a step of two",
            ["V22"],
            only="V22",
            body=scene.rows(row),
            payload=payloads[0],
        )
    stray = {**more[0], "entry": 2}
    group.invalid(
        "ROW_COUNT",
        "the second row names no entry",
        ["V22"],
        only="V22",
        body=scene.rows(rows[0], stray),
        payload=payloads[0] + more_payloads[0],
    )
    group.invalid(
        "Q_MISSING", "rows without a payload", ["V22", "V13"], body=scene.rows(*rows), payload=b""
    )
    empty = {**rows[0], "byte_length": 0}
    group.invalid(
        "Q_MISSING",
        "a row of no bytes without a payload",
        ["V22", "V13"],
        only="V22",
        body=scene.rows(empty),
        payload=b"",
    )
    group.invalid(
        "Q_MISSING",
        "no payload, and an entry that is not there",
        ["V22", "Order"],
        body=scene.rows({**rows[0], "entry": 9}),
        payload=b"",
    )
    group.invalid(
        "ROW_COUNT",
        "an entry that is not there, and too few bytes",
        ["V22", "Order"],
        body=scene.rows({**rows[0], "entry": 9}),
        payload=b"x",
    )


# --- bytes in their place ------------------------------------------------------------------


def _bound_rows(file: File) -> None:
    for one, name in ((scene.entry(), "dense"), (scene.sparse_entry(), "sparse")):
        group = file.group("read_row", terms=scene.terms(), step=scene.step(one), entry=0)
        rows, payloads = scene.chain(one)
        drawn = [row["token"] for row in rows]

        def judge(
            comment: str,
            flags: list[str],
            index: int,
            row: Values,
            payload: bytes,
            preceding: Sequence[int],
            counts: Mapping[int, int] | None = None,
            code: str | None = None,
            only: str | None = None,
            group: Group = group,
            name: str = name,
        ) -> None:
            given: Values = {
                "index": index,
                "preceding": list(preceding),
                "body": scene.rows(row),
                "payload": payload,
            }
            if code is None:
                assert counts is not None
                group.valid(f"{name}, {comment}", flags, output=_q(counts), **given)
            else:
                group.invalid(code, f"{name}, {comment}", flags, only=only, **given)

        for index in range(5):
            counts = scene.counts_of(index)
            judge(
                f"row {index}",
                ["Usable"],
                index,
                rows[index],
                payloads[index],
                drawn[:index],
                counts,
            )
            for token in counts:
                if token != drawn[index]:
                    row = scene.seal(one, index, drawn[:index], token, payloads[index])
                    judge(
                        f"row {index} with token {token}, which has mass too",
                        ["Usable"],
                        index,
                        row,
                        payloads[index],
                        drawn[:index],
                        counts,
                    )
        right = rows[2]["checksum"]
        wrong_sums = (
            (0, "zero"),
            (right ^ 1, "its lowest bit changed"),
            (right ^ 1 << 63, "its highest bit changed"),
            (int.from_bytes(right.to_bytes(8, "little"), "big"), "big endian"),
        )
        for value, what in wrong_sums:
            judge(
                f"the checksum is {what}",
                ["V23"],
                2,
                {**rows[2], "checksum": value},
                payloads[2],
                drawn[:2],
                code="ROW_CHECKSUM",
                only="V23",
            )
        places: list[tuple[str, Values]] = [
            ("another session", {"session_id": scene.OTHER_SESSION}),
            ("another slot", {"slot": 1}),
            ("another generation", {"generation": one["generation"] - 1}),
            ("another round", {"round": one["round"] - 1}),
            ("another position", {"position": one["position"] + 1}),
        ]
        for what, change in places:
            sealed = scene.seal({**one, **change}, 2, drawn[:2], drawn[2], payloads[2])
            judge(
                f"sealed for {what}",
                ["V23"],
                2,
                {**rows[2], "checksum": sealed["checksum"]},
                payloads[2],
                drawn[:2],
                code="ROW_CHECKSUM",
                only="V23",
            )
        for other in ([], drawn[:1], [drawn[1], drawn[0]], [drawn[0], 8], [0, *drawn[:2]]):
            if list(other) != drawn[:2]:
                sealed = scene.seal(one, 2, other, drawn[2], payloads[2])
                judge(
                    f"sealed after the tokens {other}",
                    ["V23"],
                    2,
                    {**rows[2], "checksum": sealed["checksum"]},
                    payloads[2],
                    drawn[:2],
                    code="ROW_CHECKSUM",
                    only="V23",
                )
        another = next(token for token in scene.counts_of(2) if token != drawn[2])
        sealed = scene.seal(one, 2, drawn[:2], another, payloads[2])
        judge(
            "sealed for another token",
            ["V23"],
            2,
            {**rows[2], "checksum": sealed["checksum"]},
            payloads[2],
            drawn[:2],
            code="ROW_CHECKSUM",
            only="V23",
        )
        sealed = scene.seal(
            one,
            2,
            drawn[:2],
            drawn[2],
            payloads[2],
            representation=3 - one["representation"],
            entries=rows[2]["entries"],
        )
        judge(
            "sealed for the other representation",
            ["V23"],
            2,
            {**rows[2], "checksum": sealed["checksum"]},
            payloads[2],
            drawn[:2],
            code="ROW_CHECKSUM",
            only="V23",
        )
        for at in (0, 3, len(payloads[2]) - 9, len(payloads[2]) - 1):
            changed = bytearray(payloads[2])
            changed[at] ^= 1
            judge(
                f"bit 0 of byte {at} changed on the way",
                ["V23"],
                2,
                rows[2],
                bytes(changed),
                drawn[:2],
                code="ROW_CHECKSUM",
            )
        judge(
            "the bytes of another row",
            ["V23"],
            2,
            rows[2],
            payloads[3],
            drawn[:2],
            code="ROW_CHECKSUM",
        )
        for token in (0, 8):
            row = scene.seal(one, 0, (), token, payloads[0])
            judge(
                f"token {token} without mass",
                ["V32"],
                0,
                row,
                payloads[0],
                (),
                code="TOKEN_ZERO_Q",
                only="V32",
            )
        row = scene.seal(
            one, 0, (), rows[0]["token"], payloads[0] + bytes(8), entries=rows[0]["entries"]
        )
        judge(
            "eight bytes more than the entries, sealed",
            ["V24"],
            0,
            row,
            payloads[0] + bytes(8),
            (),
            code="ROW_BYTES",
            only="V24",
        )
        row = scene.seal(one, 0, (), rows[0]["token"], payloads[0][:-4], entries=rows[0]["entries"])
        judge(
            "four bytes less than the entries, sealed",
            ["V24"],
            0,
            row,
            payloads[0][:-4],
            (),
            code="ROW_BYTES",
        )
        _sealed_faults(one, judge)
    one = scene.entry()
    group = file.group("read_row", terms=scene.terms(), step=scene.step(one), entry=0)
    payload = scene.dense({1: MASS})
    row = scene.seal(one, 0, (), 1, payload, entries=VOCABULARY_SIZE - 1)
    group.invalid(
        "ROW_ENTRIES",
        "dense, one entry less than ids, sealed",
        ["V24"],
        only="V24",
        index=0,
        preceding=[],
        body=scene.rows(row),
        payload=payload,
    )
    far = scene.sparse_entry(position=(1 << 31) - 6, generation=(1 << 63) - 1, round=(1 << 32) - 1)
    group = file.group("read_row", terms=scene.terms(), step=scene.step(far), entry=0)
    rows, payloads = scene.chain(far)
    drawn = [row["token"] for row in rows]
    for index in range(5):
        group.valid(
            f"row {index} at the last places there are",
            ["Bound"],
            index=index,
            preceding=drawn[:index],
            body=scene.rows(rows[index]),
            payload=payloads[index],
            output=_q(scene.counts_of(index)),
        )


def _sealed_faults(one: Values, judge: Any) -> None:
    """A q that its sender has sealed, and that is none: sealing does not make it one."""
    sparse = one["representation"] == SPARSE
    half, pad = 0x3F000000, [0] * VOCABULARY_SIZE

    def dense(*values: int) -> bytes:
        return scene.bits(*values, *pad[len(values) :])

    faults: list[tuple[str, str, str, bytes, int, int]]
    if sparse:
        faults = [
            ("V25", "ID_RANGE", "a padding id", scene.ids(1, 10) + scene.bits(half, half), 2, 1),
            (
                "V26",
                "ID_ORDER",
                "an id twice",
                scene.ids(1, 2, 2) + scene.bits(half, half, half),
                3,
                1,
            ),
            (
                "V26",
                "ID_ORDER",
                "an id twice, half of the mass each",
                scene.ids(1, 1) + scene.bits(half, half),
                2,
                1,
            ),
            (
                "V27",
                "VALUE_BITS",
                "2 and -1",
                scene.ids(1, 2) + scene.bits(0x40000000, 0xBF800000),
                2,
                1,
            ),
            ("V28", "VALUE_ZERO", "an empty entry", scene.ids(1, 2) + scene.bits(_ONE, 0), 2, 1),
            (
                "V29",
                "VALUE_DYADIC",
                "half a ticket",
                scene.ids(1, 2) + scene.bits(_ONE, 0x33000000),
                2,
                1,
            ),
            ("V30", "MASS_WRONG", "half of the mass", scene.ids(1) + scene.bits(half), 1, 1),
        ]
    else:
        size = VOCABULARY_SIZE
        faults = [
            ("V27", "VALUE_BITS", "-0.0", dense(_ONE, 0x80000000), size, 0),
            ("V27", "VALUE_BITS", "a NaN", dense(_ONE, 0x7FC00000), size, 0),
            ("V29", "VALUE_DYADIC", "half a ticket", dense(_ONE, 0x33000000), size, 0),
            ("V30", "MASS_WRONG", "1.0 twice", dense(_ONE, _ONE), size, 0),
            ("V31", "PADDING_NOT_ZERO", "mass on padding", dense(half, *pad[1:10], half), size, 0),
        ]
    for rule, code, what, payload, entries, token in faults:
        row = scene.seal(one, 0, (), token, payload, entries=entries)
        alone = rule if what not in ("a NaN", "an id twice") else None
        judge(f"{what}, sealed", [rule], 0, row, payload, (), code=code, only=alone)
        unsealed = {**row, "checksum": row["checksum"] ^ 1}
        judge(
            f"{what}, not sealed",
            ["V23", rule, "Order"],
            0,
            unsealed,
            payload,
            (),
            code="ROW_CHECKSUM",
        )
    payload = scene.payload_of(one, {1: MASS // 2})
    row = scene.seal(one, 0, (), 8, payload)
    judge(
        "half of the mass, and a token without any",
        ["V30", "V32", "Order"],
        0,
        row,
        payload,
        (),
        code="MASS_WRONG",
    )


# --- drawing again -------------------------------------------------------------------------


def _draws(file: File) -> None:
    for one, name in (
        (scene.entry(), "dense"),
        (scene.sparse_entry(), "sparse"),
        (scene.entry(round=1, generation=9, position=300), "dense"),
    ):
        key = scene.worker_key(one)
        group = file.group(
            "check_draw", terms=scene.terms(), step=scene.step(one), entry=0, worker_key=key
        )
        for index in range(5):
            counts = scene.counts_of(index)
            ticket = philox.ticket(key, 24, philox.PROPOSAL, one["position"] + index, one["round"])
            token = scene.token_of(counts, ticket)
            given: Values = {
                "index": index,
                "ids": sorted(counts),
                "counts": [counts[held] for held in sorted(counts)],
            }
            group.valid(
                f"{name}, row {index}: ticket {ticket} draws {token}",
                ["Usable"],
                token=token,
                output={"ticket": ticket},
                **given,
            )
            for other in counts:
                if other != token:
                    group.invalid(
                        "TOKEN_NOT_DRAWN",
                        f"{name}, row {index}: ticket {ticket} does not draw {other}",
                        ["V40"],
                        token=other,
                        only="V40",
                        **given,
                    )
            for split, drawn in ((ticket, 5), (ticket + 1, 0)):
                edges = {0: split, 5: MASS - split}
                kept = [held for held, count in edges.items() if count]
                around: Values = {
                    "index": index,
                    "ids": kept,
                    "counts": [edges[held] for held in kept],
                }
                what = f"{name}, row {index}: the first id has {split} tickets, ticket {ticket}"
                group.valid(
                    f"{what} draws {drawn}",
                    ["Bound"],
                    token=drawn,
                    output={"ticket": ticket},
                    **around,
                )
                if len(kept) == 2:
                    group.invalid(
                        "TOKEN_NOT_DRAWN",
                        f"{what} does not draw {5 - drawn}",
                        ["V40", "Bound"],
                        token=5 - drawn,
                        only="V40",
                        **around,
                    )


def _few_ids(file: File) -> None:
    """Dense rows of a request for three ids."""
    one = scene.entry(support=3)
    key = scene.worker_key(one)
    group = file.group(
        "check_draw", terms=scene.terms(), step=scene.step(one), entry=0, worker_key=key
    )
    for size in (1, 2, 3, 4, 10):
        counts = dict.fromkeys(range(size - 1), MASS // 16)
        counts[size - 1] = MASS - sum(counts.values())
        token = scene.draw(one, 0, counts)
        given: Values = {
            "index": 0,
            "ids": list(counts),
            "counts": list(counts.values()),
            "token": token,
        }
        ticket = philox.ticket(key, 24, philox.PROPOSAL, one["position"], one["round"])
        if size <= 3:
            group.valid(
                f"dense, {size} ids with mass of at most 3",
                ["Bound"],
                output={"ticket": ticket},
                **given,
            )
        else:
            group.invalid(
                "ROW_ENTRIES",
                f"dense, {size} ids with mass of at most 3",
                ["V39", "Bound"],
                only="V39",
                **given,
            )
            other: Values = {**given, "token": next(t for t in counts if t != token)}
            group.invalid(
                "ROW_ENTRIES",
                f"dense, {size} ids with mass of at most 3, and another token",
                ["V39", "V40", "Order"],
                **other,
            )


def make() -> File:
    """The file."""
    file = File(
        "rows",
        "PP1 rows",
        "01 Representations; 04 Validation: V09 to V15, V22 to V32, V39, V40",
        NOTES,
    )
    _payloads(file)
    _large(file)
    _descriptors(file)
    _frames(file)
    _bound_rows(file)
    _draws(file)
    _few_ids(file)
    return file
