"""Checksums and digests of 04 to 06, each with the value that is claimed for it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from .. import pack, scene
from ..layout import RECORDS
from ..scene import MASS, OTHER_SESSION, PREFIX, SESSION, Values
from ..suite import File, Note
from .numbers import f64

NOTES: Final = {
    "Right": Note("the value of these bytes", ("04-V-3",), "nothing agrees"),
    "OtherField": Note(
        "the value of bytes that differ in one field",
        ("04-V23", "04-V37", "06-P-7", "06-P-14"),
        "bytes of one place are taken for another's",
    ),
    "Boundary": Note(
        "the same bytes, cut elsewhere",
        ("04-V23", "04-V37"),
        "two lists of which one is a part of the other cannot be told apart",
    ),
    "OtherOrder": Note(
        "a value with its bytes reversed, or with a bit changed",
        ("04-V23", "05-S-6"),
        "a value is compared in part",
    ),
    "OtherPerson": Note(
        "a digest under another personalisation",
        ("04-V21", "05-S-6", "05-S-7"),
        "one digest stands for two things",
    ),
    "Empty": Note("nothing in a list", ("04-V37", "06-P-7"), "no value for an empty list"),
}

Make = Callable[[Values], int | bytes]


def _claims(
    file: File,
    operation: str,
    code: str,
    name: str,
    make: Make,
    base: Values,
    changes: Mapping[str, tuple[Any, ...]],
    cuts: tuple[Values, ...] = (),
) -> None:
    """The right value of each variant, and every other variant's value claimed for the base."""
    group = file.group(operation)
    right = make(base)

    def given(values: Values, value: int | bytes) -> Values:
        return {**values, name: value}

    group.valid("the usual one", ["Right"], **given(base, right))
    for field, others in changes.items():
        for other in others:
            varied = {**base, field: other}
            if varied == base:
                continue
            shown = other.hex()[:16] if isinstance(other, bytes) else str(other)[:60]
            value = make(varied)
            empty = ["Empty"] if other == [] else []
            group.valid(f"{field} {shown}", ["Right", *empty], **given(varied, value))
            if value != right:
                group.invalid(
                    code, f"the value for {field} {shown}", ["OtherField"], **given(base, value)
                )
    for cut in cuts:
        varied = {**base, **cut}
        group.valid(f"{', '.join(cut)} cut elsewhere", ["Right"], **given(varied, make(varied)))
        group.invalid(
            code,
            f"the value for {', '.join(cut)} cut elsewhere",
            ["Boundary"],
            **given(base, make(varied)),
        )
    size = 8 if isinstance(right, int) else len(right)
    data = right.to_bytes(size, "little") if isinstance(right, int) else right
    for what, other_data in (
        ("its bytes reversed", data[::-1]),
        ("its first bit changed", bytes([data[0] ^ 1]) + data[1:]),
        ("its last bit changed", data[:-1] + bytes([data[-1] ^ 0x80])),
        ("zero", bytes(size)),
    ):
        value = int.from_bytes(other_data, "little") if isinstance(right, int) else other_data
        group.invalid(code, what, ["OtherOrder"], **given(base, value))


_IDS: Final = (bytes(16), OTHER_SESSION, SESSION[::-1], b"\xff" * 16)
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1


def _row(file: File) -> None:
    base: Values = {
        "session_id": SESSION,
        "slot": 1,
        "generation": 3,
        "round": 4,
        "position": 9,
        "preceding": [5, 6],
        "token": 7,
        "representation": 2,
        "entries": 2,
        "payload": scene.sparse({7: MASS // 2, 8: MASS // 2}),
    }

    def make(v: Values) -> int:
        return pack.row_checksum(
            v["session_id"],
            v["slot"],
            v["generation"],
            v["round"],
            v["position"],
            v["preceding"],
            v["token"],
            v["representation"],
            v["entries"],
            v["payload"],
        )

    changes = {
        "session_id": _IDS,
        "slot": (0, 2, 255),
        "generation": (1, 2, 4, 1 << 32, (1 << 63) - 1),
        "round": (1, 3, 5, _U32),
        "position": (8, 10, 265, (1 << 31) - 1),
        "preceding": ([], [5], [6, 5], [5, 6, 7], [5, -6], [5, 7]),
        "token": (0, 6, -1, 8, (1 << 31) - 1, -(1 << 31)),
        "representation": (1, 3, 255),
        "entries": (1, 3, 12, _U32),
        "payload": (
            b"",
            scene.sparse({7: MASS}),
            scene.sparse({7: MASS // 4, 8: 3 * MASS // 4}),
            base["payload"] + bytes(8),
            base["payload"][:-1],
            bytes(512),
        ),
    }
    moved = (
        {"preceding": [5], "payload": pack.tokens([6]) + base["payload"]},
        {"preceding": [], "payload": pack.tokens([5, 6]) + base["payload"]},
        {"generation": 3 << 32 | 3, "round": 0x00040000},
    )
    _claims(file, "row_checksum", "ROW_CHECKSUM", "checksum", make, base, changes, moved)


def _completion(file: File) -> None:
    base: Values = {
        "session_id": SESSION,
        "slot": 1,
        "generation": 3,
        "round": 4,
        "status": 0,
        "reply_bytes": 48,
        "row_checksums": [0x1122334455667788, 0x99AABBCCDDEEFF00],
    }

    def make(v: Values) -> int:
        return pack.completion_checksum(
            v["session_id"],
            v["slot"],
            v["generation"],
            v["round"],
            v["status"],
            v["reply_bytes"],
            v["row_checksums"],
        )

    first, second = base["row_checksums"]
    changes = {
        "session_id": _IDS,
        "slot": (0, 2, 255),
        "generation": (1, 2, 4, (1 << 63) - 1),
        "round": (1, 3, 5, _U32),
        "status": (502, 500, 1, _U32),
        "reply_bytes": (0, 47, 49, 1 << 32, 1 << 63, _U64),
        "row_checksums": (
            [],
            [first],
            [second, first],
            [first, second, 0],
            [first, second ^ 1],
            [0, 0],
            [_U64] * 5,
        ),
    }
    _claims(file, "completion_checksum", "COMPLETION_CHECKSUM", "checksum", make, base, changes)


def _proposal(file: File) -> None:
    entry = scene.sparse_entry()
    rows, _ = scene.chain(entry)
    base: Values = {
        "step": scene.step(entry),
        "entry": 0,
        "tokens": [row["token"] for row in rows],
        "row_checksums": [row["checksum"] for row in rows],
    }
    entries: dict[bytes, Values] = {base["step"]: entry}

    def make(v: Values) -> bytes:
        encoded = pack.packed(scene.record("StepEntry", entries[v["step"]]))
        return pack.proposal_digest(encoded, v["tokens"], v["row_checksums"])

    varied: list[bytes] = []
    for field, values in (
        ("session_id", (OTHER_SESSION,)),
        ("slot", (1, 3)),
        ("generation", (2, 1 << 40)),
        ("round", (3, 5, _U32)),
        ("position", (6, 8, 300)),
        ("digest", (bytes(16), pack.prefix_digest(SESSION, PREFIX[:-1]))),
        ("depth", (4, 0)),
        ("temperature", (0.5, 1.0000000000000002)),
        ("representation", (1,)),
        ("support", (0, 3, 32)),
        ("context", (0, 98, _U64)),
    ):
        for value in values:
            other = {**entry, field: value}
            varied.append(scene.step(other))
            entries[varied[-1]] = other
    tokens, sums = base["tokens"], base["row_checksums"]
    changes = {
        "step": tuple(varied),
        "tokens": ([tokens[0] ^ 1, *tokens[1:]], [*tokens[:-1], 0], tokens[::-1]),
        "row_checksums": ([sums[0] ^ 1, *sums[1:]], [*sums[:-1], 0], sums[::-1]),
    }
    cuts: tuple[Values, ...] = (
        {"tokens": [], "row_checksums": []},
        {"tokens": tokens[:4], "row_checksums": sums[:4]},
    )
    _claims(file, "proposal_digest", "PREPARED_MISMATCH", "digest", make, base, changes, cuts)


def commit_entry(**changes: Any) -> Values:
    """A decision entry: two drafts of five and a correction."""
    tokens = [2, 3, 9]
    return {
        "kind": 1,
        "session_id": SESSION,
        "generation": 3,
        "round": 4,
        "reason": 0,
        "depth": 5,
        "accepted": 2,
        "rejected": 1,
        "unverified": 2,
        "last": 1,
        "finish": 0,
        "token_count": 3,
        "tokens": pack.tokens(tokens).ljust(24, b"\0"),
        "position": len(PREFIX) + 3,
        "digest": pack.prefix_digest(SESSION, [*PREFIX, *tokens]),
        **changes,
    }


def empty_entry() -> Values:
    """The entry that fills a record up."""
    values: dict[str, Any] = {field.name: 0 for field in RECORDS["DecisionEntry"]}
    return {**values, "session_id": bytes(16), "tokens": bytes(24), "digest": bytes(16)}


def decision(*entries: Values, number: int = 1) -> bytes:
    """The body of a ``Decision``: always four entries."""
    filled = [*entries, *([empty_entry()] * (4 - len(entries)))]
    made = [scene.record("DecisionEntry", entry) for entry in filled]
    return scene.body("Decision", step=number, entries=made)


def _decision(file: File) -> None:
    group = file.group("decision_digest")
    bodies = {
        "one request": decision(commit_entry()),
        "two requests": decision(commit_entry(), commit_entry(session_id=OTHER_SESSION)),
        "another step": decision(commit_entry(), number=2),
        "nothing": decision(),
        "four requests": decision(*[commit_entry(session_id=bytes([n]) * 16) for n in range(4)]),
        "an end": decision(
            {
                **empty_entry(),
                "kind": 2,
                "session_id": SESSION,
                "generation": 3,
                "round": 4,
                "reason": 603,
                "depth": 5,
                "unverified": 5,
            }
        ),
    }
    for field, value in (
        ("accepted", 3),
        ("rejected", 0),
        ("unverified", 1),
        ("last", 2),
        ("finish", 1),
        ("token_count", 2),
        ("reason", 500),
        ("round", 5),
        ("generation", 4),
        ("position", 11),
        ("depth", 4),
        ("kind", 2),
        ("digest", bytes(16)),
        ("tokens", bytes(24)),
    ):
        bodies[f"one request with {field} {value!r:.20}"] = decision(commit_entry(**{field: value}))
    digests = {what: pack.h128(b"PP1-decision-v2", body) for what, body in bodies.items()}
    right = bodies["one request"]
    for what, body in bodies.items():
        group.valid(what, ["Right"], body=body, digest=digests[what])
        if body != right:
            group.invalid(
                "RANK_SPLIT",
                f"the value for {what}",
                ["OtherField"],
                body=right,
                digest=digests[what],
            )
    for person in (b"PP1-decision-v1", b"PP1-proposal-v2", b"PP1-prefix-v2", b""):
        group.invalid(
            "RANK_SPLIT",
            f"under the person {person.decode()!r}",
            ["OtherPerson"],
            body=right,
            digest=pack.h128(person, right),
        )


def _prefix(file: File) -> None:
    group = file.group("prefix_digest")
    texts: tuple[tuple[bytes, list[int]], ...] = (
        (SESSION, []),
        (SESSION, [0]),
        (SESSION, [0, 0]),
        (SESSION, [1]),
        (SESSION, list(PREFIX)),
        (SESSION, list(PREFIX[::-1])),
        (SESSION, [*PREFIX, 0]),
        (OTHER_SESSION, []),
        (OTHER_SESSION, list(PREFIX)),
        (bytes(16), []),
        (SESSION, [256]),
        (SESSION, [-1]),
        (SESSION, [(1 << 31) - 1]),
        (SESSION, [-(1 << 31)]),
        (SESSION, [7] * 1000),
    )
    right = pack.prefix_digest(SESSION, PREFIX)
    for session_id, tokens in texts:
        digest = pack.prefix_digest(session_id, tokens)
        what = f"{len(tokens)} tokens of session {session_id.hex()[:4]}, last {tokens[-1:]}"
        group.valid(
            what,
            ["Right", *([] if tokens else ["Empty"])],
            session_id=session_id,
            tokens=tokens,
            digest=digest,
        )
        if digest != right:
            group.invalid(
                "PREFIX_MISMATCH",
                f"the value for {what}",
                ["OtherField"],
                session_id=SESSION,
                tokens=list(PREFIX),
                digest=digest,
            )
    whole = pack.h128(b"PP1-prefix-v2", SESSION + pack.tokens(PREFIX))
    group.invalid(
        "PREFIX_MISMATCH",
        "one hash over the whole prefix",
        ["OtherField"],
        session_id=SESSION,
        tokens=list(PREFIX),
        digest=whole,
    )
    for person in (b"PP1-prefix-v1", b"PP1-decision-v2", b""):
        digest = pack.h128(person, SESSION)
        group.invalid(
            "PREFIX_MISMATCH",
            f"under the person {person.decode()!r}",
            ["OtherPerson"],
            session_id=SESSION,
            tokens=[],
            digest=digest,
        )


def _context(file: File) -> None:
    base: Values = {
        "target_checkpoint": "target-a",
        "processors": "policy-a",
        "temperature": 1.0,
        "stop_tokens": [2, 5],
    }
    written = dict(base)

    def make(v: Values) -> int:
        return pack.context(
            v["target_checkpoint"], v["processors"], v["temperature"], v["stop_tokens"]
        )

    group = file.group("context_version")
    right = make(written)
    variants: list[tuple[str, Values]] = [("the usual one", {})]
    variants += [
        (f"target {value!r:.12}", {"target_checkpoint": value})
        for value in ("", "target-b", "target-", "\u00e9\u00e9", "t" * 200)
    ]
    variants += [
        (f"processors {value!r:.12}", {"processors": value})
        for value in ("", "policy-b", "apolicy-a")
    ]
    variants += [
        (f"temperature {value!r}", {"temperature": value})
        for value in (0.0, 0.01, 0.7, 1.0000000000000002, 100.0)
    ]
    variants += [
        (f"stop tokens {value}", {"stop_tokens": value})
        for value in ([], [2], [2, 5, 9], [2, 6], [-1, 2])
    ]
    variants += [
        (
            "a letter from one name to the other",
            {"target_checkpoint": "target-", "processors": "apolicy-a"},
        )
    ]
    for what, change in variants:
        varied = {**base, **change}
        value = make(varied)
        shown = {**varied, "temperature": f64(varied["temperature"])}
        group.valid(what, ["Right"], **shown, context=value)
        if value != right:
            usual = {**base, "temperature": f64(1.0)}
            group.invalid(
                "CONTEXT_MISMATCH", f"the value for {what}", ["OtherField"], **usual, context=value
            )
    unsorted = {**base, "stop_tokens": [5, 2], "temperature": f64(1.0)}
    group.valid("stop tokens in another order are the same", ["Right"], **unsorted, context=right)


def make_vocabulary() -> File:
    """The vocabulary hash."""
    file = File(
        "vocabulary",
        "PP1 vocabulary hash",
        "01 Distribution: Vocabulary",
        {
            "Vocabulary": Note(
                "an id map by its hash", ("01-D-1", "05-S-9"), "valid bytes about different tokens"
            ),
            "Boundary": Note(
                "the same bytes, cut into other tokens",
                ("01-D-1",),
                "two vocabularies with one hash",
            ),
            "Empty": Note(
                "no tokens, or tokens without bytes",
                ("01-D-1",),
                "no hash for what a vocabulary may hold",
            ),
        },
    )
    group = file.group("vocabulary_hash")
    usual = [b"a", b"bc", b"d"]
    maps: tuple[tuple[str, list[str], list[bytes]], ...] = (
        ("three tokens", ["Vocabulary"], usual),
        ("the bytes of ids 0 and 1 cut elsewhere", ["Boundary"], [b"ab", b"c", b"d"]),
        ("the bytes of ids 1 and 2 cut elsewhere", ["Boundary"], [b"a", b"b", b"cd"]),
        ("one token of all bytes", ["Boundary"], [b"abcd"]),
        ("an empty token at the end", ["Boundary", "Empty"], [*usual, b""]),
        ("an empty token at the start", ["Boundary", "Empty"], [b"", *usual]),
        ("two tokens swapped", ["Vocabulary"], [b"bc", b"a", b"d"]),
        ("the last two swapped", ["Vocabulary"], [b"a", b"d", b"bc"]),
        ("one token twice", ["Vocabulary"], [b"a", b"bc", b"a"]),
        ("the last token left out", ["Vocabulary"], [b"a", b"bc"]),
        ("another case", ["Vocabulary"], [b"A", b"bc", b"d"]),
        ("no tokens", ["Empty"], []),
        ("an empty token", ["Empty"], [b""]),
        ("two empty tokens", ["Empty"], [b"", b""]),
        ("bytes that are not UTF-8", ["Vocabulary"], [b"\xff", b"\xc3", b"\x00"]),
        ("a composed letter", ["Vocabulary"], ["\u00e9".encode()]),
        ("the same letter decomposed", ["Vocabulary"], ["e\u0301".encode()]),
        ("a token that looks like a length", ["Boundary"], [b"\x01\x00\x00\x00a", b"bc", b"d"]),
        ("every single byte", ["Vocabulary"], [bytes([value]) for value in range(256)]),
        ("a long token", ["Vocabulary"], [b"x" * 1000]),
        ("a thousand tokens", ["Vocabulary"], [b"%d" % value for value in range(1000)]),
    )
    right = pack.vocabulary_hash(usual)
    for what, flags, tokens in maps:
        value = pack.vocabulary_hash(tokens)
        group.valid(what, flags, tokens=tokens, hash=value)
        if value != right:
            group.invalid(
                "VOCABULARY_HASH_MISMATCH", f"the hash of {what}", flags, tokens=usual, hash=value
            )
            group.invalid(
                "VOCABULARY_HASH_MISMATCH",
                f"the usual hash for {what}",
                flags,
                tokens=tokens,
                hash=right,
            )
    for what, data in (
        ("its bytes reversed", right[::-1]),
        ("zeros", bytes(32)),
        ("its first bit changed", bytes([right[0] ^ 1]) + right[1:]),
        ("its last bit changed", right[:-1] + bytes([right[-1] ^ 1])),
    ):
        group.invalid("VOCABULARY_HASH_MISMATCH", what, ["Vocabulary"], tokens=usual, hash=data)
    return file


def make() -> File:
    """Checksums and digests."""
    file = File(
        "digests", "PP1 checksums and digests", "04 Validation: Checksums and digests", NOTES
    )
    _row(file)
    _completion(file)
    _proposal(file)
    _decision(file)
    _prefix(file)
    _context(file)
    return file
