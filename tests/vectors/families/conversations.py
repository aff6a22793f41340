"""What needs more than one message: links, the worker's sessions, requests of clients."""

import math
from typing import Any, Final

from .. import pack, philox, scene
from ..layout import LIMITS, MESSAGES
from ..scene import LEGAL_SIZE, OTHER_SESSION, PREFIX, SESSION, Values
from ..suite import File, Group, Limit, Note
from .messages import typical
from .negotiation import called, caller, epoch_of

CALLER_BOOT: Final = bytes(range(0xC0, 0xD0))
_LAST_U64: Final = (1 << 64) - 1


def _link_params(**more: Any) -> Values:
    return {
        "caller": scene.body("Hello", **caller()),
        "called": scene.body("Hello", **called()),
        "caller_boot": CALLER_BOOT,
        **more,
    }


# --- links ---------------------------------------------------------------------------------

LINK_NOTES: Final = {
    "OfThisLink": Note(
        "a message of the agreed link that the worker takes", ("05-S-1", "05-S-8"), "no link"
    ),
    "NotNegotiated": Note(
        "anything but kinds 1 to 6 before the terms are agreed",
        ("05-S-8",),
        "memory is had, or a session begun, for a stranger",
    ),
    "OtherBoot": Note(
        "another process than the one that agreed",
        ("05-S-1", "03-W-4"),
        "a restarted peer goes on with a session that it does not have",
    ),
    "OtherEpoch": Note(
        "another agreement than the current one",
        ("05-S-1",),
        "messages of an earlier connection are taken",
    ),
    "OtherKind": Note(
        "a registered kind that a worker does not take",
        ("03-W-7", "04-V-2"),
        "a message meant for another party changes state",
    ),
}

_TAKEN: Final = ("Ping", "Pong", "Nak", "Cancel")
_NEGOTIATION: Final = ("Hello", "TermsAgreed", "Refuse")


def make_links() -> File:
    """Messages to a worker, on a link that is agreed and on one that is not."""
    file = File("links", "PP1 links", "05 Session: Negotiation", LINK_NOTES)
    epoch = epoch_of(caller(), called())
    bodies = {
        name: (
            kind,
            pack.packed(
                [kind, *(typical(field.shape, place) for place, field in enumerate(fields))]
            ),
            b"\x01" if name == "Rows" else None,
        )
        for kind, (name, fields) in MESSAGES.items()
    }

    def frames(name: str, **changes: Any) -> list[bytes]:
        kind, body, payload = bodies[name]
        place = {"boot_id": CALLER_BOOT, "link_epoch": epoch, **changes}
        return pack.message(kind, body, payload, **place)

    fresh = file.group("receive_at_worker", **_link_params(agreed=False))
    agreed = file.group("receive_at_worker", **_link_params(agreed=True))
    for name in bodies:
        if name in _NEGOTIATION:
            continue
        fresh.invalid(
            "NOT_NEGOTIATED",
            f"{name} before the terms are agreed",
            ["NotNegotiated"],
            frames=frames(name, link_epoch=0),
        )
        for what, other in (("with its lowest bit changed", epoch ^ 1), ("0", 0)):
            agreed.invalid(
                "LINK_UNKNOWN",
                f"{name}, the epoch is {what}",
                ["OtherEpoch"],
                frames=frames(name, link_epoch=other),
            )
        agreed.invalid(
            "BOOT_CHANGED",
            f"{name} of another process",
            ["OtherBoot"],
            frames=frames(name, boot_id=CALLER_BOOT[::-1]),
        )
        if name in _TAKEN:
            agreed.valid(name, ["OfThisLink"], frames=frames(name))
        elif name not in ("Reset", "Step", "Commit"):
            agreed.invalid(
                "KIND_UNEXPECTED", f"{name} to a worker", ["OtherKind"], frames=frames(name)
            )
    swapped = int.from_bytes(epoch.to_bytes(8, "little"), "big")
    for what, other in (
        ("in the other byte order", swapped),
        ("with its highest bit changed", epoch ^ 1 << 63),
        ("2^64 - 1", _LAST_U64),
    ):
        agreed.invalid(
            "LINK_UNKNOWN",
            f"Ping, the epoch is {what}",
            ["OtherEpoch"],
            frames=frames("Ping", link_epoch=other),
        )
    for what, boot in (
        ("with one bit changed", bytes([CALLER_BOOT[0] ^ 1]) + CALLER_BOOT[1:]),
        ("of zeros", bytes(16)),
        ("with its last bit changed", CALLER_BOOT[:-1] + bytes([CALLER_BOOT[-1] ^ 0x80])),
    ):
        agreed.invalid(
            "BOOT_CHANGED",
            f"Ping with a boot id {what}",
            ["OtherBoot"],
            frames=frames("Ping", boot_id=boot),
        )
    return file


# --- the worker's sessions -----------------------------------------------------------------

SESSION_NOTES: Final = {
    "Reset": Note(
        "a generation begins from a prefix",
        ("05-S-11", "05-S-13"),
        "the worker drafts after another text",
    ),
    "Repeat": Note(
        "a message again: the same answer, nothing changes",
        ("05-S-12", "05-S-19", "05-S-22"),
        "a draw under a key that is used, or a token committed twice",
    ),
    "Generation": Note(
        "a generation that is not above the last",
        ("05-S-12",),
        "an old reset ends a new generation",
    ),
    "Slot": Note("a slot that the terms do not have", ("04-V04",), "memory beyond the staging"),
    "Base": Note(
        "a base that the worker does not hold", ("05-S-11",), "a suffix after another text"
    ),
    "Prefix": Note(
        "a prefix that is empty, too long or not whole tokens",
        ("05-S-11", "07-T-6"),
        "memory without bound, or tokens that are cut",
    ),
    "Token": Note(
        "an id that is not legal", ("04-V12",), "a model is asked about an id that it does not have"
    ),
    "Digest": Note(
        "tokens that do not lead to their digest",
        ("05-S-11", "05-S-22"),
        "two parties hold different texts",
    ),
    "Commit": Note(
        "what stands of a round, and the last token", ("05-S-22",), "the worker falls out of step"
    ),
    "Unknown": Note(
        "a session that is not there", ("05-S-11", "05-S-22"), "a session begins without its key"
    ),
    "Step": Note(
        "a step without drafts: the worker only checks that it is in step",
        ("05-S-16",),
        "a round is lost",
    ),
    "StepChanged": Note(
        "a step number again with other content", ("05-S-19",), "two proposals under one counter"
    ),
    "StepOrder": Note(
        "a step number below the last", ("05-S-19", "02-R-4"), "a draw under a counter that is used"
    ),
    "InStep": Note(
        "an entry that does not follow: its completion says why",
        ("05-S-18", "04-V16", "04-V17", "04-V18", "04-V19", "04-V20", "04-V21"),
        "drafts for another state",
    ),
}


def reset(prefix: tuple[int, ...] = PREFIX, base: int = 0, **changes: Any) -> Values:
    """A Reset that carries everything after the base."""
    session_id = changes.get("session_id", SESSION)
    generation = changes.get("generation", 3)
    return {
        "session_id": session_id,
        "request_id": scene.REQUEST_ID,
        "slot": 0,
        "generation": generation,
        "round": 3,
        "reason": 0,
        "base_length": base,
        "base_digest": pack.prefix_digest(session_id, prefix[:base]),
        "suffix": pack.tokens(prefix[base:]),
        "digest": pack.prefix_digest(session_id, prefix),
        "key": philox.derive_key(scene.SEED, session_id, scene.REQUEST_ID, generation, 0),
        "context": 99,
        **changes,
    }


def _ready(
    prefix: tuple[int, ...] = PREFIX, generation: int = 3, session_id: bytes = SESSION
) -> bytes:
    return scene.body(
        "Ready",
        session_id=session_id,
        generation=generation,
        length=len(prefix),
        digest=pack.prefix_digest(session_id, prefix),
    )


def _commit(*tokens: int, prefix: tuple[int, ...] = PREFIX, **changes: Any) -> Values:
    """A target-only round: no drafts stand, then the last token."""
    session_id = changes.get("session_id", SESSION)
    return {
        "session_id": session_id,
        "generation": 3,
        "round": 4,
        "accepted": 0,
        "last": list(tokens),
        "position": len(prefix) + len(tokens),
        "digest": pack.prefix_digest(session_id, [*prefix, *tokens]),
        **changes,
    }


def _commits(*entries: Values) -> bytes:
    return scene.body("Commit", entries=[scene.record("CommitEntry", entry) for entry in entries])


def _resets(group: Group) -> None:
    first = scene.body("Reset", **reset())

    def take(
        comment: str,
        flags: list[str],
        answer: bytes,
        body: bytes,
        *before: bytes,
        limit: Limit | None = None,
    ) -> None:
        group.valid(
            comment,
            flags,
            before=list(before),
            body=body,
            limit=limit,
            output={"answers": [answer]},
        )

    def refuse(
        code: str,
        comment: str,
        flags: list[str],
        body: bytes,
        *before: bytes,
        limit: Limit | None = None,
    ) -> None:
        group.invalid(code, comment, flags, before=list(before), body=body, limit=limit)

    take("the whole prefix", ["Reset"], _ready(), first)
    take("the same reset again", ["Repeat"], _ready(), first, first)
    take("one token", ["Reset"], _ready((3,)), scene.body("Reset", **reset((3,))))
    longer = (*PREFIX, 6, 5)
    for base in range(len(PREFIX) + 1):
        take(
            f"what follows the first {base} tokens held",
            ["Reset"],
            _ready(longer, 4),
            scene.body("Reset", **reset(longer, base, generation=4)),
            first,
        )
    take(
        "a shorter prefix, nothing after the base",
        ["Reset"],
        _ready(PREFIX[:4], 4),
        scene.body("Reset", **reset(PREFIX[:4], 4, generation=4)),
        first,
    )
    take(
        "the last generation there is",
        ["Reset"],
        _ready(PREFIX, (1 << 63) - 1),
        scene.body("Reset", **reset(generation=(1 << 63) - 1)),
    )
    for generation in (1, 2):
        refuse(
            "GENERATION_STALE",
            f"generation {generation} after 3",
            ["Generation"],
            scene.body("Reset", **reset(generation=generation)),
            first,
        )
    refuse(
        "GENERATION_STALE",
        "generation 3 again with another text",
        ["Generation"],
        scene.body("Reset", **reset(longer)),
        first,
    )
    for slot in (3, 4, 5, 255):
        body = scene.body("Reset", **reset(slot=slot))
        if slot == 3:
            take("the last slot", ["Reset"], _ready(), body)
        else:
            refuse("SLOT_RANGE", f"slot {slot} of four", ["Slot"], body)
    refuse(
        "PREFIX_UNKNOWN",
        "a base of a session that is new",
        ["Base"],
        scene.body("Reset", **reset(longer, 7)),
    )
    for base in (8, 9, (1 << 31) - 1):
        refuse(
            "PREFIX_UNKNOWN",
            f"the first {base} tokens of 7",
            ["Base"],
            scene.body("Reset", **reset(longer, 7, generation=4, base_length=base)),
            first,
        )
    for base in (0, 6):
        refuse(
            "PREFIX_UNKNOWN",
            f"the digest of 7 tokens as that of {base}",
            ["Base"],
            scene.body("Reset", **reset(longer, 7, generation=4, base_length=base)),
            first,
        )
    refuse(
        "PREFIX_UNKNOWN",
        "the base of another text",
        ["Base"],
        scene.body("Reset", **reset((9, *longer[1:]), 7, generation=4)),
        first,
    )
    refuse(
        "PREFIX_UNKNOWN",
        "the base of another session",
        ["Base"],
        scene.body(
            "Reset",
            **reset(longer, 7, generation=4, base_digest=pack.prefix_digest(OTHER_SESSION, PREFIX)),
        ),
        first,
    )
    refuse("PREFIX_RANGE", "an empty prefix", ["Prefix"], scene.body("Reset", **reset(())))
    for extra in (1, 2, 3):
        values = reset()
        values["suffix"] += bytes(extra)
        refuse(
            "PREFIX_RANGE",
            f"{extra} bytes after the last token",
            ["Prefix"],
            scene.body("Reset", **values),
        )
    longest = int(LIMITS["PREFIX_TOKENS_MAX"])
    one = (3,)
    begun = scene.body("Reset", **reset(one))
    for offset in (-1, 0, 1):
        prefix = (3,) + (7,) * (longest - 1 + offset)
        body = scene.body("Reset", **reset(prefix, 1, generation=4))
        comment = f"{longest + offset} tokens in all, after a base of one"
        limit = Limit("PREFIX_TOKENS_MAX", offset)
        if offset <= 0:
            take(comment, ["Prefix"], _ready(prefix, 4), body, begun, limit=limit)
        else:
            refuse("PREFIX_RANGE", comment, ["Prefix"], body, begun, limit=limit)
    for token in (-1, LEGAL_SIZE, LEGAL_SIZE + 1, (1 << 31) - 1, -(1 << 31)):
        for place in (0, 6):
            prefix = (*PREFIX[:place], token, *PREFIX[place + 1 :])
            refuse(
                "TOKEN_RANGE",
                f"token {token} at {place}",
                ["Token"],
                scene.body("Reset", **reset(prefix)),
            )
    for what, digest in (
        ("one token less", pack.prefix_digest(SESSION, PREFIX[:-1])),
        ("another session", pack.prefix_digest(OTHER_SESSION, PREFIX)),
        ("nothing", bytes(16)),
    ):
        refuse(
            "PREFIX_MISMATCH",
            f"the digest of {what}",
            ["Digest"],
            scene.body("Reset", **reset(digest=digest)),
        )


def _committing(group: Group) -> None:
    first = scene.body("Reset", **reset())
    drawn = _commits(_commit(6))

    def take(comment: str, flags: list[str], body: bytes, *before: bytes) -> None:
        group.valid(comment, flags, before=[first, *before], body=body, output={"answers": []})

    def refuse(code: str, comment: str, flags: list[str], body: bytes, *before: bytes) -> None:
        group.invalid(code, comment, flags, before=[first, *before], body=body)

    take("one token of the target's own", ["Commit"], drawn)
    take("the same commit again", ["Repeat"], drawn, drawn)
    take("a commit of nothing new", ["Repeat"], _commits(_commit()))
    take(
        "two rounds after each other",
        ["Commit"],
        _commits(_commit(5, prefix=(*PREFIX, 6), round=5)),
        drawn,
    )
    take("a later round", ["Commit"], _commits(_commit(6, round=9)))
    take("the round that was under way at the Reset", ["Commit"], _commits(_commit(6, round=3)))
    take("no entries", ["Commit"], _commits())
    refuse(
        "SESSION_UNKNOWN",
        "another session",
        ["Unknown"],
        _commits(_commit(6, session_id=OTHER_SESSION)),
    )
    refuse(
        "SESSION_UNKNOWN",
        "a session that was cancelled",
        ["Unknown"],
        drawn,
        scene.body("Cancel", session_id=SESSION, generation=3, reason=804),
    )
    for generation, code in ((1, "STALE"), (2, "STALE"), (4, "AHEAD"), ((1 << 63) - 1, "AHEAD")):
        refuse(
            f"GENERATION_{code}",
            f"generation {generation} of 3",
            ["Generation", "Commit"],
            _commits(_commit(6, generation=generation)),
        )
    for accepted in (1, 2, 5, 255):
        refuse(
            "COMMIT_MISMATCH",
            f"{accepted} drafts of none",
            ["Commit"],
            _commits(_commit(6, accepted=accepted)),
        )
    for position in (0, 6, 7, 9, 264, (1 << 31) - 1):
        refuse(
            "COMMIT_MISMATCH",
            f"one token more and position {position}",
            ["Commit", "Digest"],
            _commits(_commit(6, position=position)),
        )
    for what, digest in (
        ("the text before", pack.prefix_digest(SESSION, PREFIX)),
        ("another token", pack.prefix_digest(SESSION, [*PREFIX, 5])),
        ("another session", pack.prefix_digest(OTHER_SESSION, [*PREFIX, 6])),
        ("nothing", bytes(16)),
    ):
        refuse(
            "COMMIT_MISMATCH",
            f"the digest of {what}",
            ["Commit", "Digest"],
            _commits(_commit(6, digest=digest)),
        )
    refuse("COMMIT_MISMATCH", "a round that is over", ["Commit"], _commits(_commit(6, round=2)))
    refuse(
        "COMMIT_MISMATCH",
        "a second token of a round",
        ["Commit"],
        _commits(_commit(5, prefix=(*PREFIX, 6))),
        drawn,
    )
    refuse(
        "COMMIT_MISMATCH",
        "a round before a committed one",
        ["Commit"],
        _commits(_commit(5, prefix=(*PREFIX, 6), round=4)),
        _commits(_commit(6, round=5)),
    )
    for token in (-1, LEGAL_SIZE, (1 << 31) - 1, -(1 << 31)):
        refuse("TOKEN_RANGE", f"token {token}", ["Token", "Commit"], _commits(_commit(token)))


def _steps(group: Group) -> None:
    first = scene.body("Reset", **reset())
    entry = scene.entry(depth=0)
    step = scene.step(entry, number=8)
    done = scene.completion(scene.completed(entry, [], 0), number=8)

    def take(comment: str, flags: list[str], answer: bytes, body: bytes, *before: bytes) -> None:
        group.valid(
            comment, flags, before=[first, *before], body=body, output={"answers": [answer]}
        )

    def refuse(
        code: str,
        comment: str,
        flags: list[str],
        body: bytes,
        *before: bytes,
        answer: bytes | None = None,
    ) -> None:
        output = None if answer is None else {"answers": [answer]}
        group.invalid(code, comment, flags, before=[first, *before], body=body, output=output)

    take("the next round", ["Step"], done, step)
    take("the same step again", ["Repeat"], done, step, step)
    following = scene.entry(depth=0, round=5)
    following_step = scene.step(following, number=9)
    following_done = scene.completion(scene.completed(following, [], 0), number=9)
    take("the round after it", ["Step"], following_done, following_step, step)
    take("the step before the last again", ["Repeat"], done, step, step, following_step)
    moved = scene.entry(
        depth=0, round=5, position=8, digest=pack.prefix_digest(SESSION, [*PREFIX, 6])
    )
    take(
        "the round after a commit",
        ["Step", "Commit"],
        scene.completion(scene.completed(moved, [], 0), number=9),
        scene.step(moved, number=9),
        step,
        _commits(_commit(6)),
    )
    for field, value in (
        ("round", 5),
        ("temperature", 0.5),
        ("support", 3),
        ("context", 98),
        ("representation", 2),
    ):
        refuse(
            "STEP_CHANGED",
            f"step 8 again with another {field}",
            ["StepChanged"],
            scene.step({**entry, "support": 4, field: value}, number=8),
            step,
        )
    refuse(
        "STEP_CHANGED",
        "step 8 again without its entry",
        ["StepChanged"],
        scene.step(number=8),
        step,
    )
    for number in (0, 1, 7):
        refuse(
            "ROUND_STALE",
            f"step {number} after 8",
            ["StepOrder"],
            scene.step(following, number=number),
            step,
        )

    def failing(code: str, number: int, comment: str, *before: bytes, **changes: Any) -> None:
        other = scene.entry(**{"depth": 0, **changes})
        answer = scene.completion(scene.completed(other, [], 0, number), number=8)
        refuse(code, comment, ["InStep"], scene.step(other, number=8), *before, answer=answer)

    failing("SESSION_UNKNOWN", 300, "a step of another session", session_id=OTHER_SESSION)
    cancel = scene.body("Cancel", session_id=SESSION, generation=3, reason=804)
    failing("SESSION_UNKNOWN", 300, "a step of a session that was cancelled", cancel)
    failing("GENERATION_STALE", 301, "a step of the generation before", generation=2)
    failing("GENERATION_AHEAD", 302, "a step of the next generation", generation=4)
    failing("SLOT_RANGE", 312, "a step in another slot", slot=1)
    failing("CONTEXT_MISMATCH", 317, "a step of another context", context=1)
    failing("ROUND_STALE", 303, "a step of the round before", round=3)
    failing("ROUND_AHEAD", 304, "a step of the round after the next", round=5)
    failing("POSITION_MISMATCH", 305, "a step a token short", position=6)
    failing("PREFIX_MISMATCH", 306, "a step after another text", digest=bytes(16))
    failing("ROUND_STALE", 303, "a round that a commit has used", _commits(_commit(round=4)))
    failing(
        "GENERATION_STALE",
        301,
        "a step of depth 5 after a new generation",
        scene.body("Reset", **reset(generation=4)),
        depth=5,
    )


def make_sessions() -> File:
    """Conversations with a worker: the last message is judged."""
    file = File("sessions", "PP1 worker sessions", "05 Session: Generations, Rounds", SESSION_NOTES)
    group = file.group("converse_with_worker", **_link_params())
    _resets(group)
    _committing(group)
    _steps(group)
    return file


# --- requests ------------------------------------------------------------------------------

REQUEST_NOTES: Final = {
    "Usable": Note("a request that is served", ("06-P-1", "06-P-21"), "a client is refused"),
    "Bound": Note(
        "a parameter at its bound, or one beside it",
        ("06-P-21", "06-P-1", "07-T-6"),
        "a bound is off by one",
    ),
    "Prompt": Note(
        "a prompt that is empty, not whole tokens, or leaves no room",
        ("06-P-1", "06-P-21"),
        "a request that can never end well",
    ),
    "PromptToken": Note(
        "a prompt with an id that is not legal",
        ("06-P-1", "06-P-21"),
        "a model is asked about an id that it does not have",
    ),
    "Parameter": Note(
        "a parameter out of range", ("06-P-1", "06-P-21"), "a placeholder is taken for a value"
    ),
    "StopTokens": Note(
        "stop tokens that are no ids, or too many with the engine's own",
        ("06-P-21", "06-P-1", "06-P-2"),
        "a request that cannot be opened",
    ),
    "Context": Note(
        "the context is the one of target, processors, temperature and stop tokens",
        ("06-P-2",),
        "the ranks judge by two laws",
    ),
    "Digest": Note("the digest is the prompt's", ("06-P-1",), "the ranks hold two texts"),
    "Owner": Note("the owner is one of the two ranks", ("06-P-1",), "nobody samples the request"),
}


def _generate(**changes: Any) -> Values:
    return {
        "key": 5,
        "prompt": pack.tokens(PREFIX),
        "tokens_max": 16,
        "temperature": 1.0,
        "draft_temperature": 1.0,
        "seed": b"",
        "stop_tokens": [2],
        "depth": 5,
        "representation": 1,
        "support": 0,
        **changes,
    }


def _open(prompt: tuple[int, ...], changes: Values) -> Values:
    values = {
        "session_id": SESSION,
        "request_id": scene.REQUEST_ID,
        "slot": 0,
        "owner": 1,
        "session_seed": scene.SEED,
        "prompt": pack.tokens(prompt),
        "temperature": 1.0,
        "stop_tokens": [2, 5],
        "tokens_max": 16,
        "digest": pack.prefix_digest(SESSION, prompt),
        **changes,
    }
    values.setdefault(
        "context",
        pack.context("target-a", "policy-a", values["temperature"], values["stop_tokens"]),
    )
    return values


# What both Generate and Open refuse: code, field (empty where the text leaves open how one
# element of a list is named), comment, flags, changes.
_Case = tuple[str | None, str, str, list[str], Values]


def _shared() -> list[_Case]:
    cases: list[_Case] = [(None, "", "the usual request", ["Usable"], {})]
    for value in (0.0, 0.01, 0.7, 100.0):
        cases.append((None, "", f"temperature {value}", ["Bound"], {"temperature": value}))
    cases.append((None, "", "temperature -0.0, which is zero", ["Bound"], {"temperature": -0.0}))
    for value in (
        math.nextafter(0.01, 0),
        math.nextafter(100, 200),
        -1.0,
        math.inf,
        -math.inf,
        math.nan,
        5e-324,
    ):
        cases.append(
            (
                "PARAMETER_RANGE",
                "temperature",
                f"temperature {value!r}",
                ["Parameter"],
                {"temperature": value},
            )
        )
    cases.append(
        ("PARAMETER_RANGE", "tokens_max", "no tokens to generate", ["Parameter"], {"tokens_max": 0})
    )
    cases.append((None, "", "one token to generate", ["Bound"], {"tokens_max": 1}))
    for offset in (-1, 0, 1):
        room = 100 - len(PREFIX) + offset
        cases.append(
            (
                "PROMPT_RANGE" if offset > 0 else None,
                "prompt",
                f"{len(PREFIX)} tokens and {room} to come in a context of 100",
                ["Prompt", "Bound"] if offset > 0 else ["Bound"],
                {"tokens_max": room},
            )
        )
    cases.append(
        (
            "PROMPT_RANGE",
            "prompt",
            "2^32 - 1 tokens to come",
            ["Prompt"],
            {"tokens_max": (1 << 32) - 1},
        )
    )
    for token in (-1, LEGAL_SIZE, (1 << 31) - 1):
        cases.append(
            (
                "PARAMETER_RANGE",
                "",
                f"stop token {token}",
                ["StopTokens"],
                {"stop_tokens": [token]},
            )
        )
    cases.append((None, "", "no stop tokens", ["Bound"], {"stop_tokens": []}))
    return cases


def make_requests() -> File:
    """What a client asks for, and what rank 1 is told of it."""
    file = File(
        "requests", "PP1 requests", "03 Fields; 06 The pair: Opening a request", REQUEST_NOTES
    )
    group = file.group(
        "check_generate",
        vocabulary_size=scene.VOCABULARY_SIZE,
        legal_size=LEGAL_SIZE,
        context_tokens_max=100,
        stop_tokens=[9],
    )
    opened = file.group(
        "check_open",
        target_checkpoint="target-a",
        processors="policy-a",
        legal_size=LEGAL_SIZE,
        context_tokens_max=100,
    )

    def asked(case: _Case) -> None:
        code, field, comment, flags, changes = case
        body = scene.body("Generate", **_generate(**changes))
        if code is None:
            group.valid(comment, flags, body=body)
        else:
            group.invalid(code, comment, flags, field=field or None, body=body)

    def told(case: _Case, prompt: tuple[int, ...] = PREFIX) -> None:
        code, field, comment, flags, changes = case
        values = _open(prompt, changes)
        if code is None:
            keys = [
                philox.derive_key(values["session_seed"], SESSION, values["request_id"], 1, owner)
                for owner in (0, 1)
            ]
            opened.valid(
                comment,
                flags,
                body=scene.body("Open", **values),
                output={"worker_key": keys[0], "verifier_key": keys[1]},
            )
        else:
            opened.invalid(
                code, comment, flags, field=field or None, body=scene.body("Open", **values)
            )

    for case in _shared():
        asked(case)
        told(case)
    for prompt, code, what, flags in (
        ((), "PROMPT_RANGE", "an empty prompt", ["Prompt"]),
        ((3,), None, "a prompt of one token", ["Bound"]),
        ((3,) * 84, None, "a prompt that fills the context", ["Bound"]),
        ((3,) * 85, "PROMPT_RANGE", "a prompt one token too long", ["Prompt", "Bound"]),
    ):
        asked((code, "prompt", what, flags, {"prompt": pack.tokens(prompt)}))
        told((code, "prompt", what, flags, {}), prompt)
    for token in (-1, LEGAL_SIZE, LEGAL_SIZE + 1, (1 << 31) - 1, -(1 << 31)):
        for place in (0, 6):
            odd = (*PREFIX[:place], token, *PREFIX[place + 1 :])
            what = f"prompt token {place} is {token}"
            asked(
                (
                    "PROMPT_TOKEN",
                    "",
                    what,
                    ["PromptToken"],
                    {"prompt": pack.tokens(odd)},
                )
            )
            told(("PROMPT_TOKEN", "", what, ["PromptToken"], {}), odd)
    for extra in (1, 2, 3):
        data = pack.tokens(PREFIX) + bytes(extra)
        what = f"{extra} bytes after the last token"
        asked(("PREFIX_RANGE", "prompt", what, ["Prompt"], {"prompt": data}))
        told(("PREFIX_RANGE", "prompt", what, ["Prompt"], {"prompt": data}))
    _only_generate(asked)
    longest = int(LIMITS["PREFIX_TOKENS_MAX"])
    wide = file.group(
        "check_generate",
        vocabulary_size=scene.VOCABULARY_SIZE,
        legal_size=LEGAL_SIZE,
        context_tokens_max=1 << 30,
        stop_tokens=[],
    )
    for offset in (-1, 0, 1):
        body = scene.body("Generate", **_generate(tokens_max=longest - 7 + offset))
        comment = f"{longest + offset} tokens in all, whatever the context"
        limit = Limit("PREFIX_TOKENS_MAX", offset)
        if offset <= 0:
            wide.valid(comment, ["Bound"], body=body, limit=limit)
        else:
            wide.invalid(
                "PROMPT_RANGE", comment, ["Prompt", "Bound"], body=body, limit=limit, field="prompt"
            )
    many = file.group(
        "check_generate",
        vocabulary_size=100,
        legal_size=100,
        context_tokens_max=100,
        stop_tokens=[98, 99],
    )
    for offset in (-1, 0, 1):
        count = int(LIMITS["STOP_TOKENS_MAX"]) + offset
        body = scene.body("Generate", **_generate(stop_tokens=list(range(count - 2))))
        comment = f"{count} stop tokens with the engine's own two"
        limit = Limit("STOP_TOKENS_MAX", offset)
        if offset <= 0:
            many.valid(comment, ["Bound"], body=body, limit=limit)
        else:
            many.invalid(
                "PARAMETER_RANGE",
                comment,
                ["StopTokens", "Bound"],
                body=body,
                limit=limit,
                field="stop_tokens",
            )
    body = scene.body("Generate", **_generate(stop_tokens=[99, *range(62), 98]))
    many.valid("64 stop tokens that name the engine's own too", ["Bound"], body=body)
    for what, context in (
        ("zero", 0),
        ("of another temperature", pack.context("target-a", "policy-a", 0.5, [2, 5])),
        ("of other stop tokens", pack.context("target-a", "policy-a", 1.0, [2])),
        ("of another target", pack.context("target-b", "policy-a", 1.0, [2, 5])),
        ("of other processors", pack.context("target-a", "", 1.0, [2, 5])),
    ):
        told(
            (
                "CONTEXT_MISMATCH",
                "context",
                f"the context is {what}",
                ["Context"],
                {"context": context},
            )
        )
    for owner in (2, 255):
        told(("PARAMETER_RANGE", "owner", f"owner {owner}", ["Owner"], {"owner": owner}))
    for what, digest in (
        ("zeros", bytes(16)),
        ("one token less", pack.prefix_digest(SESSION, PREFIX[:-1])),
        ("another session", pack.prefix_digest(OTHER_SESSION, PREFIX)),
    ):
        told(("PREFIX_MISMATCH", "digest", f"the digest of {what}", ["Digest"], {"digest": digest}))
    for changes in (
        {"owner": 0},
        {"slot": 3},
        {"request_id": (1 << 64) - 1},
        {"request_id": 0},
        {"session_seed": bytes(32)},
        {"stop_tokens": [5, 2]},
    ):
        ((name, value),) = changes.items()
        shown = value.hex()[:8] if isinstance(value, bytes) else value
        told((None, "", f"{name} {shown}", ["Usable"], changes))
    return file


def _only_generate(asked: Any) -> None:
    for value in (0.01, 0.5, 100.0):
        asked((None, "", f"draft temperature {value}", ["Bound"], {"draft_temperature": value}))
    for value in (0.0, math.nextafter(0.01, 0), math.nextafter(100, 200), math.inf, math.nan, -1.0):
        asked(
            (
                "PARAMETER_RANGE",
                "draft_temperature",
                f"draft temperature {value!r}",
                ["Parameter"],
                {"draft_temperature": value},
            )
        )
    for depth in (0, 1, 4, 5):
        asked((None, "", f"depth {depth}", ["Bound"], {"depth": depth}))
    for depth in (6, 255):
        asked(("PARAMETER_RANGE", "depth", f"depth {depth}", ["Parameter"], {"depth": depth}))
    for size in (0, 32):
        asked((None, "", f"a seed of {size} bytes", ["Bound"], {"seed": bytes(range(size))}))
    for size in (1, 16, 31):
        asked(
            (
                "PARAMETER_RANGE",
                "seed",
                f"a seed of {size} bytes",
                ["Parameter"],
                {"seed": bytes(range(size))},
            )
        )
    for number in (1, 2):
        asked((None, "", f"representation {number}", ["Bound"], {"representation": number}))
    for number in (0, 3, 255):
        asked(
            (
                "PARAMETER_RANGE",
                "representation",
                f"representation {number}",
                ["Parameter"],
                {"representation": number},
            )
        )
    for support in (0, 1, 11, 12):
        asked((None, "", f"support {support} of 12", ["Bound"], {"support": support}))
    for support in (13, 16160, (1 << 32) - 1):
        asked(
            (
                "PARAMETER_RANGE",
                "support",
                f"support {support} of 12",
                ["Parameter"],
                {"support": support},
            )
        )
