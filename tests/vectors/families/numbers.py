"""The numbers of 01 and 02: draws, counts, laws, chains. Results are the oracle's, in Fractions."""

import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from specs import oracle

from .. import philox, scene
from ..suite import File, Group, Note

MASS, TARGET = 1 << 24, 1 << 48
_MASS_BITS, _TARGET_BITS = 24, 48


def f64(value: float) -> str:
    """The bits of a binary64."""
    return struct.pack(">d", value).hex()


def f32(value: float) -> str:
    """The bits of a binary32."""
    return struct.pack(">f", value).hex()


def listed(counts: Mapping[int, int] | Sequence[int]) -> dict[str, Any]:
    """Ids with mass and their counts."""
    pairs = counts.items() if isinstance(counts, Mapping) else enumerate(counts)
    kept = [(token, count) for token, count in sorted(pairs) if count]
    return {"ids": [token for token, _ in kept], "counts": [count for _, count in kept]}


# --- random numbers ------------------------------------------------------------------------

RNG_NOTES: Final = {
    "Random123": Note("a known answer of Random123", ("02-R-5",), "another generator"),
    "Block": Note(
        "the block function at ends and single bits of counter and key",
        ("02-R-5",),
        "a carry or a word order is wrong",
    ),
    "Key": Note(
        "a derived key", ("02-R-1", "02-R-2"), "worker and verifier share noise, or two requests do"
    ),
    "Ticket": Note(
        "a ticket of word 0",
        ("02-R-8", "02-R-9"),
        "another token is drawn than the one that the other rank draws",
    ),
    "Bounded": Note("a draw below a bound", ("02-R-10",), "acceptance is biased"),
    "Retry": Note(
        "a draw whose first words are not used",
        ("02-R-10", "02-R-11"),
        "acceptance is biased, or the two ranks part after a retry",
    ),
    "Reduce": Note(
        "the reduction of one word at the edge of its results",
        ("02-R-10",),
        "one result is a word too likely",
    ),
    "Domain": Note("a domain that is not registered", ("02-R-6",), "two uses share their noise"),
    "Range": Note(
        "a field that does not fit its bits",
        ("02-R-6", "02-R-9", "02-R-10"),
        "it is cut, so two places share their noise",
    ),
}

_KAT: Final = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_DOMAINS: Final = (1, 2, 3, 4, 5)


def make_rng() -> File:
    """Blocks, keys, tickets and bounded draws."""
    file = File("rng", "philox4x32-10/blake2b-v1", "02 RNG ABI", RNG_NOTES)
    group = file.group("philox")
    for counter, key, words in _KAT:
        group.valid(
            "a known answer", ["Random123"], counter=counter, key=key, output={"words": words}
        )
    for place in range(4):
        for value in (1, 1 << 31, _U32):
            one = tuple(value if word == place else 0 for word in range(4))
            group.valid(
                f"counter word {place} is {value}",
                ["Block"],
                counter=one,
                key=(0, 0),
                output={"words": philox.block(one, (0, 0))},
            )
    for place in range(2):
        for value in (1, 1 << 31, _U32, 0x61C88647, 0x44984A79):
            one = tuple(value if word == place else 0 for word in range(2))
            group.valid(
                f"key word {place} is {value}",
                ["Block"],
                counter=(1, 2, 3, 4),
                key=one,
                output={"words": philox.block((1, 2, 3, 4), one)},
            )
    _keys(file)
    _tickets(file)
    _bounded(file)
    _reduction(file)
    return file


def _keys(file: File) -> None:
    group = file.group("derive_key")
    base = {
        "session_seed": scene.SEED,
        "session_id": scene.SESSION,
        "request_id": 7,
        "generation": 3,
        "owner": 0,
    }
    variants: list[tuple[str, dict[str, Any]]] = [("the worked example", {})]
    variants += [("the verifier's", {"owner": 1})]
    variants += [(f"request {value}", {"request_id": value}) for value in (0, 8, 1 << 63, _U64)]
    variants += [
        (f"generation {value}", {"generation": value}) for value in (1, 2, 4, (1 << 63) - 1, _U64)
    ]
    variants += [
        ("another seed", {"session_seed": scene.SEED[::-1]}),
        ("a seed of zeros", {"session_seed": bytes(32)}),
        ("another session", {"session_id": scene.OTHER_SESSION}),
        ("a session of zeros", {"session_id": bytes(16)}),
    ]
    for what, change in variants:
        given = {**base, **change}
        key = philox.derive_key(
            given["session_seed"],
            given["session_id"],
            given["request_id"],
            given["generation"],
            given["owner"],
        )
        group.valid(what, ["Key"], output={"key": key}, **given)
    wrong: list[tuple[str, dict[str, Any]]] = [
        (f"a seed of {size} bytes", {"session_seed": bytes(size)}) for size in (0, 31, 33)
    ]
    wrong += [(f"a session of {size} bytes", {"session_id": bytes(size)}) for size in (0, 15, 17)]
    wrong += [
        (f"{field} {value}", {field: value})
        for field in ("request_id", "generation")
        for value in (-1, 1 << 64)
    ]
    wrong += [(f"owner {value}", {"owner": value}) for value in (2, -1, 255)]
    for what, change in wrong:
        group.invalid("RNG_RANGE", what, ["Range", "Key"], **{**base, **change})


def _tickets(file: File) -> None:
    key = bytes.fromhex("f50b8f56b43ddd4d")
    group = file.group("ticket", key=key)

    def draw(comment: str, bits: int, domain: int, position: int, round_: int) -> None:
        group.valid(
            comment,
            ["Ticket"],
            bits=bits,
            domain=domain,
            position=position,
            round=round_,
            output={"ticket": philox.ticket(key, bits, domain, position, round_)},
        )

    draw("the worked example", 24, 1, 41, 2)
    for bits in (1, 2, 8, 23, 25, 31, 32):
        draw(f"{bits} bits", bits, 1, 41, 2)
    for domain in _DOMAINS[1:]:
        draw(f"domain {domain}", 24, domain, 41, 2)
    for position in (0, 1, 40, 42, 255, 256, (1 << 31) - 1, _U32):
        draw(f"position {position}", 24, 1, position, 2)
    for round_ in (0, 1, 3, 255, 256, _U32):
        draw(f"round {round_}", 24, 1, 41, round_)
    draw("position and round swapped", 24, 1, 2, 41)
    right: dict[str, Any] = {"bits": 24, "domain": 1, "position": 41, "round": 2}
    for bits in (0, 33, -1, 64):
        group.invalid("RNG_RANGE", f"{bits} bits", ["Range"], **{**right, "bits": bits})
    for domain in (0, 6, 7, 128, 255, 256, -1):
        group.invalid("RNG_DOMAIN", f"domain {domain}", ["Domain"], **{**right, "domain": domain})
    for field in ("position", "round"):
        for value in (-1, 1 << 32, 1 << 63):
            group.invalid("RNG_RANGE", f"{field} {value}", ["Range"], **{**right, field: value})
    for size in (0, 7, 9, 16):
        short = file.group("ticket", key=bytes(size))
        short.invalid("RNG_RANGE", f"a key of {size} bytes", ["Range"], **right)


def _bounded(file: File) -> None:
    key = bytes.fromhex("ae429c549af3beb7")
    group = file.group("below", key=key)

    def draw(comment: str, bound: int, domain: int, position: int, round_: int = 2) -> None:
        value, draws = philox.below(key, bound, domain, position, round_)
        flags = ["Bounded", *(["Retry"] if draws > 1 else [])]
        group.valid(
            comment,
            flags,
            bound=bound,
            domain=domain,
            position=position,
            round=round_,
            output={"value": value, "draws": draws},
        )

    for bound, domain, position in ((3, 2, 41), (TARGET, 3, 41), (3689348814741910324, 2, 7)):
        draw(f"the worked example below {bound}", bound, domain, position)
    for bound in (
        1,
        2,
        5,
        255,
        1000,
        MASS,
        MASS + 1,
        _U32,
        1 << 32,
        (1 << 32) + 1,
        TARGET - 1,
        TARGET,
        TARGET + 1,
        (1 << 61) + 1,
        (1 << 62) - 1,
        1 << 62,
    ):
        draw(f"below {bound}", bound, 2, 41)
    for domain in (1, 3, 4, 5):
        draw(f"domain {domain}", TARGET, domain, 100)
    # The worst bounds waste almost a quarter of the words.
    worst = (1 << 64) // 5 + 1
    found = {1: 0, 2: 0, 3: 0, 4: 0}
    for position in range(3000):
        draws = philox.below(key, worst, 2, position, 9)[1]
        if found.get(draws, 2) < 2:
            found[draws] += 1
            draw(f"{draws} draws below {worst}", worst, 2, position, 9)
    right: dict[str, Any] = {"bound": 3, "domain": 2, "position": 41, "round": 2}
    for bound in (0, -1, (1 << 62) + 1, 1 << 63, 1 << 64):
        group.invalid(
            "RNG_RANGE", f"below {bound}", ["Range", "Bounded"], **{**right, "bound": bound}
        )
    for domain in (0, 6, 255):
        group.invalid(
            "RNG_DOMAIN", f"domain {domain}", ["Domain", "Bounded"], **{**right, "domain": domain}
        )
    for field in ("position", "round"):
        for value in (-1, 1 << 32):
            group.invalid(
                "RNG_RANGE", f"{field} {value}", ["Range", "Bounded"], **{**right, field: value}
            )


def _reduction(file: File) -> None:
    """The first and last word of some results, and the words that are not shared out."""
    group = file.group("reduce")
    for bound in (3, 5, 1000, TARGET - 1, 3689348814741910324, (1 << 62) - 1):
        spare = (1 << 64) % bound
        for word in (0, 1, _U64, (1 << 64) // bound, (1 << 64) // bound + 1, 1 << 63):
            group.valid(
                f"word {word} below {bound}; {spare} words are not shared out",
                ["Reduce"],
                word=word,
                bound=bound,
                output={"value": philox.reduce(word, bound)},
            )


# --- allocation ----------------------------------------------------------------------------

ALLOCATION_NOTES: Final = {
    "Counts": Note(
        "floors, and one more for the largest remainders",
        ("01-D-4",),
        "another draft than the sender means, and another acceptance",
    ),
    "Ties": Note(
        "equal remainders or weights: the lowest id first",
        ("01-D-4", "01-D-6"),
        "the counts depend on the machine",
    ),
    "TopK": Note(
        "the support, divided by its sum, without zero counts",
        ("01-D-6", "01-D-11"),
        "a row with more entries than its slot, or with empty ones",
    ),
    "Masked": Note("an id of weight zero", ("01-D-2", "01-D-5"), "a masked id is drawn"),
    "Tolerance": Note(
        "a sum as far from one as is allowed, or just beyond",
        ("01-D-3",),
        "weights that are none are repaired",
    ),
    "NotWeights": Note(
        "NaN, infinity, a negative value, or another sum",
        ("01-D-3",),
        "weights that are none are repaired",
    ),
    "FinerMass": Note(
        "a finer mass than any peer agrees to, where D-3 does not imply D-5",
        ("01-D-5",),
        "tickets for ids of probability zero",
    ),
    "SmallMass": Note("a small mass, where every ticket matters", ("01-D-4",), "off by one"),
}


def _allocate(
    group: Group, comment: str, flags: list[str], weights: Sequence[float], bits: int = _MASS_BITS
) -> None:
    counts = oracle.dyadic_counts(list(weights), bits)
    assert sum(counts) == 1 << bits
    group.valid(
        comment, flags, weights=[f64(weight) for weight in weights], output={"counts": list(counts)}
    )


def _spread(size: int, salt: int) -> list[float]:
    """Weights of sum exactly one with 40 bits each."""
    parts = [
        (salt * 2654435761 + place * 40503 * (place + salt)) % 1000003 + 1 for place in range(size)
    ]
    total = sum(parts)
    scaled = [part * (1 << 40) // total for part in parts]
    scaled[salt % size] += (1 << 40) - sum(scaled)
    return [value / (1 << 40) for value in scaled]


def make_allocation() -> File:
    """Weights to counts."""
    file = File("allocation", "dyadic24-standard-v1", "01 Distribution: Counts", ALLOCATION_NOTES)
    group = file.group("allocate", mass_bits=_MASS_BITS)
    third = 1 / 3
    cases: tuple[tuple[str, list[str], list[float]], ...] = (
        ("the worked example", ["Counts", "Masked"], [0.3, 0.0, 0.1, 0.6]),
        ("one certain id", ["Counts", "Masked"], [0.0, 1.0, 0.0]),
        ("a vocabulary of one", ["Counts"], [1.0]),
        ("two halves", ["Counts"], [0.5, 0.5]),
        ("three thirds", ["Ties"], [third, third, third]),
        ("five fifths", ["Ties"], [0.2] * 5),
        ("seven sevenths", ["Ties"], [1 / 7] * 7),
        ("ten tenths", ["Ties"], [0.1] * 10),
        ("half a ticket on the first id", ["Counts"], [2**-25, 1 - 2**-25]),
        ("half a ticket on the last id", ["Counts"], [1 - 2**-25, 2**-25]),
        ("half a ticket on two ids", ["Ties"], [2**-25, 2**-25, 1 - 2**-24]),
        ("a ticket less a little", ["Counts"], [2**-24 - 2**-50, 1 - 2**-24 + 2**-50]),
        ("a remainder of 2^-29", ["Counts"], [0.25 + 2**-53, 0.75 - 2**-53]),
        ("ids far below a ticket", ["Counts"], [1e-12, 1 - 2e-12, 1e-12]),
        ("the smallest subnormal", ["Counts"], [5e-324, 1.0]),
        ("masked ids between others", ["Masked"], [0.0, 0.25, 0.0, 0.0, 0.7, 0.0, 0.05]),
        (
            "remainders in descending order of id",
            ["Counts"],
            [0.1 + 2**-26, 0.2 + 2**-27, 0.3, 0.4 - 2**-26 - 2**-27],
        ),
    )
    for comment, flags, weights in cases:
        _allocate(group, comment, flags, weights)
    for size in (2, 3, 4, 8, 17, 40):
        for salt in (1, 2):
            _allocate(group, f"{size} weights, {salt}", ["Counts"], _spread(size, salt))
    above = 0.5 + 1e-9 / 2
    while above + 0.5 - 1.0 <= 1e-9:
        above += 2**-53
    _allocate(group, "the largest sum that is allowed", ["Tolerance"], [0.5, above - 2**-53])
    group.invalid(
        "WEIGHTS_INVALID", "a sum just above", ["Tolerance"], weights=[f64(0.5), f64(above)]
    )
    below = 0.5 - 1e-9 / 2
    while 1.0 - (below + 0.5) <= 1e-9:
        below -= 2**-54
    _allocate(group, "the smallest sum that is allowed", ["Tolerance"], [0.5, below + 2**-54])
    group.invalid(
        "WEIGHTS_INVALID", "a sum just below", ["Tolerance"], weights=[f64(0.5), f64(below)]
    )
    wrong: tuple[tuple[str, list[float]], ...] = (
        ("a NaN", [0.5, float("nan"), 0.5]),
        ("a NaN alone", [float("nan")]),
        ("infinity", [0.5, float("inf")]),
        ("-infinity", [1.0, float("-inf")]),
        ("infinities that cancel", [float("inf"), float("-inf"), 1.0]),
        ("a negative value", [1.5, -0.5]),
        ("the smallest negative value", [1.0, -5e-324]),
        ("nothing but zeros", [0.0, 0.0]),
        ("half", [0.25, 0.25]),
        ("two", [1.0, 1.0]),
        ("logits", [3.0, 1.0, -2.0]),
        ("weights that are not normalised", [3.0, 1.0]),
        ("no weights", []),
        ("one above one", [1.0 + 2e-9]),
    )
    for comment, weights in wrong:
        group.invalid(
            "WEIGHTS_INVALID", comment, ["NotWeights"], weights=[f64(weight) for weight in weights]
        )
    for bits in (1, 2, 3, 8):
        small = file.group("allocate", mass_bits=bits)
        for weights in (
            [0.3, 0.0, 0.1, 0.6],
            [third, third, third],
            [0.5, 0.5],
            [0.2] * 5,
            [0.9, 0.05, 0.05],
        ):
            _allocate(small, f"{1 << bits} tickets for {weights}", ["SmallMass"], weights, bits)
    finer = file.group("allocate", mass_bits=48)
    _allocate(finer, "exact at 2^48", ["FinerMass"], [0.25, 0.75], 48)
    for comment, weights in (
        ("more left over than there are remainders", [0.5 - 2**-32, 0.5, 0.0]),
        ("more left over, no remainders at all", [0.25, 0.75 - 2**-40, 0.0]),
        ("fewer than none left over", [0.5 + 2**-32, 0.5]),
    ):
        finer.invalid(
            "ALLOCATION_INCONSISTENT",
            comment,
            ["FinerMass", "Masked"],
            weights=[f64(weight) for weight in weights],
        )
    _top(file)
    return file


def _top(file: File) -> None:
    group = file.group("top_k", mass_bits=_MASS_BITS)

    def take(comment: str, flags: list[str], weights: Sequence[float], k: int) -> None:
        order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
        support = sorted(token for token in order[:k] if weights[token])
        total = sum(Fraction(weights[token]) for token in support)
        # The sum is a binary64 whatever the order of adding, so the quotients are given by it.
        assert Fraction(float(total)) == total
        inside = [weights[token] / float(total) for token in support]
        counts = oracle.dyadic_counts(inside, _MASS_BITS)
        group.valid(
            comment,
            flags,
            weights=[f64(weight) for weight in weights],
            k=k,
            output=listed(dict(zip(support, counts, strict=True))),
        )

    fine = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 32]
    for k in range(1, 7):
        take(f"the {k} largest of halves", ["TopK"], fine, k)
    take("more than there are", ["TopK"], fine, 9)
    flat = [0.125] * 8
    for k in (1, 3, 7):
        take(f"{k} of eight equal weights", ["TopK", "Ties"], flat, k)
    take("ties at the edge of the support", ["TopK", "Ties"], [0.25, 0.125, 0.25, 0.125, 0.25], 4)
    take("zeros never enter", ["TopK", "Masked"], [0.0, 0.5, 0.0, 0.5], 3)
    take("counts of zero are dropped", ["TopK"], [2**-30, 1 - 2**-29, 2**-30], 3)
    take("the support's sum is not one", ["TopK"], [0.375, 0.25, 0.25, 0.125], 3)
    take("descending ids", ["TopK"], [1 / 32, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2], 2)
    group.invalid(
        "WEIGHTS_INVALID",
        "a NaN outside the support",
        ["NotWeights", "TopK"],
        weights=[f64(0.5), f64(0.5), f64(float("nan"))],
        k=1,
    )
    group.invalid(
        "WEIGHTS_INVALID",
        "normalised within the support only",
        ["NotWeights", "TopK"],
        weights=[f64(0.5), f64(0.5), f64(0.25)],
        k=2,
    )
    group.invalid(
        "WEIGHTS_INVALID",
        "a negative weight outside the support",
        ["NotWeights", "TopK"],
        weights=[f64(1.0), f64(0.25), f64(-0.25)],
        k=1,
    )


# --- sampling ------------------------------------------------------------------------------

SAMPLING_NOTES: Final = {
    "Draw": Note(
        "the first id whose cumulative count is above the ticket",
        ("01-D-7",),
        "an id is one ticket too likely and its neighbour one too few",
    ),
    "Empty": Note(
        "ids without mass around the drawn one", ("01-D-7",), "an id of probability zero is drawn"
    ),
    "Shards": Note(
        "the shard by its mass and the token within it, from one ticket",
        ("01-D-26",),
        "ranks with shards and one rank draw different tokens",
    ),
    "EmptyShard": Note("a shard without mass", ("01-D-26",), "an id of probability zero is drawn"),
}


def _token(counts: Sequence[int], ticket: int) -> int:
    """The oracle's token; its tickets are the counts', each standing for several."""
    law = oracle.from_counts(counts)
    return law.token_at(ticket * law.tickets // sum(counts))


def make_sampling() -> File:
    """Counts and a ticket to a token."""
    file = File(
        "sampling", "dyadic24-standard-v1", "01 Distribution: Drawing, shards", SAMPLING_NOTES
    )
    laws: tuple[tuple[list[str], list[int]], ...] = (
        (["Draw"], [5033165, 0, 1677722, 10066329]),
        (["Draw"], [MASS]),
        (["Draw"], [1, MASS - 1]),
        (["Draw"], [MASS - 1, 1]),
        (["Draw", "Empty"], [0, 0, MASS, 0]),
        (["Draw", "Empty"], [0, 1, 0, MASS - 2, 0, 1, 0]),
        (["Draw"], [MASS // 4] * 4),
    )
    for flags, counts in laws:
        group = file.group(
            "token_at", mass_bits=_MASS_BITS, vocabulary_size=len(counts), **listed(counts)
        )
        edges = {0, MASS - 1, MASS // 2}
        edge = 0
        for count in counts:
            edge += count
            edges |= {edge - 1, edge, edge + 1}
        for ticket in sorted(edge for edge in edges if 0 <= edge < MASS):
            group.valid(
                f"ticket {ticket}", flags, ticket=ticket, output={"token": _token(counts, ticket)}
            )
    small = [3, 0, 4, 1]
    group = file.group("token_at", mass_bits=3, vocabulary_size=4, **listed(small))
    for ticket in range(8):
        group.valid(
            f"ticket {ticket} of eight",
            ["Draw", "Empty"],
            ticket=ticket,
            output={"token": _token(small, ticket)},
        )
    shards: tuple[tuple[list[str], list[list[int]]], ...] = (
        (["Shards"], [[3, 0, 1], [2, 2, 0]]),
        (["Shards", "EmptyShard"], [[0, 0], [5, 0, 2], [0], [1, 0, 0]]),
        (["Shards"], [[TARGET // 2, 1], [0, TARGET // 2 - 1]]),
        (["Shards", "EmptyShard"], [[0], [TARGET], [0]]),
    )
    for flags, parts in shards:
        whole = [count for part in parts for count in part]
        total = sum(whole)
        group = file.group("token_at_shards", shards=parts)
        edges = {0, total - 1, total // 2}
        edge = 0
        for part in parts:
            edge += sum(part)
            edges |= {edge - 1, edge}
        for ticket in sorted(edge for edge in edges if 0 <= edge < total):
            group.valid(
                f"ticket {ticket} of {total}",
                flags,
                ticket=ticket,
                output={"token": _token(whole, ticket)},
            )
    return file
