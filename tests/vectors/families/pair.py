"""The agreement of the ranks: findings, questions in order, verdicts, the decision record."""

from collections.abc import Sequence
from typing import Any, Final

from .. import pack, scene
from ..scene import LEGAL_SIZE, OTHER_SESSION, PREFIX, SESSION, Values
from ..suite import File, Group, Note
from .digests import decision, empty_entry

NOTES: Final = {
    "Findings": Note(
        "both ranks' findings and what follows from them",
        ("06-P-7", "06-P-8"),
        "one rank uses a proposal that the other discards",
    ),
    "OtherDigest": Note(
        "two ranks that found nothing, in different proposals",
        ("06-P-7",),
        "the ranks judge different drafts",
    ),
    "OtherPlace": Note(
        "an answer about other requests",
        ("06-P-7", "06-P-10"),
        "the finding of one request is taken for another's",
    ),
    "Question": Note(
        "rank 0's questions in their order", ("06-P-6", "06-P-8", "06-P-9"), "no round ends"
    ),
    "Again": Note(
        "a question again: the same answer", ("06-P-18",), "a lost answer ends the round"
    ),
    "OtherContent": Note(
        "a question again with other content", ("06-P-9",), "the ranks answer two questions"
    ),
    "OutOfOrder": Note(
        "a question whose time has not come, or is over",
        ("06-P-8", "06-P-17"),
        "a token is sampled before both ranks have discarded",
    ),
    "OtherUse": Note(
        "a decision to use what was found faulty, or not to use what was not",
        ("06-P-9",),
        "one rank falls back alone",
    ),
    "Verdict": Note("a verdict that these drafts allow", ("06-P-11",), "a round is lost"),
    "NoVerdict": Note(
        "a verdict that no run of the verifier on these drafts gives",
        ("06-P-11", "01-D-25"),
        "tokens are committed that nobody judged",
    ),
    "TooMany": Note(
        "more tokens than there is room for, or tokens after a stop",
        ("06-P-11", "06-P-16"),
        "text after the end",
    ),
    "Ends": Note(
        "a verdict that ends the request",
        ("06-P-10", "06-P-12"),
        "a request that cannot go on does",
    ),
    "Decision": Note(
        "the decision record, as rank 1 would write it", ("06-P-12", "06-P-13"), "no round ends"
    ),
    "OwnVerdict": Note(
        "an entry that is not rank 1's own verdict",
        ("06-P-13",),
        "the ranks commit different tokens",
    ),
    "Foreign": Note(
        "an entry of a request that rank 0 owns",
        ("06-P-11", "06-P-13"),
        "the ranks commit different tokens",
    ),
    "Ledger": Note(
        "position or digest are not those after the tokens",
        ("06-P-13",),
        "the ranks hold different texts",
    ),
    "Padding": Note(
        "entries beyond the requests of the step are zero",
        ("06-P-12",),
        "a record carries what nobody checks",
    ),
}

_STEP: Final = 6
_FAR: Final = (7, 7, 7)  # the other session's prefix


def _entries() -> list[Values]:
    second = scene.sparse_entry(
        slot=1,
        session_id=OTHER_SESSION,
        generation=1,
        round=9,
        position=len(_FAR),
        depth=2,
        digest=pack.prefix_digest(OTHER_SESSION, _FAR),
    )
    return [scene.sparse_entry(depth=3), second]


def _place(one: Values) -> Values:
    return {name: one[name] for name in ("session_id", "generation", "round")}


def _digest(one: Values) -> bytes:
    rows, _ = scene.chain(one)
    return pack.proposal_digest(
        pack.packed(scene.record("StepEntry", one)),
        [row["token"] for row in rows],
        [row["checksum"] for row in rows],
    )


def _finding(one: Values, status: int = 0, **changes: Any) -> Values:
    digest = (
        _digest(one)
        if status == 0
        else pack.proposal_digest(pack.packed(scene.record("StepEntry", one)), (), ())
    )
    return {**_place(one), "status": status, "digest": digest, **changes}


def _findings(name: str, *found: Values, number: int = _STEP) -> bytes:
    made = [scene.record("PrepareEntry", one) for one in found]
    return scene.body(name, step=number, entries=made)


def _invalidation(name: str, *doomed: tuple[Values, int]) -> bytes:
    made = [[one["session_id"], one["generation"], reason] for one, reason in doomed]
    return scene.body(name, step=_STEP, entries=made)


# --- findings ------------------------------------------------------------------------------


def _merging(file: File) -> None:
    first, second = _entries()
    idle = {**second, "depth": 0}
    for entries, uses in (((first, second), [True, True]), ((first, idle), [True, False])):
        group = file.group("merge_findings", step=scene.step(*entries, number=_STEP))

        def judge(
            comment: str,
            flags: list[str],
            mine: Sequence[Values],
            theirs: Sequence[Values],
            reasons: Sequence[int] | None,
            code: str | None = None,
            group: Group = group,
            entries: Sequence[Values] = entries,
            uses: Sequence[bool] = uses,
        ) -> None:
            given: Values = {
                "prepare": _findings("Prepare", *mine),
                "prepared": _findings("Prepared", *theirs),
            }
            output: Values | None = None
            if reasons is not None:
                doomed = [
                    (one, reason) for one, reason in zip(entries, reasons, strict=True) if reason
                ]
                used = [use and not reason for use, reason in zip(uses, reasons, strict=True)]
                output = {
                    "reasons": list(reasons),
                    "invalidate": _invalidation("Invalidate", *doomed) if doomed else None,
                    "decide": scene.body("Decide", step=_STEP, uses=used),
                }
            if code is None:
                group.valid(comment, flags, output=output, **given)
            else:
                group.invalid(code, comment, flags, output=output, **given)

        right = [_finding(one) for one in entries]
        judge("nothing found", ["Findings"], right, right, [0, 0])
        for status in (400, 406, 419, 500, 502):
            faulty = [_finding(entries[0], status), right[1]]
            judge(f"rank 0 found {status}", ["Findings"], faulty, right, [status, 0])
            judge(f"rank 1 found {status}", ["Findings"], right, faulty, [status, 0])
            both = [_finding(entries[0], 501), _finding(entries[1], status)]
            judge(
                f"both found something, rank 0's {status} counts",
                ["Findings"],
                faulty,
                both,
                [status, status],
            )
        for place in (0, 1):
            other = list(right)
            other[place] = {**right[place], "digest": bytes(16)}
            reasons = [607 * (index == place) for index in range(2)]
            judge(
                f"digests of request {place} differ",
                ["OtherDigest"],
                right,
                other,
                reasons,
                "PREPARED_MISMATCH",
            )
            for field, value in (("session_id", bytes(16)), ("generation", 77), ("round", 77)):
                moved = list(right)
                moved[place] = {**right[place], field: value}
                judge(
                    f"an answer for another {field} at {place}",
                    ["OtherPlace"],
                    right,
                    moved,
                    None,
                    "RANK_SPLIT",
                )
        judge("an answer about one request", ["OtherPlace"], right, right[:1], None, "RANK_SPLIT")
        judge(
            "an answer about three", ["OtherPlace"], right, [*right, right[0]], None, "RANK_SPLIT"
        )
        judge("an answer about none", ["OtherPlace"], right, [], None, "RANK_SPLIT")
        judge("the answers are swapped", ["OtherPlace"], right, right[::-1], None, "RANK_SPLIT")


# --- questions -----------------------------------------------------------------------------


def _questions(file: File) -> None:
    """Rank 1 between Prepare and Decide; the last message of each list is judged."""
    entries = _entries()
    right = [_finding(one) for one in entries]
    faulty = [_finding(entries[0], 406), right[1]]
    for found, doomed, uses, what in (
        (right, [], [True, True], "nothing found"),
        (faulty, [(entries[0], 406)], [False, True], "rank 1 found 406"),
        (right, [(entries[1], 400)], [True, False], "rank 0 found 400"),
    ):
        group = file.group(
            "answer_rank_zero",
            step=scene.step(*entries, number=_STEP),
            findings=_findings("Prepared", *found),
        )
        prepare = _findings("Prepare", *right)
        prepared = _findings("Prepared", *found)
        invalidate = _invalidation("Invalidate", *doomed)
        invalidated = _invalidation("Invalidated", *doomed)
        decide = scene.body("Decide", step=_STEP, uses=uses)
        path = [prepare, invalidate, decide] if doomed else [prepare, decide]

        def take(
            comment: str,
            flags: list[str],
            messages: Sequence[bytes],
            answer: bytes | None,
            group: Group = group,
            what: str = what,
        ) -> None:
            group.valid(
                f"{what}; {comment}", flags, messages=list(messages), output={"answer": answer}
            )

        def refuse(
            code: str,
            comment: str,
            flags: list[str],
            messages: Sequence[bytes],
            group: Group = group,
            what: str = what,
        ) -> None:
            group.invalid(code, f"{what}; {comment}", flags, messages=list(messages))

        take("Prepare", ["Question"], path[:1], prepared)
        take("Prepare twice", ["Again"], [prepare, prepare], prepared)
        take("Decide", ["Question"], path, None)
        if doomed:
            take("Invalidate", ["Question"], path[:2], invalidated)
            take("Invalidate twice", ["Again"], [prepare, invalidate, invalidate], invalidated)
            take(
                "Prepare again after Invalidate",
                ["Again"],
                [prepare, invalidate, prepare],
                prepared,
            )
        other = _findings("Prepare", _finding(entries[0], 417), right[1])
        refuse(
            "DECISION_MISMATCH",
            "Prepare again with another finding",
            ["OtherContent"],
            [prepare, other],
        )
        refuse("STEP_STALE", "Decide before Prepare", ["OutOfOrder"], [decide])
        refuse(
            "STEP_STALE",
            "Invalidate before Prepare",
            ["OutOfOrder"],
            [_invalidation("Invalidate", (entries[0], 406))],
        )
        if not doomed:
            refuse(
                "STEP_STALE",
                "Invalidate after Decide",
                ["OutOfOrder"],
                [*path, _invalidation("Invalidate", (entries[0], 406))],
            )
        refuse(
            "STEP_STALE",
            "Decision before Decide",
            ["OutOfOrder"],
            [prepare, decision(number=_STEP)],
        )
        for wrong in ([True, True], [True, False], [False, True], [False, False]):
            if wrong != uses:
                body = scene.body("Decide", step=_STEP, uses=wrong)
                refuse(
                    "DECISION_MISMATCH",
                    f"Decide {wrong} where {uses} is right",
                    ["OtherUse"],
                    [*path[:-1], body],
                )
        for wrong in ([], uses[:1], [*uses, False], [*uses, True]):
            body = scene.body("Decide", step=_STEP, uses=wrong)
            refuse(
                "DECISION_MISMATCH",
                f"Decide about {len(wrong)} requests of two, {wrong}",
                ["OtherUse"],
                [*path[:-1], body],
            )
        if doomed:
            again = _invalidation("Invalidate", (doomed[0][0], 500))
            refuse(
                "DECISION_MISMATCH",
                "Invalidate again with another reason",
                ["OtherContent"],
                [prepare, invalidate, again],
            )
        for one, where in (
            ({**entries[0], "generation": 4}, "another generation"),
            ({**entries[0], "session_id": bytes(16)}, "another session"),
        ):
            refuse(
                "DECISION_MISMATCH",
                f"Invalidate of {where}",
                ["OtherPlace"],
                [prepare, _invalidation("Invalidate", (one, 406))],
            )


# --- verdicts ------------------------------------------------------------------------------

_DRAFTS: Final = (2, 3, 4)


def verdict(one: Values, given: tuple[Any, ...], depth: int, changes: Values) -> Values:
    """Accepted drafts, tokens and last token; what follows from them, unless it is changed."""
    accepted, tokens, last = given
    rejected = int(last == 1)
    values = {
        **_place(one),
        "status": 0,
        "accepted": accepted,
        "rejected": rejected,
        "unverified": depth - accepted - rejected,
        "last": last,
        "finish": 0,
        "tokens": tokens,
        **changes,
    }
    return {
        **values,
        "tokens": pack.tokens(values["tokens"])
        if not isinstance(values["tokens"], bytes)
        else values["tokens"],
    }


def _verdicts(*made: Values) -> bytes:
    listed = [scene.record("VerdictEntry", one) for one in made]
    return scene.body("Verdicts", step=_STEP, entries=listed)


def _judged(file: File) -> None:
    one = _entries()[0]
    place: Values = {"step": scene.step(one, number=_STEP), "entry": 0, "legal_size": LEGAL_SIZE}
    usual: Values = {"drafts": list(_DRAFTS), "room": 10, "stop_tokens": [5, 8]}

    def group_of(**changes: Any) -> Group:
        return file.group("check_verdict", **place, **{**usual, **changes})

    group = group_of()

    def take(
        comment: str,
        flags: list[str],
        *given: Any,
        group: Group = group,
        depth: int = 3,
        **changes: Any,
    ) -> None:
        group.valid(comment, flags, body=_verdicts(verdict(one, given, depth, changes)))

    def refuse(
        comment: str,
        flags: list[str],
        *given: Any,
        group: Group = group,
        depth: int = 3,
        **changes: Any,
    ) -> None:
        body = _verdicts(verdict(one, given, depth, changes))
        group.invalid("RANK_SPLIT", comment, flags, body=body)

    for accepted in range(3):
        tokens = [*_DRAFTS[:accepted], 9]
        take(f"{accepted} accepted, then a correction", ["Verdict"], accepted, tokens, 1)
        take(
            f"{accepted} accepted, then a correction that is a stop",
            ["Verdict"],
            accepted,
            [*_DRAFTS[:accepted], 5],
            1,
            finish=1,
        )
        refuse(
            f"{accepted} accepted, a stop that is not called one",
            ["NoVerdict"],
            accepted,
            [*_DRAFTS[:accepted], 5],
            1,
        )
        refuse(
            f"{accepted} accepted, no stop that is called one",
            ["NoVerdict"],
            accepted,
            tokens,
            1,
            finish=1,
        )
        refuse(
            f"{accepted} accepted, room left that is called none",
            ["NoVerdict"],
            accepted,
            tokens,
            1,
            finish=2,
        )
        refuse(f"{accepted} accepted, then a bonus", ["NoVerdict"], accepted, tokens, 2)
        refuse(f"{accepted} accepted, then a target-only token", ["NoVerdict"], accepted, tokens, 3)
        refuse(
            f"{accepted} accepted, then nothing",
            ["NoVerdict"],
            accepted,
            list(_DRAFTS[:accepted]),
            0,
        )
        refuse(
            f"{accepted} accepted, the correction is missing",
            ["NoVerdict"],
            accepted,
            list(_DRAFTS[:accepted]),
            1,
        )
        refuse(f"{accepted} accepted, two corrections", ["NoVerdict"], accepted, [*tokens, 9], 1)
        refuse(
            f"{accepted} accepted, no rejection counted",
            ["NoVerdict"],
            accepted,
            tokens,
            1,
            rejected=0,
            unverified=3 - accepted,
        )
        for token in (-1, LEGAL_SIZE, (1 << 31) - 1):
            refuse(
                f"{accepted} accepted, the correction is {token}",
                ["NoVerdict"],
                accepted,
                [*_DRAFTS[:accepted], token],
                1,
            )
    take("all accepted, then a bonus", ["Verdict"], 3, [*_DRAFTS, 9], 2)
    take("all accepted, then a bonus that is a stop", ["Verdict"], 3, [*_DRAFTS, 8], 2, finish=1)
    refuse("all accepted, no bonus, no end", ["NoVerdict"], 3, list(_DRAFTS), 0)
    refuse("all accepted, then a correction", ["NoVerdict"], 3, [*_DRAFTS, 9], 1, unverified=0)
    refuse("four of three accepted", ["NoVerdict"], 4, [*_DRAFTS, 9, 9], 2, unverified=0)
    for field, value in (
        ("unverified", 0),
        ("unverified", 255),
        ("rejected", 2),
        ("rejected", 0),
        ("accepted", 0),
        ("accepted", 2),
    ):
        change: Values = {field: value}
        refuse(
            f"{field} {value} after one accepted and a correction",
            ["NoVerdict"],
            1,
            [2, 9],
            1,
            **change,
        )
    refuse(
        "accepted + rejected + unverified is 256 + 3",
        ["NoVerdict"],
        3,
        [*_DRAFTS, 9],
        2,
        unverified=255,
        rejected=1,
    )
    for last in (4, 255):
        refuse(f"the last token is a {last}", ["NoVerdict"], 3, [*_DRAFTS, 9], 2, last=last)
    for finish in (3, 255):
        refuse(f"finished by {finish}", ["NoVerdict"], 1, [2, 9], 1, finish=finish)
    refuse("the accepted tokens are not the drafts", ["NoVerdict"], 2, [3, 2, 9], 1)
    refuse("the first accepted token is another", ["NoVerdict"], 2, [9, 3, 9], 1)
    refuse("half a token", ["NoVerdict"], 1, [2, 9], 1, tokens=pack.tokens([2, 9])[:-1])
    refuse("no tokens", ["NoVerdict"], 0, [], 0)
    elsewhere: Values = {"session_id": OTHER_SESSION, "generation": 2, "round": 5}
    for field in elsewhere:
        change = {field: elsewhere[field]}
        refuse(f"a verdict for another {field}", ["OtherPlace"], 1, [2, 9], 1, **change)
    for room in (1, 2, 3, 4):
        tight = group_of(room=room)
        for accepted in range(3):
            count = accepted + 1
            tokens = [*_DRAFTS[:accepted], 9]
            what = f"room for {room}, {count} tokens"
            if count == room:
                take(what, ["Verdict"], accepted, tokens, 1, group=tight, finish=2)
                refuse(f"{what}, and no end", ["TooMany"], accepted, tokens, 1, group=tight)
            elif count > room:
                refuse(what, ["TooMany"], accepted, tokens, 1, group=tight)
                refuse(
                    f"{what}, ended by length",
                    ["TooMany"],
                    accepted,
                    tokens,
                    1,
                    group=tight,
                    finish=2,
                )
        if room == 4:
            take(
                "room for 4, the last of them a bonus",
                ["Verdict"],
                3,
                [*_DRAFTS, 9],
                2,
                group=tight,
                finish=2,
            )
            refuse("room for 4, a bonus, and no end", ["TooMany"], 3, [*_DRAFTS, 9], 2, group=tight)
        else:
            take(
                f"room for {room}, the last of them a draft",
                ["Verdict"],
                room,
                list(_DRAFTS[:room]),
                0,
                group=tight,
                finish=2,
            )
    stopping = group_of(stop_tokens=[3])
    take("the second draft is a stop", ["Verdict"], 2, [2, 3], 0, group=stopping, finish=1)
    refuse("a correction after an accepted stop", ["TooMany"], 2, [2, 3, 9], 1, group=stopping)
    refuse("a draft after an accepted stop", ["TooMany"], 3, [2, 3, 4], 0, group=stopping, finish=2)
    refuse("a bonus after an accepted stop", ["TooMany"], 3, [2, 3, 4, 9], 2, group=stopping)
    alone = group_of(drafts=[])
    take("no drafts, a token of the target's own", ["Verdict"], 0, [9], 3, group=alone, depth=0)
    take("no drafts, a stop", ["Verdict"], 0, [5], 3, group=alone, depth=0, finish=1)
    for last, what in ((0, "no"), (1, "a correction's"), (2, "a bonus's")):
        refuse(
            f"no drafts, {what} token",
            ["NoVerdict"],
            0,
            [9] if last else [],
            last,
            group=alone,
            depth=0,
            unverified=0,
            rejected=int(last == 1),
        )
    refuse(
        "no drafts, one accepted", ["NoVerdict"], 1, [2, 9], 3, group=alone, depth=0, unverified=0
    )
    ended: Values = {"rejected": 0, "unverified": 0}
    for status in (600, 603, 702, 703, 704, 804):
        take(f"ended with {status}", ["Ends"], 0, [], 0, status=status, **ended)
        refuse(
            f"ended with {status}, and a token",
            ["Ends", "NoVerdict"],
            0,
            [9],
            0,
            status=status,
            **ended,
        )
        refuse(
            f"ended with {status}, and an accepted draft",
            ["Ends", "NoVerdict"],
            1,
            [],
            0,
            status=status,
            **ended,
        )
    for status in (1, 608, 65535, (1 << 32) - 1):
        refuse(
            f"ended with {status}, which is not registered",
            ["Ends", "NoVerdict"],
            0,
            [],
            0,
            status=status,
            **ended,
        )


# --- the decision --------------------------------------------------------------------------


def _decisions(file: File) -> None:
    """Rank 1 owns the first request of two."""
    first, second = _entries()
    own = verdict(first, (1, [2, 9], 1), 3, {})
    params = {
        "step": scene.step(first, second, number=_STEP),
        "drafts": [list(_DRAFTS), [4, 1]],
        "prefixes": [list(PREFIX), list(_FAR)],
        "reasons": [0, 0],
        "rooms": [10, 10],
        "stop_tokens": [5],
        "legal_size": LEGAL_SIZE,
        "verdicts": _verdicts(own),
    }

    def entry(
        one: Values,
        prefix: Sequence[int],
        depth: int,
        accepted: int,
        tokens: Sequence[int],
        last: int,
        **changes: Any,
    ) -> Values:
        rejected = int(last == 1)
        return {
            "kind": 1,
            **_place(one),
            "reason": 0,
            "depth": depth,
            "accepted": accepted,
            "rejected": rejected,
            "unverified": depth - accepted - rejected,
            "last": last,
            "finish": 0,
            "token_count": len(tokens),
            "tokens": pack.tokens(tokens).ljust(24, b"\0"),
            "position": len(prefix) + len(tokens),
            "digest": pack.prefix_digest(one["session_id"], [*prefix, *tokens]),
            **changes,
        }

    def end(one: Values, prefix: Sequence[int], depth: int, reason: int, **changes: Any) -> Values:
        return entry(one, prefix, depth, 0, [], 0, **{"kind": 2, "reason": reason, **changes})

    mine = entry(first, PREFIX, 3, 1, [2, 9], 1)
    theirs = entry(second, _FAR, 2, 2, [4, 1, 6], 2)
    group = file.group("check_decision", **params)

    def take(comment: str, flags: list[str], *entries: Values) -> None:
        body = decision(*entries, number=_STEP)
        group.valid(
            comment, flags, body=body, output={"digest": pack.h128(b"PP1-decision-v2", body)}
        )

    def refuse(code: str, comment: str, flags: list[str], *entries: Values) -> None:
        group.invalid(code, comment, flags, body=decision(*entries, number=_STEP))

    take("rank 1's own verdict and rank 0's", ["Decision"], mine, theirs)
    for accepted, tokens, last in ((0, [7], 1), (1, [4, 0], 1), (2, [4, 1, 0], 2)):
        take(
            f"rank 0's verdict accepts {accepted} of two",
            ["Decision", "Foreign"],
            mine,
            entry(second, _FAR, 2, accepted, tokens, last),
        )
    for reason in (600, 603, 702):
        take(
            f"rank 0 ends its request with {reason}",
            ["Decision", "Ends"],
            mine,
            end(second, _FAR, 2, reason),
        )
        take(
            f"rank 0 ends rank 1's request with {reason}",
            ["Decision", "Ends"],
            end(first, PREFIX, 3, reason),
            theirs,
        )
    changes: tuple[tuple[str, Any], ...] = (
        ("kind", 0),
        ("kind", 3),
        ("session_id", bytes(16)),
        ("generation", 4),
        ("round", 5),
        ("reason", 500),
        ("depth", 2),
        ("accepted", 0),
        ("accepted", 2),
        ("rejected", 0),
        ("unverified", 2),
        ("last", 2),
        ("last", 0),
        ("finish", 1),
        ("token_count", 1),
        ("token_count", 3),
        ("tokens", pack.tokens([2, 8]).ljust(24, b"\0")),
        ("tokens", pack.tokens([9, 2]).ljust(24, b"\0")),
        ("tokens", pack.tokens([2, 9, 9]).ljust(24, b"\0")),
        ("tokens", bytes(24)),
        ("position", len(PREFIX) + 1),
        ("position", len(PREFIX)),
        ("digest", bytes(16)),
        ("digest", pack.prefix_digest(SESSION, PREFIX)),
    )
    for field, value in changes:
        shown = value.hex()[:16] if isinstance(value, bytes) else value
        flag = "Ledger" if field in ("position", "digest") else "OwnVerdict"
        refuse(
            "DECISION_MISMATCH",
            f"rank 1's own request with {field} {shown}",
            [flag],
            {**mine, field: value},
            theirs,
        )
    refuse(
        "DECISION_MISMATCH",
        "another verdict on rank 1's request, whole in itself",
        ["OwnVerdict"],
        entry(first, PREFIX, 3, 0, [9], 1),
        theirs,
    )
    foreign: tuple[tuple[str, str, Any], ...] = (
        ("RANK_SPLIT", "session_id", bytes(16)),
        ("RANK_SPLIT", "generation", 2),
        ("RANK_SPLIT", "round", 8),
        ("RANK_SPLIT", "accepted", 1),
        ("RANK_SPLIT", "rejected", 1),
        ("RANK_SPLIT", "unverified", 1),
        ("RANK_SPLIT", "last", 1),
        ("RANK_SPLIT", "last", 9),
        ("RANK_SPLIT", "finish", 1),
        ("RANK_SPLIT", "finish", 9),
        ("RANK_SPLIT", "token_count", 2),
        ("RANK_SPLIT", "tokens", pack.tokens([1, 4, 6]).ljust(24, b"\0")),
        ("RANK_SPLIT", "tokens", pack.tokens([4, 1, 10]).ljust(24, b"\0")),
        ("DECISION_MISMATCH", "kind", 0),
        ("DECISION_MISMATCH", "kind", 3),
        ("DECISION_MISMATCH", "depth", 3),
        ("DECISION_MISMATCH", "reason", 406),
        ("DECISION_MISMATCH", "position", 5),
        ("DECISION_MISMATCH", "digest", bytes(16)),
        ("DECISION_MISMATCH", "tokens", pack.tokens([4, 1, 6, 6]).ljust(24, b"\0")),
    )
    for code, field, value in foreign:
        shown = value.hex()[:24] if isinstance(value, bytes) else value
        flag = "Ledger" if field in ("position", "digest") else "Foreign"
        refuse(
            code, f"rank 0's request with {field} {shown}", [flag], mine, {**theirs, field: value}
        )
    for reason in (0, 1, 608, (1 << 32) - 1):
        refuse(
            "DECISION_MISMATCH",
            f"an end with reason {reason}",
            ["Ends"],
            mine,
            end(second, _FAR, 2, reason),
        )
    refuse(
        "DECISION_MISMATCH",
        "an end that commits a token",
        ["Ends"],
        mine,
        end(second, _FAR, 2, 603, token_count=1, position=4),
    )
    refuse(
        "DECISION_MISMATCH",
        "an end that moves the position",
        ["Ends", "Ledger"],
        mine,
        end(second, _FAR, 2, 603, position=4),
    )
    refuse(
        "DECISION_MISMATCH",
        "an end with unverified drafts left out",
        ["Ends"],
        mine,
        end(second, _FAR, 2, 603, unverified=0),
    )
    refuse("RANK_SPLIT", "the entries are swapped", ["Foreign", "OwnVerdict"], theirs, mine)
    for name, value in empty_entry().items():
        other: Any = b"\x01" + value[1:] if isinstance(value, bytes) else 1
        refuse(
            "DECISION_MISMATCH",
            f"the third entry has a {name}",
            ["Padding"],
            mine,
            theirs,
            {**empty_entry(), name: other},
        )
    refuse(
        "DECISION_MISMATCH",
        "the fourth entry repeats the first",
        ["Padding"],
        mine,
        theirs,
        empty_entry(),
        mine,
    )
    _after_discard(file, params, mine, entry)


def _after_discard(file: File, params: Values, mine: Values, entry: Any) -> None:
    """The second proposal was discarded: its request goes target-only, with the reason."""
    second = _entries()[1]
    changed = {**params, "drafts": [list(_DRAFTS), []], "reasons": [0, 406]}
    group = file.group("check_decision", **changed)
    right = entry(second, _FAR, 0, 0, [6], 3, reason=406)
    body = decision(mine, right, number=_STEP)
    group.valid(
        "a target-only token with the reason of the discard",
        ["Decision"],
        body=body,
        output={"digest": pack.h128(b"PP1-decision-v2", body)},
    )
    for what, code, other in (
        ("without its reason", "DECISION_MISMATCH", {**right, "reason": 0}),
        ("with another reason", "DECISION_MISMATCH", {**right, "reason": 400}),
        ("with the depth of the step", "DECISION_MISMATCH", {**right, "depth": 2}),
        ("as a bonus", "RANK_SPLIT", {**right, "last": 2}),
        ("as an accepted draft", "RANK_SPLIT", {**right, "last": 0, "accepted": 1}),
        ("and a second token", "RANK_SPLIT", entry(second, _FAR, 0, 0, [6, 6], 3, reason=406)),
    ):
        group.invalid(
            code,
            f"a target-only token {what}",
            ["Foreign"],
            body=decision(mine, other, number=_STEP),
        )


def make() -> File:
    """The file."""
    file = File("pair", "PP1 agreement of the ranks", "06 The pair", NOTES)
    _merging(file)
    _questions(file)
    _judged(file)
    _decisions(file)
    return file
