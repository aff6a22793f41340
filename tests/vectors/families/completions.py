"""Completions: rules V33 to V38, and whole proposals from their first row to the finding."""

from collections.abc import Sequence
from typing import Any, Final

from .. import pack, scene
from ..scene import Values
from ..suite import File, Group, Note

NOTES: Final = {
    "Whole": Note("a proposal that is complete", ("05-S-18", "05-S-20"), "a round is lost"),
    "Failed": Note(
        "a proposal that the worker gave up, with the reason",
        ("05-S-18", "04-V-6"),
        "the reason of a discard is lost",
    ),
    "V33": Note(
        "the completion is for this session, generation and round",
        ("04-V33",),
        "the end of an earlier round makes a later one usable",
    ),
    "V34": Note(
        "rows as many as the depth without a status, fewer with one",
        ("04-V34",),
        "a proposal is used although it failed, or although it is short",
    ),
    "V35": Note(
        "as many rows came as the completion says",
        ("04-V35", "04-V-5"),
        "a chain is shortened to what arrived, which depends on the drafts",
    ),
    "V36": Note(
        "as many bytes came as the completion says", ("04-V36",), "rows of another size pass"
    ),
    "V37": Note(
        "the completion checksum covers these rows and this status",
        ("04-V37",),
        "rows of two proposals are mixed",
    ),
    "V38": Note(
        "the status is a registered code",
        ("04-V38",),
        "an unknown status is taken for success, or for another failure than a code",
    ),
    "Order": Note(
        "two rules broken at once: the earlier one gives the code",
        ("04-V-1",),
        "two ranks give two reasons",
    ),
    "Again": Note(
        "a row that comes twice with the same checksum counts once",
        ("04-V-4",),
        "a repeat of the network costs the proposal",
    ),
    "Duplicate": Note(
        "a row that comes twice with another checksum", ("04-V-4",), "one place has two tokens"
    ),
    "RowOrder": Note(
        "rows of one chain come in the order of their positions",
        ("04-V-4", "04-V10"),
        "a row is bound to other preceding tokens than it was drawn after",
    ),
    "OneFault": Note(
        "a fault in one row discards the whole chain",
        ("04-V-5",),
        "a chain is shortened, which makes the law depend on the drafts",
    ),
    "Apart": Note(
        "a fault in one request leaves the others of the step as they are",
        ("05-S-18", "04-V-1"),
        "one request costs another its proposal",
    ),
    "NoDrafts": Note(
        "a request of depth 0 has no proposal to be wrong",
        ("05-S-16",),
        "a round without drafts is discarded",
    ),
}

_SUMS: Final = (11, 12, 13, 14, 15)
_U64_MAX: Final = (1 << 64) - 1
# Every registered code may be a status; one of each hundred, and the ends.
_STATUSES: Final = (100, 122, 200, 300, 324, 400, 419, 500, 502, 505, 600, 700, 800, 900, 904)
_UNREGISTERED: Final = (
    1,
    99,
    110,
    123,
    218,
    318,
    325,
    420,
    506,
    905,
    1000,
    60000,
    65535,
    65536,
    66038,
    1 << 31,
    (1 << 32) - 1,
)


def _rules(file: File, one: Values) -> None:
    depth = one["depth"]
    sums = list(_SUMS[:depth])
    size = 48 * depth
    group = file.group("check_completion", step=scene.step(one), entry=0)

    def judge(
        comment: str,
        flags: list[str],
        made: Values,
        came: Sequence[int] = sums,
        reply_bytes: int = size,
        code: str | None = None,
        only: str | None = None,
    ) -> None:
        given: Values = {
            "body": scene.completion(made),
            "row_checksums": list(came),
            "reply_bytes": reply_bytes,
        }
        if code is None:
            group.valid(comment, flags, output={"status": made["status"]}, **given)
        else:
            group.invalid(code, comment, flags, only=only, **given)

    judge("a whole proposal", ["Whole"], scene.completed(one, sums, size))
    for status in _STATUSES:
        judge(f"status {status}, no rows", ["Failed"], scene.completed(one, [], 0, status), [], 0)
    for status in _UNREGISTERED:
        judge(
            f"status {status}, no rows",
            ["V38"],
            scene.completed(one, [], 0, status),
            [],
            0,
            "COMPLETION_STATUS",
            "V38",
        )
    if not depth:
        judge(
            "a row for a request without drafts",
            ["V34"],
            scene.completed(one, [11], 48),
            [11],
            48,
            "DEPTH_MISMATCH",
            "V34",
        )
        judge(
            "a status and a row for a request without drafts",
            ["V34"],
            scene.completed(one, [11], 48, 502),
            [11],
            48,
            "COMPLETION_STATUS",
            "V34",
        )
        return
    for count in range(1, depth):
        judge(
            f"status 502 after {count} of {depth} rows",
            ["Failed"],
            scene.completed(one, sums[:count], 48 * count, 502),
            sums[:count],
            48 * count,
        )
    for field, values in (
        ("session_id", (bytes(16), scene.OTHER_SESSION, one["session_id"][::-1])),
        ("generation", (one["generation"] - 1, one["generation"] + 1, (1 << 63) - 1)),
        ("round", (one["round"] - 1, one["round"] + 1, (1 << 32) - 1)),
    ):
        for value in values:
            shown = value.hex() if isinstance(value, bytes) else value
            judge(
                f"{field} {shown}",
                ["V33"],
                scene.completed(one, sums, size) | {field: value},
                code="LATE_ROUND",
                only="V33",
            )
    for count in range(depth):
        judge(
            f"no status and {count} of {depth} rows",
            ["V34"],
            scene.completed(one, sums[:count], 48 * count),
            sums[:count],
            48 * count,
            "DEPTH_MISMATCH",
            "V34",
        )
    six = [*_SUMS, 16][: depth + 1]
    judge(
        f"no status and {depth + 1} rows of {depth}",
        ["V34"],
        scene.completed(one, six, 48 * len(six)),
        six,
        48 * len(six),
        "DEPTH_MISMATCH",
        "V34",
    )
    for came in (sums, six):
        judge(
            f"status 502 and {len(came)} rows of {depth}",
            ["V34"],
            scene.completed(one, came, 48 * len(came), 502),
            came,
            48 * len(came),
            "COMPLETION_STATUS",
            "V34",
        )
    for count in range(depth):
        judge(
            f"{depth} rows said, {count} came",
            ["V35"],
            scene.completed(one, sums[:count], 48 * count, row_count=depth),
            sums[:count],
            48 * count,
            "ROW_COUNT",
            "V35",
        )
    judge(
        f"{depth} rows said, {depth + 1} came",
        ["V35"],
        scene.completed(one, six, 48 * len(six), row_count=depth),
        six,
        48 * len(six),
        "ROW_COUNT",
        "V35",
    )
    for said, came_count in ((1, 0), (0, 1), (2, 1), (1, 2)):
        if max(said, came_count) < depth:
            judge(
                f"status 502, {said} rows said, {came_count} came",
                ["V35"],
                scene.completed(one, sums[:came_count], 48 * came_count, 502, row_count=said),
                sums[:came_count],
                48 * came_count,
                "ROW_COUNT",
                "V35",
            )
    for said in (0, size - 1, size + 1, size + (1 << 32), 1 << 63, _U64_MAX):
        judge(
            f"{said} bytes said, {size} came",
            ["V36"],
            {**scene.completed(one, sums, size), "reply_bytes": said},
            code="COMPLETION_BYTES",
            only="V36",
        )
    right = scene.completed(one, sums, size)["checksum"]
    for value, what in (
        (0, "zero"),
        (right ^ 1, "its lowest bit changed"),
        (right ^ 1 << 63, "its highest bit changed"),
        (int.from_bytes(right.to_bytes(8, "little"), "big"), "big endian"),
    ):
        judge(
            f"the checksum is {what}",
            ["V37"],
            scene.completed(one, sums, size, checksum=value),
            code="COMPLETION_CHECKSUM",
            only="V37",
        )
    others: list[tuple[str, Values]] = [
        ("another slot", {**one, "slot": one["slot"] ^ 1}),
        ("another session", {**one, "session_id": scene.OTHER_SESSION}),
        ("another generation", {**one, "generation": one["generation"] + 1}),
        ("another round", {**one, "round": one["round"] + 1}),
    ]
    for what, other in others:
        checksum = scene.completed(other, sums, size)["checksum"]
        judge(
            f"the checksum is for {what}",
            ["V37"],
            scene.completed(one, sums, size, checksum=checksum),
            code="COMPLETION_CHECKSUM",
            only="V37",
        )
    checksum = scene.completed(one, sums, size, 502)["checksum"]
    judge(
        "the checksum is for a failed proposal",
        ["V37"],
        scene.completed(one, sums, size, checksum=checksum),
        code="COMPLETION_CHECKSUM",
        only="V37",
    )
    if depth > 1:
        swapped = [sums[1], sums[0], *sums[2:]]
        judge(
            "two rows swapped",
            ["V37"],
            scene.completed(one, sums, size),
            swapped,
            size,
            "COMPLETION_CHECKSUM",
            "V37",
        )
        failed = scene.completed(one, [], 0, 502)
        judge(
            "the status changed under the checksum",
            ["V37"],
            {**failed, "status": 500},
            [],
            0,
            "COMPLETION_CHECKSUM",
            "V37",
        )
    for place in range(depth):
        other_sums = [value ^ (place_ == place) << 40 for place_, value in enumerate(sums)]
        judge(
            f"another row {place} came",
            ["V37"],
            scene.completed(one, sums, size),
            other_sums,
            size,
            "COMPLETION_CHECKSUM",
            "V37",
        )
    broken: list[tuple[str, str, Values]] = [
        ("V33", "LATE_ROUND", {"round": one["round"] + 1}),
        ("V34", "DEPTH_MISMATCH", {"row_count": depth + 1}),
        ("V36", "COMPLETION_BYTES", {"reply_bytes": 1}),
        ("V37", "COMPLETION_CHECKSUM", {"checksum": 5}),
    ]
    for first in range(len(broken) - 1):
        for second in range(first + 1, len(broken)):
            (rule, code, change), (later, _, too) = broken[first], broken[second]
            judge(
                f"{rule} and {later}",
                [rule, later, "Order"],
                {**scene.completed(one, sums, size), **change, **too},
                code=code,
            )
    judge(
        "V35 and V36",
        ["V35", "V36", "Order"],
        {**scene.completed(one, sums, size), "reply_bytes": 1},
        sums[:-1],
        size - 48,
        "ROW_COUNT",
    )
    judge(
        "an unknown status, and a checksum for another",
        ["V37", "V38", "Order"],
        {**scene.completed(one, [], 0, 1), "checksum": 5},
        [],
        0,
        "COMPLETION_CHECKSUM",
    )


# --- whole proposals -----------------------------------------------------------------------

Sent = list[dict[str, Any]]


def _rows_message(rows: Sequence[Values], payloads: Sequence[bytes]) -> dict[str, Any]:
    return {"body": scene.rows(*rows), "payload": b"".join(payloads)}


def _completion_message(*made: Values) -> dict[str, Any]:
    return {"body": scene.completion(*made)}


def _sums(rows: Sequence[Values]) -> list[int]:
    return [row["checksum"] for row in rows]


def _finding(one: Values, status: int, rows: Sequence[Values]) -> dict[str, Any]:
    usable = status == 0
    entry = pack.packed(scene.record("StepEntry", one))
    tokens = [row["token"] for row in rows] if usable else []
    return {
        "status": status,
        "digest": pack.proposal_digest(entry, tokens, _sums(rows) if usable else []),
    }


_CODES: Final = {
    "ROW_DUPLICATE": 403,
    "ROW_POSITION": 402,
    "ROW_CHECKSUM": 406,
    "TOKEN_NOT_DRAWN": 419,
    "ROW_COUNT": 401,
    "DEPTH_MISMATCH": 309,
    "Q_MISSING": 400,
    "COMPLETION_STATUS": 418,
    "VALUE_BITS": 410,
    "LATE_ROUND": 504,
    "MASS_WRONG": 413,
    "ROW_ENTRIES": 404,
    "COMPLETION_CHECKSUM": 417,
}


def _collect_group(file: File, *entries: Values, **terms: Any) -> Group:
    return file.group(
        "collect",
        terms=scene.terms(**terms),
        step=scene.step(*entries),
        worker_keys=[scene.worker_key(one) for one in entries],
    )


def _proposals(file: File, one: Values) -> None:
    group = _collect_group(file, one)
    rows, payloads = scene.chain(one)
    sums, size = _sums(rows), sum(map(len, payloads))
    done = _completion_message(scene.completed(one, sums, size))
    singles = [_rows_message([row], [payload]) for row, payload in zip(rows, payloads, strict=True)]
    dense = one["representation"] == scene.DENSE

    def take(comment: str, flags: list[str], messages: Sent, status: int = 0) -> None:
        group.valid(
            comment, flags, messages=messages, output={"findings": [_finding(one, status, rows)]}
        )

    def refuse(
        code: str, comment: str, flags: list[str], messages: Sent, only: str | None = None
    ) -> None:
        group.invalid(
            code,
            comment,
            flags,
            messages=messages,
            only=only,
            output={"findings": [_finding(one, _CODES[code], rows)]},
        )

    take("one row a message", ["Whole"], [*singles, done])
    if not dense:
        take("every row in one message", ["Whole"], [_rows_message(rows, payloads), done])
        take(
            "two rows, then three",
            ["Whole"],
            [_rows_message(rows[:2], payloads[:2]), _rows_message(rows[2:], payloads[2:]), done],
        )
    take(
        "every row twice",
        ["Again"],
        [*(message for single in singles for message in (single, single)), done],
    )
    take("all rows, and all again", ["Again"], [*singles, *singles, done])
    take("the first row again at the end", ["Again"], [*singles, singles[0], done])
    take("rows after the completion change nothing", ["Whole"], [*singles, done, singles[0]])
    take("a second completion changes nothing", ["Whole"], [*singles, done, done])
    for count in range(len(rows)):
        failed = scene.completed(one, sums[:count], sum(map(len, payloads[:count])), 502)
        take(
            f"given up after {count} rows",
            ["Failed"],
            [*singles[:count], _completion_message(failed)],
            502,
        )

    for place in range(len(rows)):
        changed = {**rows[place], "checksum": rows[place]["checksum"] ^ 1}
        damaged = _rows_message([changed], [payloads[place]])
        refuse(
            "ROW_CHECKSUM",
            f"row {place} is damaged, the others are right",
            ["OneFault"],
            [*singles[:place], damaged, *singles[place + 1 :], done],
        )
        refuse(
            "ROW_DUPLICATE",
            f"row {place} comes again with another checksum",
            ["Duplicate"],
            [*singles[: place + 1], damaged, *singles[place + 1 :], done],
        )
        other = rows[place]["token"]
        token = next(token for token in scene.counts_of(place) if token != other)
        drawn = [row["token"] for row in rows[:place]]
        skewed = scene.seal(one, place, drawn, token, payloads[place])
        refuse(
            "TOKEN_NOT_DRAWN",
            f"row {place} has another token of its own q",
            ["OneFault"],
            [
                *singles[:place],
                _rows_message([skewed], [payloads[place]]),
                *singles[place + 1 :],
                done,
            ],
        )
        if place + 1 < len(rows):
            refuse(
                "ROW_POSITION",
                f"row {place} is lost",
                ["RowOrder"],
                [*singles[:place], *singles[place + 1 :], done],
            )
            swapped = list(singles)
            swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
            refuse(
                "ROW_POSITION",
                f"rows {place} and {place + 1} are swapped",
                ["RowOrder"],
                [*swapped, done],
            )
    short = scene.completed(one, sums[:-1], sum(map(len, payloads[:-1])))
    refuse(
        "DEPTH_MISMATCH",
        "a whole completion of a chain that is one short",
        ["V34"],
        [*singles[:-1], _completion_message(short)],
        "V34",
    )
    refuse("ROW_COUNT", "the last row is lost", ["V35"], [*singles[:-1], done])
    refuse("ROW_COUNT", "no row comes", ["V35"], [done])
    early = [*singles[:-1], done, singles[-1]]
    refuse("ROW_COUNT", "the completion comes before the last row", ["V35"], early)
    for status in (1, 318, 65535):
        failed = scene.completed(one, sums[:1], len(payloads[0]), status)
        refuse(
            "COMPLETION_STATUS",
            f"given up after one row with status {status}",
            ["V38"],
            [singles[0], _completion_message(failed)],
            "V38",
        )
    late = scene.completed(one, sums, size, round=one["round"] - 1)
    refuse(
        "LATE_ROUND",
        "the completion of the round before",
        ["V33"],
        [*singles, _completion_message(late)],
        "V33",
    )
    refuse("ROW_COUNT", "a completion without an entry", ["V35"], [*singles, _completion_message()])
    refuse(
        "ROW_COUNT",
        "a completion with two entries",
        ["V35"],
        [
            *singles,
            _completion_message(scene.completed(one, sums, size), scene.completed(one, sums, size)),
        ],
    )
    damaged = _completion_message(scene.completed(one, sums, size, checksum=1))
    refuse("COMPLETION_CHECKSUM", "the completion is damaged", ["V37"], [*singles, damaged], "V37")
    refuse(
        "COMPLETION_CHECKSUM",
        "a right completion after a damaged one is too late",
        ["V37"],
        [*singles, damaged, done],
    )
    refuse(
        "Q_MISSING",
        "tokens without their q",
        ["OneFault"],
        [{"body": scene.rows(*rows), "payload": b""}, done],
    )


def _two(file: File) -> None:
    """Two requests in one step: a fault stays with its request."""
    entries = [
        scene.sparse_entry(depth=2),
        scene.sparse_entry(
            depth=2,
            slot=1,
            session_id=scene.OTHER_SESSION,
            generation=1,
            round=9,
            position=3,
            digest=pack.prefix_digest(scene.OTHER_SESSION, (7, 7, 7)),
        ),
    ]
    group = _collect_group(file, *entries)
    chains = [scene.chain(one, place) for place, one in enumerate(entries)]
    made = [
        scene.completed(one, _sums(rows), sum(map(len, payloads)))
        for one, (rows, payloads) in zip(entries, chains, strict=True)
    ]

    def findings(*statuses: int) -> list[dict[str, Any]]:
        return [
            _finding(one, status, rows)
            for one, status, (rows, _) in zip(entries, statuses, chains, strict=True)
        ]

    (first, first_bytes), (second, second_bytes) = chains
    both = _rows_message([*first, *second], [*first_bytes, *second_bytes])
    done = _completion_message(*made)
    group.valid(
        "two chains in one message",
        ["Whole"],
        messages=[both, done],
        output={"findings": findings(0, 0)},
    )
    mixed = [
        _rows_message([first[0], second[0]], [first_bytes[0], second_bytes[0]]),
        _rows_message([second[1], first[1]], [second_bytes[1], first_bytes[1]]),
    ]
    group.valid(
        "two chains, row by row",
        ["Whole"],
        messages=[*mixed, done],
        output={"findings": findings(0, 0)},
    )
    damaged = [{**first[0], "checksum": 1}, first[1]]
    group.invalid(
        "ROW_CHECKSUM",
        "the first request is damaged, the second is whole",
        ["Apart"],
        messages=[_rows_message([*damaged, *second], [*first_bytes, *second_bytes]), done],
        output={"findings": findings(406, 0)},
    )
    failed = scene.completed(entries[1], [], 0, 502)
    group.valid(
        "the second request is given up",
        ["Apart", "Failed"],
        messages=[_rows_message(first, first_bytes), _completion_message(made[0], failed)],
        output={"findings": findings(0, 502)},
    )
    crossed = [{**row, "entry": 1 - row["entry"]} for row in (*first, *second)]
    group.invalid(
        "ROW_POSITION",
        "each row names the other request",
        ["OneFault"],
        messages=[_rows_message(crossed, [*first_bytes, *second_bytes]), done],
        output={"findings": findings(402, 402)},
    )
    group.invalid(
        "LATE_ROUND",
        "the completions are swapped",
        ["V33"],
        messages=[both, _completion_message(made[1], made[0])],
        output={"findings": findings(504, 504)},
    )


def _no_drafts(file: File) -> None:
    one = scene.entry(depth=0)
    group = _collect_group(file, one)
    whole = {"findings": [_finding(one, 0, [])]}
    group.valid(
        "no rows and a completion",
        ["NoDrafts"],
        output=whole,
        messages=[_completion_message(scene.completed(one, [], 0))],
    )
    group.valid("no completion either", ["NoDrafts"], output=whole, messages=[])
    group.valid(
        "a status",
        ["NoDrafts"],
        output=whole,
        messages=[_completion_message(scene.completed(one, [], 0, 300))],
    )
    rows, payloads = scene.chain({**one, "depth": 1})
    group.invalid(
        "DEPTH_MISMATCH",
        "a row that was not asked for",
        ["OneFault"],
        messages=[_rows_message(rows, payloads)],
        output={"findings": [_finding(one, 309, [])]},
    )


def make() -> File:
    """The file."""
    file = File(
        "completions",
        "PP1 completions and proposals",
        "04 Validation: V33 to V38, V-4 to V-6",
        NOTES,
    )
    _rules(file, scene.entry())
    _rules(file, scene.sparse_entry(depth=1, slot=3, generation=(1 << 63) - 2))
    _rules(file, scene.entry(depth=0))
    _proposals(file, scene.entry())
    _proposals(file, scene.sparse_entry())
    _two(file)
    _no_drafts(file)
    return file
