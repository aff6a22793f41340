"""Two hellos to terms, or to the field that does not fit; the digest; the link epoch."""

from typing import Any, Final

from .. import pack, scene
from ..layout import LIMITS
from ..scene import Values
from ..suite import File, Group, Limit, Note

NOTES: Final = {
    "Agreed": Note("two offers that agree", ("05-S-3", "05-S-4", "05-S-5"), "no link"),
    "Lesser": Note(
        "the lesser of two bounds", ("05-S-5",), "one side sends what the other cannot hold"
    ),
    "Contract": Note(
        "an offer above the contract's own bound",
        ("05-S-5", "03-W-2"),
        "messages that the decoder refuses",
    ),
    "Role": Note("who may stand at the two ends", ("05-S-3",), "two workers wait for each other"),
    "WireRange": Note(
        "both ranges contain version 2",
        ("05-S-3", "08-E-5"),
        "a version is spoken that one side does not know",
    ),
    "Identity": Note(
        "an identity that differs, by its field", ("05-S-4",), "valid bytes about different things"
    ),
    "IdentityOrder": Note(
        "two identities that differ: the earlier one is named",
        ("05-S-4",),
        "the two sides name different reasons",
    ),
    "Vocabulary": Note(
        "1 <= legal_size <= vocabulary_size <= VOCABULARY_SIZE_MAX",
        ("05-S-5", "07-T-6"),
        "rows without ids, or rows beyond every buffer",
    ),
    "Representations": Note(
        "those that both offer and that are registered",
        ("05-S-5", "01-D-13"),
        "rows in a form that one side cannot read",
    ),
    "Floor": Note(
        "a bound below what the protocol needs",
        ("05-S-5",),
        "a division by zero, or a slot without room",
    ),
    "Frame": Note("a payload frame holds the largest row", ("05-S-5",), "rows that cannot be sent"),
    "Staging": Note(
        "staging holds two batches of whole chains",
        ("05-S-5", "05-S-30"),
        "a slot is overwritten while it is read",
    ),
    "Digest": Note(
        "both sides derived the same terms", ("05-S-6",), "two sides with different bounds"
    ),
    "Epoch": Note(
        "the name of the agreement", ("05-S-7",), "messages of an earlier agreement are taken"
    ),
}

_WORKER, _RANK_ZERO, _RANK_ONE = 1, 2, 3
CALLER_NONCE: Final = bytes(range(0x10, 0x20))
CALLED_NONCE: Final = bytes(range(0x20, 0x30))


def hello(role: int, nonce: bytes) -> Values:
    """An offer that agrees with its counterpart's: the vocabulary of the other vectors."""
    return {
        "role": role,
        "wire_min": 2,
        "wire_max": 2,
        "nonce": nonce,
        "semantics": "dyadic24-standard-v1",
        "verifier": "standard-int48-v1",
        "rng_abi": "philox4x32-10/blake2b-v1",
        "representations": [1, 2],
        "vocabulary_size": scene.VOCABULARY_SIZE,
        "legal_size": scene.LEGAL_SIZE,
        "vocabulary_hash": bytes(range(32)),
        "draft_checkpoint": "draft-a",
        "draft_native": True,
        "target_checkpoint": "target-a",
        "processors": "policy-a",
        "precision": "f32-le",
        "requests_max": 4,
        "depth_max": 5,
        "support_max": 6,
        "frame_bytes_max": 4096,
        "staging_bytes": 1 << 20,
    }


def caller(**changes: Any) -> Values:
    """Rank 0's offer."""
    return {**hello(_RANK_ZERO, CALLER_NONCE), **changes}


def called(**changes: Any) -> Values:
    """The worker's offer."""
    return {**hello(_WORKER, CALLED_NONCE), **changes}


_TERMS: Final = (
    "wire_version",
    "semantics",
    "verifier",
    "rng_abi",
    "precision",
    "representations",
    "vocabulary_size",
    "legal_size",
    "vocabulary_hash",
    "draft_checkpoint",
    "draft_native",
    "target_checkpoint",
    "processors",
    "requests_max",
    "depth_max",
    "support_max",
    "frame_bytes_max",
    "staging_bytes",
    "row_bytes_max",
)
_CEILINGS: Final = {
    "requests_max": "REQUESTS_MAX",
    "depth_max": "DEPTH_MAX",
    "support_max": "SUPPORT_MAX",
    "frame_bytes_max": "PAYLOAD_BYTES_MAX",
}


def agree(one: Values, two: Values) -> Values:
    """The terms of two offers that agree, by S-3 to S-5."""
    terms: Values = {**one, "wire_version": 2}
    terms["representations"] = sorted(
        {1, 2} & {*one["representations"]} & {*two["representations"]}
    )
    for field in ("requests_max", "depth_max", "support_max", "frame_bytes_max", "staging_bytes"):
        terms[field] = min(one[field], two[field])
        if field in _CEILINGS:
            terms[field] = min(terms[field], int(LIMITS[_CEILINGS[field]]))
    rows = {1: 4 * one["vocabulary_size"], 2: 8 * min(terms["support_max"], one["vocabulary_size"])}
    terms["row_bytes_max"] = max(rows[number] for number in terms["representations"])
    return {field: terms[field] for field in _TERMS}


def epoch_of(one: Values, two: Values) -> int:
    """The link epoch of a caller's and a called side's offers."""
    digest = pack.terms_digest(list(agree(one, two).values()))
    return pack.link_epoch(one["nonce"], two["nonce"], digest)


def _accept(
    group: Group,
    comment: str,
    flags: list[str],
    one: Values,
    two: Values,
    limit: Limit | None = None,
) -> None:
    terms = agree(one, two)
    digest = pack.terms_digest(list(terms.values()))
    group.valid(
        comment,
        flags,
        caller=scene.body("Hello", **one),
        called=scene.body("Hello", **two),
        limit=limit,
        output={
            "terms": terms,
            "digest": digest,
            "link_epoch": pack.link_epoch(one["nonce"], two["nonce"], digest),
        },
    )


def _refuse(
    group: Group,
    code: str,
    field: str | None,
    comment: str,
    flags: list[str],
    one: Values,
    two: Values,
    limit: Limit | None = None,
) -> None:
    group.invalid(
        code,
        comment,
        flags,
        field=field,
        limit=limit,
        caller=scene.body("Hello", **one),
        called=scene.body("Hello", **two),
    )


def _ends(group: Group) -> None:
    names = {1: "worker", 2: "rank 0", 3: "rank 1", 0: "role 0", 4: "role 4", 255: "role 255"}
    for one in names:
        for two in names:
            offers = caller(role=one), called(role=two)
            if {one, two} in ({1, 2}, {2, 3}):
                _accept(group, f"{names[one]} calls {names[two]}", ["Role", "Agreed"], *offers)
            else:
                _refuse(
                    group,
                    "ROLE_MISMATCH",
                    "role",
                    f"{names[one]} calls {names[two]}",
                    ["Role"],
                    *offers,
                )
    for ours in ((2, 2), (1, 2), (2, 3), (0, 255)):
        for theirs in ((2, 2), (1, 2), (2, 3)):
            _accept(
                group,
                f"wire {ours[0]}..{ours[1]} and {theirs[0]}..{theirs[1]}",
                ["WireRange"],
                caller(wire_min=ours[0], wire_max=ours[1]),
                called(wire_min=theirs[0], wire_max=theirs[1]),
            )
    for low, high in ((1, 1), (3, 3), (3, 255), (0, 1), (0, 0), (2, 1), (3, 2), (255, 255)):
        _refuse(
            group,
            "WIRE_RANGE",
            None,
            f"wire 2..2 and {low}..{high}",
            ["WireRange"],
            caller(),
            called(wire_min=low, wire_max=high),
        )
        _refuse(
            group,
            "WIRE_RANGE",
            None,
            f"wire {low}..{high} and 2..2",
            ["WireRange"],
            caller(wire_min=low, wire_max=high),
            called(),
        )


# Field, code, and offers that differ from the usual one.
_IDENTITIES: Final[tuple[tuple[str, str, tuple[Any, ...]], ...]] = (
    (
        "semantics",
        "SEMANTICS_MISMATCH",
        ("", "Dyadic24-standard-v1", "dyadic24-standard-v2", "dyadic24-standard-v1 "),
    ),
    ("verifier", "VERIFIER_MISMATCH", ("", "standard-int48-v2", "standard-int53-v1")),
    ("rng_abi", "RNG_ABI_MISMATCH", ("", "philox4x32-7/blake2b-v1", "philox4x64-10/blake2b-v1")),
    ("precision", "PRECISION_MISMATCH", ("", "f32-be", "f16-le")),
    ("vocabulary_size", "VOCABULARY_SIZE_MISMATCH", (11, 13, 129280)),
    ("legal_size", "VOCABULARY_SIZE_MISMATCH", (9, 11, 12)),
    (
        "vocabulary_hash",
        "VOCABULARY_HASH_MISMATCH",
        (bytes(32), bytes(range(31)) + b"\xff", b"\x01" + bytes(range(1, 32))),
    ),
    ("draft_checkpoint", "DRAFT_MISMATCH", ("", "draft-b", "DRAFT-A", "draft-a\u0301")),
    ("draft_native", "DRAFT_MISMATCH", (False,)),
    ("target_checkpoint", "TARGET_MISMATCH", ("", "target-b", "target-a/")),
    ("processors", "PROCESSORS_MISMATCH", ("", "policy-b", "policy-a\n")),
)


def _identities(group: Group) -> None:
    for field, code, others in _IDENTITIES:
        for other in others:
            shown = other.hex()[:8] if isinstance(other, bytes) else repr(other)
            _refuse(
                group,
                code,
                field,
                f"the called side's {field} is {shown}",
                ["Identity"],
                caller(),
                called(**{field: other}),
            )
        _refuse(
            group,
            code,
            field,
            f"the caller's {field} is another one",
            ["Identity"],
            caller(**{field: others[-1]}),
            called(),
        )
    for first in range(len(_IDENTITIES)):
        for second in range(first + 1, len(_IDENTITIES)):
            (field, code, one), (later, _, two) = _IDENTITIES[first], _IDENTITIES[second]
            _refuse(
                group,
                code,
                field,
                f"{field} and {later}",
                ["IdentityOrder"],
                caller(),
                called(**{field: one[-1], later: two[-1]}),
            )
    for offset in (-1, 1):
        bits = int(LIMITS["MASS_BITS"]) + offset
        _refuse(
            group,
            "SEMANTICS_MISMATCH",
            "semantics",
            f"a mass of {bits} bits",
            ["Identity"],
            caller(),
            called(semantics=f"dyadic{bits}-standard-v1"),
            Limit("MASS_BITS", offset),
        )
        target = int(LIMITS["TARGET_BITS"]) + offset
        _refuse(
            group,
            "VERIFIER_MISMATCH",
            "verifier",
            f"a target mass of {target} bits",
            ["Identity"],
            caller(),
            called(verifier=f"standard-int{target}-v1"),
            Limit("TARGET_BITS", offset),
        )
    _accept(
        group,
        "a mass of 24 bits",
        ["Agreed"],
        caller(requests_max=3),
        called(),
        Limit("MASS_BITS", 0),
    )
    _accept(
        group,
        "a target mass of 48 bits",
        ["Agreed"],
        caller(requests_max=2),
        called(),
        Limit("TARGET_BITS", 0),
    )
    same = {"draft_checkpoint": "", "target_checkpoint": "", "processors": ""}
    _accept(group, "empty names agree", ["Agreed"], caller(**same), called(**same))
    long = {"draft_checkpoint": "\u00e9" * 200, "processors": "p" * 200}
    _accept(group, "names of 200 characters agree", ["Agreed"], caller(**long), called(**long))
    adapted = {"draft_native": False}
    _accept(
        group, "an adapted draft on both sides", ["Agreed"], caller(**adapted), called(**adapted)
    )


def _both(**changes: Any) -> tuple[Values, Values]:
    return caller(**changes), called(**changes)


def _vocabularies(group: Group) -> None:
    for offset in (-1, 0, 1):
        size = int(LIMITS["VOCABULARY_SIZE_MAX"]) + offset
        offers = _both(
            vocabulary_size=size, legal_size=size, frame_bytes_max=1 << 23, staging_bytes=1 << 40
        )
        limit = Limit("VOCABULARY_SIZE_MAX", offset)
        if offset <= 0:
            _accept(group, f"{size} ids", ["Vocabulary", "Agreed"], *offers, limit)
        else:
            _refuse(
                group,
                "VOCABULARY_SIZE_MISMATCH",
                "vocabulary_size",
                f"{size} ids",
                ["Vocabulary"],
                *offers,
                limit,
            )
    for size, legal in ((12, 12), (12, 1), (1, 1)):
        _accept(
            group,
            f"{legal} of {size} ids are legal",
            ["Vocabulary", "Agreed"],
            *_both(vocabulary_size=size, legal_size=legal),
        )
    for size, legal in ((12, 13), (12, 0), (0, 0), (0, 1), ((1 << 32) - 1, 10)):
        _refuse(
            group,
            "VOCABULARY_SIZE_MISMATCH",
            "vocabulary_size",
            f"{legal} of {size} ids are legal",
            ["Vocabulary"],
            *_both(vocabulary_size=size, legal_size=legal),
        )


def _representations(group: Group) -> None:
    for ours, theirs in (
        ([1], [1]),
        ([2], [2]),
        ([1, 2], [1]),
        ([2], [1, 2]),
        ([2, 1], [1, 2]),
        ([1, 1], [1, 2]),
        ([1, 2, 3, 255], [3, 2, 255]),
        ([0, 1], [0, 1]),
        (list(range(16)), [1, 2]),
    ):
        _accept(
            group,
            f"representations {ours} and {theirs}",
            ["Representations"],
            caller(representations=ours),
            called(representations=theirs),
        )
    for ours, theirs in (
        ([1], [2]),
        ([2], [1]),
        ([], [1, 2]),
        ([1, 2], []),
        ([], []),
        ([3], [3]),
        ([0, 3, 255], [0, 3, 255]),
        ([1, 3], [2, 3]),
    ):
        _refuse(
            group,
            "NO_COMMON_REPRESENTATION",
            "representations",
            f"representations {ours} and {theirs}",
            ["Representations"],
            caller(representations=ours),
            called(representations=theirs),
        )


def _bounds(group: Group) -> None:
    for field, low in (
        ("requests_max", 1),
        ("requests_max", 3),
        ("depth_max", 1),
        ("depth_max", 4),
        ("support_max", 1),
        ("support_max", 5),
        ("frame_bytes_max", 48),
        ("staging_bytes", 1920),
    ):
        _accept(
            group, f"the caller's {field} is {low}", ["Lesser"], caller(**{field: low}), called()
        )
        _accept(
            group,
            f"the called side's {field} is {low}",
            ["Lesser"],
            caller(),
            called(**{field: low}),
        )
    for field in ("requests_max", "depth_max"):
        name = _CEILINGS[field]
        for offset in (-1, 0, 1, 1000):
            value = int(LIMITS[name]) + offset
            _accept(
                group,
                f"both offer {field} {value}",
                ["Contract"] if offset > 0 else ["Agreed"],
                *_both(**{field: value}),
                Limit(name, offset) if offset <= 1 else None,
            )
    for offset in (-1, 0, 1):
        value = int(LIMITS["SUPPORT_MAX"]) + offset
        _accept(
            group,
            f"both offer support_max {value}",
            ["Contract"] if offset > 0 else ["Agreed"],
            *_both(
                vocabulary_size=129280,
                legal_size=129280,
                representations=[2],
                support_max=value,
                frame_bytes_max=1 << 20,
                staging_bytes=1 << 30,
            ),
            Limit("SUPPORT_MAX", offset),
        )
    _accept(
        group,
        "a support above the vocabulary counts as the vocabulary",
        ["Agreed"],
        *_both(support_max=100),
    )
    for field, floor in (
        ("requests_max", 1),
        ("depth_max", 1),
        ("support_max", 1),
        ("frame_bytes_max", 8),
        ("staging_bytes", 8),
    ):
        for value in sorted({0, floor - 1}):
            _refuse(
                group,
                "BOUND_TOO_SMALL",
                field,
                f"the caller's {field} is {value}",
                ["Floor"],
                caller(**{field: value}),
                called(),
            )
            _refuse(
                group,
                "BOUND_TOO_SMALL",
                field,
                f"the called side's {field} is {value}",
                ["Floor"],
                caller(),
                called(**{field: value}),
            )
    small = {"representations": [2], "support_max": 1, "requests_max": 1, "depth_max": 1}
    for offset in (-1, 0, 1):
        offers = _both(**small, frame_bytes_max=8 + offset)
        limit = Limit("SPARSE_ENTRY_BYTES", offset)
        if offset < 0:
            _refuse(
                group,
                "BOUND_TOO_SMALL",
                "frame_bytes_max",
                "a frame of 7 bytes",
                ["Floor"],
                *offers,
                limit,
            )
        else:
            _accept(
                group,
                f"rows of one entry in a frame of {8 + offset} bytes",
                ["Frame"],
                *offers,
                limit,
            )


def _sizes(group: Group) -> None:
    """The largest row against the frame, the batches against the staging memory."""
    shapes: tuple[tuple[str, Values, int], ...] = (
        ("dense", {"representations": [1]}, 48),
        ("sparse", {"representations": [2]}, 48),
        ("both, sparse is larger", {"representations": [1, 2], "support_max": 12}, 96),
        ("sparse, support above the vocabulary", {"representations": [2], "support_max": 50}, 96),
    )
    for what, shape, row in shapes:
        for offset in (-1, 0, 1):
            offers = _both(**shape, frame_bytes_max=row + offset)
            comment = f"{what}: rows of {row} bytes, frames of {row + offset}"
            if offset < 0:
                _refuse(group, "BOUND_TOO_SMALL", "frame_bytes_max", comment, ["Frame"], *offers)
            else:
                _accept(group, comment, ["Frame"], *offers)
            needed = 4 * 2 * 5 * row
            offers = _both(**shape, staging_bytes=needed + offset)
            comment = f"{what}: {needed} bytes needed, {needed + offset} offered"
            if offset < 0:
                _refuse(group, "STAGING_TOO_SMALL", "staging_bytes", comment, ["Staging"], *offers)
            else:
                _accept(group, comment, ["Staging"], *offers)
    for offset in (-1, 0, 1):
        batches = 2 + offset
        offers = _both(staging_bytes=4 * batches * 5 * 48)
        limit = Limit("BATCHES_IN_FLIGHT", offset)
        if offset < 0:
            _refuse(
                group,
                "STAGING_TOO_SMALL",
                "staging_bytes",
                "room for one batch",
                ["Staging"],
                *offers,
                limit,
            )
        else:
            _accept(group, f"room for {batches} batches", ["Staging"], *offers, limit)
        size = int(LIMITS["VOCABULARY_SIZE_DEFAULT"])
        whole = {
            "vocabulary_size": size,
            "legal_size": size,
            "support_max": 16160,
            "frame_bytes_max": 1 << 20,
            "staging_bytes": 1 << 30,
        }
        staging = int(LIMITS["STAGING_BYTES_DEFAULT"]) + offset
        limit = Limit("STAGING_BYTES_DEFAULT", offset)
        offers = _both(**{**whole, "staging_bytes": staging})
        if offset < 0:
            _refuse(
                group,
                "STAGING_TOO_SMALL",
                "staging_bytes",
                f"{staging} bytes of staging",
                ["Staging"],
                *offers,
                limit,
            )
        else:
            _accept(group, f"{staging} bytes of staging", ["Staging"], *offers, limit)
        frame = int(LIMITS["PAYLOAD_BYTES_MAX"]) + offset
        large = {
            "vocabulary_size": 1 << 20,
            "legal_size": 1 << 20,
            "representations": [1],
            "staging_bytes": 1 << 40,
            "frame_bytes_max": frame,
        }
        limit = Limit("PAYLOAD_BYTES_MAX", offset)
        if offset < 0:
            _refuse(
                group,
                "BOUND_TOO_SMALL",
                "frame_bytes_max",
                f"frames of {frame} bytes for the largest row",
                ["Frame"],
                *_both(**large),
                limit,
            )
        else:
            _accept(
                group,
                f"frames of {frame} bytes for the largest row",
                ["Contract" if offset else "Frame"],
                *_both(**large),
                limit,
            )
    _accept(group, "staging of 2^64 - 1 bytes", ["Agreed"], *_both(staging_bytes=(1 << 64) - 1))
    _refuse(
        group,
        "STAGING_TOO_SMALL",
        "staging_bytes",
        "the lesser of two stagings",
        ["Staging", "Lesser"],
        caller(staging_bytes=1919),
        called(),
    )
    _refuse(
        group,
        "STAGING_TOO_SMALL",
        "staging_bytes",
        "another's staging is no help",
        ["Staging", "Lesser"],
        caller(),
        called(staging_bytes=1919),
    )


def _digests(file: File) -> None:
    pairs = (
        ("the usual terms", caller(), called()),
        ("narrower terms", caller(depth_max=2), called(requests_max=1)),
        ("rank 1", caller(), called(role=_RANK_ONE)),
        ("nonces swapped", caller(nonce=CALLED_NONCE), called(nonce=CALLER_NONCE)),
    )
    for what, one, two in pairs:
        group = file.group(
            "confirm_terms", caller=scene.body("Hello", **one), called=scene.body("Hello", **two)
        )
        terms = agree(one, two)
        digest = pack.terms_digest(list(terms.values()))

        def agreed(value: bytes, nonce: bytes = one["nonce"]) -> bytes:
            return scene.body("TermsAgreed", nonce=nonce, digest=value)

        group.valid(
            what,
            ["Digest", "Epoch"],
            body=agreed(digest),
            output={"link_epoch": pack.link_epoch(one["nonce"], two["nonce"], digest)},
        )
        others = {
            "zeros": bytes(32),
            "reversed": digest[::-1],
            "one bit changed": bytes([digest[0] ^ 1]) + digest[1:],
            "the last bit changed": digest[:-1] + bytes([digest[-1] ^ 1]),
            "the terms of another depth": pack.terms_digest(
                list({**terms, "depth_max": 3}.values())
            ),
            "the terms with the row size left out": pack.terms_digest(list(terms.values())[:-1]),
            "the representations as offered": pack.terms_digest(
                list({**terms, "representations": [2, 1]}.values())
            ),
        }
        for other, value in others.items():
            group.invalid(
                "TERMS_DIGEST_MISMATCH", f"{what}: {other}", ["Digest"], body=agreed(value)
            )


def make() -> File:
    """The file."""
    file = File("negotiation", "PP1 negotiation", "05 Session: Negotiation", NOTES)
    group = file.group("derive_terms")
    _accept(group, "the usual offers", ["Agreed"], caller(), called())
    _ends(group)
    _identities(group)
    _vocabularies(group)
    _representations(group)
    _bounds(group)
    _sizes(group)
    _digests(file)
    return file
