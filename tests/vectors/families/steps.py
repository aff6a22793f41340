"""Steps: rules V01 to V08 without a session, V16 to V21 against one."""

import math
import struct
from typing import Any, Final

from .. import pack, scene
from ..layout import LIMITS
from ..scene import DENSE, OTHER_SESSION, PREFIX, SESSION, SPARSE, Values
from ..suite import File, Group, Limit, Note

NOTES: Final = {
    "Usable": Note("a step within the terms", ("05-S-16",), "a round is lost"),
    "Bound": Note(
        "a field at the bound of the terms, or one beside it",
        ("04-V01", "04-V04", "04-V05", "04-V06", "04-V08"),
        "a bound is off by one",
    ),
    "V01": Note(
        "a batch has one request to requests_max",
        ("04-V01",),
        "staging overflows, or a step of nobody is waited for",
    ),
    "V02": Note("no slot twice", ("04-V02",), "two requests write one slot"),
    "V03": Note("no session twice", ("04-V03",), "one round of a session is drawn twice"),
    "V04": Note("the slot is an agreed one", ("04-V04",), "memory beyond the staging is written"),
    "V05": Note("the depth is at most depth_max", ("04-V05",), "a chain overflows its slot"),
    "V06": Note(
        "the proposal temperature is finite and in range",
        ("04-V06",),
        "weights of a division by zero, or of a sentinel",
    ),
    "V07": Note("the representation is an agreed one", ("04-V07",), "rows come that nobody reads"),
    "V08": Note("the support fits the terms", ("04-V08",), "rows larger than their slot"),
    "V16": Note(
        "the generation is the current one", ("04-V16",), "a proposal from before a reset is used"
    ),
    "V17": Note("the slot is the session's", ("04-V17",), "one request overwrites another"),
    "V18": Note(
        "the context is the session's",
        ("04-V18",),
        "drafts for another temperature, grammar or stop set",
    ),
    "V19": Note(
        "the round follows the last one", ("04-V19", "02-R-4"), "a counter is drawn with twice"
    ),
    "V20": Note("the position is the end of the prefix", ("04-V20",), "drafts for another place"),
    "V21": Note("the digest is the prefix's", ("04-V21",), "drafts after another text"),
    "Order": Note(
        "two rules broken at once: the earlier one gives the code",
        ("04-V-1",),
        "two receivers give two reasons",
    ),
}


_SUPPORTS_NAMED: Final = (16, 32, 64, 256)


def _entries(count: int) -> list[Values]:
    """Entries of different sessions in different slots."""
    return [scene.entry(slot=slot, session_id=bytes([0x30 + slot]) * 16) for slot in range(count)]


def _check(
    group: Group,
    comment: str,
    flags: list[str],
    *entries: Values,
    code: str | None = None,
    only: str | None = None,
    limit: Limit | None = None,
) -> None:
    body = scene.step(*entries)
    if code is None:
        group.valid(comment, flags, body=body, limit=limit)
    else:
        group.invalid(code, comment, flags, body=body, only=only, limit=limit)


def _field_rules(file: File) -> None:
    """V04 to V08: each field of an entry at its bound and beyond."""
    group = file.group("check_step", terms=scene.terms(requests_max=3))
    for count in (1, 2, 3):
        _check(group, f"{count} of three requests", ["Bound"], *_entries(count))
    _check(group, "an empty batch", ["V01"], code="BATCH_RANGE", only="V01")
    _check(
        group, "four requests of three", ["V01", "V04", "Order"], *_entries(4), code="BATCH_RANGE"
    )
    # A batch too large has slots twice or beyond the agreed ones, unless the terms forbid less.
    _check(
        group,
        "four requests of three in two slots",
        ["V01", "V02", "Order"],
        *({**one, "slot": slot % 2} for slot, one in enumerate(_entries(4))),
        code="BATCH_RANGE",
    )
    group = file.group("check_step", terms=scene.terms(requests_max=3, depth_max=3))
    rules: list[tuple[str, str, str, list[int], list[int]]] = [
        ("V04", "slot", "SLOT_RANGE", [0, 2], [3, 4, 255]),
        ("V05", "depth", "DEPTH_RANGE", [0, 1, 2, 3], [4, 5, 6, 255]),
    ]
    for rule, field, code, good, bad in rules:
        for value in good:
            _check(group, f"{field} {value}", ["Bound"], scene.entry(depth=3) | {field: value})
        for value in bad:
            _check(
                group,
                f"{field} {value}",
                [rule, "Bound"],
                scene.entry(depth=3) | {field: value},
                code=code,
                only=rule,
            )
    group = file.group("check_step", terms=scene.terms())
    for offset in (-1, 0, 1):
        depth = int(LIMITS["DEPTH_MAX"]) + offset
        _check(
            group,
            f"depth {depth} under the contract's own bound",
            ["Bound"] if offset <= 0 else ["V05", "Bound"],
            scene.entry(depth=depth),
            code="DEPTH_RANGE" if offset > 0 else None,
            only="V05" if offset > 0 else None,
            limit=Limit("DEPTH_MAX", offset),
        )
        slot = int(LIMITS["REQUESTS_MAX"]) - 1 + offset
        _check(
            group,
            f"slot {slot} under the contract's own bound",
            ["Bound"] if offset <= 0 else ["V04", "Bound"],
            scene.entry(slot=slot),
            code="SLOT_RANGE" if offset > 0 else None,
        )
    _temperatures(group)
    _supports(file)


def _temperatures(group: Group) -> None:
    for name, outwards in (("TEMPERATURE_MIN", 0.0), ("TEMPERATURE_MAX", math.inf)):
        bound = float(LIMITS[name])
        sign = -1 if outwards == 0.0 else 1
        inwards = math.inf if outwards == 0.0 else 0.0
        for offset, value in (
            (-sign, math.nextafter(bound, inwards)),
            (0, bound),
            (sign, math.nextafter(bound, outwards)),
        ):
            beyond = offset == sign
            _check(
                group,
                f"temperature {value!r}",
                ["V06", "Bound"] if beyond else ["Bound"],
                scene.entry(temperature=value),
                code="TEMPERATURE_RANGE" if beyond else None,
                only="V06" if beyond else None,
                limit=Limit(name, offset),
            )
    for value in (0.5, 1.0, 2.0):
        _check(group, f"temperature {value}", ["Usable"], scene.entry(temperature=value))
    for value in (0.0, -0.0, -1.0, 5e-324, 1e300, math.inf, -math.inf, math.nan, -1e-9, 1000.0):
        _check(
            group,
            f"temperature {value!r}",
            ["V06"],
            scene.entry(temperature=value),
            code="TEMPERATURE_RANGE",
            only="V06",
        )
    largest = struct.unpack(">d", bytes.fromhex("7fefffffffffffff"))[0]
    _check(
        group,
        "the largest finite temperature",
        ["V06"],
        scene.entry(temperature=largest),
        code="TEMPERATURE_RANGE",
        only="V06",
    )


def _supports(file: File) -> None:
    group = file.group("check_step", terms=scene.terms(representations=[DENSE]))
    for value in (0, 2, 3, 255):
        one = scene.entry(representation=value, support=4)
        _check(
            group,
            f"representation {value} where dense is agreed",
            ["V07"],
            one,
            code="REPRESENTATION_MISMATCH",
            only="V07",
        )
    _check(group, "dense where dense is agreed", ["Usable"], scene.entry())
    group = file.group("check_step", terms=scene.terms(representations=[SPARSE]))
    _check(
        group,
        "dense where sparse is agreed",
        ["V07"],
        scene.entry(),
        code="REPRESENTATION_MISMATCH",
        only="V07",
    )
    _check(group, "sparse where sparse is agreed", ["Usable"], scene.sparse_entry())

    group = file.group("check_step", terms=scene.terms())
    size = scene.VOCABULARY_SIZE
    for support in (0, 1, size - 1, size):
        _check(
            group,
            f"a dense row with at most {support} ids",
            ["Bound"],
            scene.entry(support=support),
        )
    for support in (size + 1, 1 << 31, (1 << 32) - 1):
        _check(
            group,
            f"a dense row with at most {support} ids",
            ["V08"],
            scene.entry(support=support),
            code="SUPPORT_RANGE",
            only="V08",
        )
    for support in (1, 5, 6):
        _check(
            group, f"sparse, support {support} of 6", ["Bound"], scene.sparse_entry(support=support)
        )
    for support in (7, 16, (1 << 32) - 1):
        _check(
            group,
            f"sparse, support {support} of 6",
            ["V08", "Bound"],
            scene.sparse_entry(support=support),
            code="SUPPORT_RANGE",
            only="V08",
        )
    _check(
        group,
        "sparse and full support of a vocabulary above the bound",
        ["V08"],
        scene.sparse_entry(support=0),
        code="SUPPORT_RANGE",
        only="V08",
    )
    group = file.group("check_step", terms=scene.terms(support_max=size))
    _check(
        group,
        "sparse and full support of a vocabulary within the bound",
        ["Bound"],
        scene.sparse_entry(support=0),
    )
    largest = int(LIMITS["SUPPORT_MAX"])
    group = file.group(
        "check_step",
        terms=scene.terms(support_max=largest, vocabulary_size=129280, legal_size=129280),
    )
    for offset in (-1, 0, 1):
        _check(
            group,
            f"support {largest + offset} under the contract's own bound",
            ["Bound"] if offset <= 0 else ["V08", "Bound"],
            scene.sparse_entry(support=largest + offset),
            code="SUPPORT_RANGE" if offset > 0 else None,
            limit=Limit("SUPPORT_MAX", offset),
        )
    for support in _SUPPORTS_NAMED:
        _check(
            group, f"the named support {support}", ["Usable"], scene.sparse_entry(support=support)
        )


def _batches(file: File) -> None:
    """V02 and V03, and the order of all of V01 to V08."""
    group = file.group("check_step", terms=scene.terms())
    four = _entries(4)
    _check(group, "four requests", ["Usable"], *four)
    _check(group, "slots in any order", ["Usable"], *reversed(four))
    for left in range(4):
        for right in range(left + 1, 4):
            entries = list(four)
            entries[right] = {**entries[right], "slot": four[left]["slot"]}
            _check(
                group,
                f"requests {left} and {right} in one slot",
                ["V02"],
                *entries,
                code="SLOT_DUPLICATE",
                only="V02",
            )
            entries = list(four)
            entries[right] = {**entries[right], "session_id": four[left]["session_id"]}
            _check(
                group,
                f"requests {left} and {right} of one session",
                ["V03"],
                *entries,
                code="SESSION_DUPLICATE",
                only="V03",
            )
    _check(group, "one entry twice", ["V02", "Order"], four[0], four[0], code="SLOT_DUPLICATE")
    for place in range(4):
        entries = list(four)
        entries[place] = {**entries[place], "depth": 6}
        _check(
            group, f"request {place} is too deep", ["V05"], *entries, code="DEPTH_RANGE", only="V05"
        )
    # Each entry breaks this rule and every later one.
    broken: list[tuple[str, str, Values]] = [
        ("V04", "SLOT_RANGE", {"slot": 4}),
        ("V05", "DEPTH_RANGE", {"depth": 6}),
        ("V06", "TEMPERATURE_RANGE", {"temperature": 0.0}),
        ("V07", "REPRESENTATION_MISMATCH", {"representation": 3}),
        ("V08", "SUPPORT_RANGE", {"support": 1 << 20}),
    ]
    for first in range(len(broken) - 1):
        for second in range(first + 1, len(broken)):
            (rule, code, one), (later, _, two) = broken[first], broken[second]
            _check(
                group,
                f"{rule} and {later}",
                [rule, later, "Order"],
                scene.entry(**one, **two),
                code=code,
            )
    _check(
        group,
        "V02 before V04 of the first request",
        ["V02", "V04", "Order"],
        {**four[0], "slot": 9},
        {**four[1], "slot": 9},
        code="SLOT_DUPLICATE",
    )
    _check(
        group,
        "V03 before V05 of the first request",
        ["V03", "V05", "Order"],
        {**four[0], "depth": 9},
        {**four[1], "session_id": four[0]["session_id"]},
        code="SESSION_DUPLICATE",
    )
    _check(
        group,
        "V05 of the first request before V04 of the second",
        ["V04", "V05", "Order"],
        {**four[0], "depth": 9},
        {**four[1], "slot": 9},
        code="DEPTH_RANGE",
    )


def _held(file: File) -> None:
    """V16 to V21 against a session of generation 3 that has used three rounds."""
    held = {
        "session_id": SESSION,
        "prefix": list(PREFIX),
        "generation": 3,
        "last_round": 3,
        "slot": 0,
        "context": 99,
    }
    group = file.group("check_step_entry", session=held)

    def judge(
        comment: str,
        flags: list[str],
        code: str | None = None,
        only: str | None = None,
        **changes: Any,
    ) -> None:
        body = scene.step(scene.entry(**changes))
        if code is None:
            group.valid(comment, flags, body=body)
        else:
            group.invalid(code, comment, flags, body=body, only=only)

    judge("the next round", ["Usable"])
    judge("the next round without drafts", ["Usable"], depth=0)
    judge("the next round, sparse", ["Usable"], representation=SPARSE, support=4)
    for generation in (1, 2):
        judge(
            f"generation {generation} of 3",
            ["V16"],
            "GENERATION_STALE",
            "V16",
            generation=generation,
        )
    for generation in (4, 5, (1 << 32) + 3, (1 << 63) - 1):
        judge(
            f"generation {generation} of 3",
            ["V16"],
            "GENERATION_AHEAD",
            "V16",
            generation=generation,
        )
    for slot in (1, 2, 3, 255):
        judge(f"slot {slot} for 0", ["V17"], "SLOT_RANGE", "V17", slot=slot)
    for context in (0, 98, 100, 99 + (1 << 32), (1 << 64) - 1):
        judge(f"context {context} for 99", ["V18"], "CONTEXT_MISMATCH", "V18", context=context)
    for round_ in (1, 2, 3):
        judge(f"round {round_} after 3", ["V19"], "ROUND_STALE", "V19", round=round_)
    for round_ in (5, 6, 260, (1 << 32) - 1):
        judge(f"round {round_} after 3", ["V19"], "ROUND_AHEAD", "V19", round=round_)
    for position in (0, 6, 8, 263, (1 << 31) - 1):
        judge(
            f"position {position} after 7 tokens",
            ["V20"],
            "POSITION_MISMATCH",
            "V20",
            position=position,
        )
    digest = pack.prefix_digest(SESSION, PREFIX)
    others = {
        "the prefix without its last token": pack.prefix_digest(SESSION, PREFIX[:-1]),
        "the prefix and one token more": pack.prefix_digest(SESSION, [*PREFIX, 6]),
        "two tokens swapped": pack.prefix_digest(SESSION, [1, 3, *PREFIX[2:]]),
        "the same text of another session": pack.prefix_digest(OTHER_SESSION, PREFIX),
        "the empty prefix": pack.prefix_digest(SESSION, ()),
        "zeros": bytes(16),
        "one bit changed": bytes([digest[0] ^ 1]) + digest[1:],
        "its last bit changed": digest[:-1] + bytes([digest[-1] ^ 0x80]),
        "its bytes reversed": digest[::-1],
    }
    for what, other in others.items():
        judge(
            f"the digest is that of {what}" if "prefix" in what else f"the digest is {what}",
            ["V21"],
            "PREFIX_MISMATCH",
            "V21",
            digest=other,
        )
    broken: list[tuple[str, str, Values]] = [
        ("V16", "GENERATION_STALE", {"generation": 2}),
        ("V17", "SLOT_RANGE", {"slot": 1}),
        ("V18", "CONTEXT_MISMATCH", {"context": 1}),
        ("V19", "ROUND_STALE", {"round": 3}),
        ("V20", "POSITION_MISMATCH", {"position": 6}),
        ("V21", "PREFIX_MISMATCH", {"digest": bytes(16)}),
    ]
    for first in range(len(broken) - 1):
        for second in range(first + 1, len(broken)):
            (rule, code, one), (later, _, two) = broken[first], broken[second]
            judge(f"{rule} and {later}", [rule, later, "Order"], code, **one, **two)
    fresh = {**held, "prefix": [], "last_round": 0, "generation": (1 << 63) - 1}
    group = file.group("check_step_entry", session=fresh)
    judge(
        "the first round of the last generation, nothing committed",
        ["Usable", "Bound"],
        generation=(1 << 63) - 1,
        round=1,
        position=0,
        digest=pack.prefix_digest(SESSION, ()),
    )
    last = {**held, "last_round": (1 << 32) - 2}
    group = file.group("check_step_entry", session=last)
    judge("the last round there is", ["Usable", "Bound"], round=(1 << 32) - 1)
    judge(
        "the round before the last again",
        ["V19", "Bound"],
        "ROUND_STALE",
        "V19",
        round=(1 << 32) - 2,
    )


def make() -> File:
    """The file."""
    file = File("steps", "PP1 step rules", "04 Validation: V01 to V08, V16 to V21", NOTES)
    _field_rules(file)
    _batches(file)
    _held(file)
    return file
