"""The RNG ABI: published and own vectors, the layout field by field, exact uniformity."""

from collections import Counter
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from proto_v2.rng import (
    BELOW_MAX,
    RETRIES_MAX,
    RNG_ABI,
    Domain,
    KeyedTickets,
    Owner,
    derive_key,
    lemire,
    philox4x32_10,
)
from tests.proto_samples import deterministic

SEED = bytes(range(32))
SESSION = bytes(range(100, 116))
FULL = 0xFFFF_FFFF

# What a draw may depend on: the fields of the key, then those of the counter.
BASE = {
    "session_seed": SEED,
    "session_id": SESSION,
    "request_id": 7,
    "generation": 3,
    "owner": Owner.WORKER,
    "domain": Domain.PROPOSAL,
    "position": 41,
    "round": 2,
    "draw": 0,
}


def block(fields: dict[str, object]) -> tuple[int, int, int, int]:
    """The words that a set of fields draws."""
    key = derive_key(
        fields["session_seed"],  # type: ignore[arg-type]
        fields["session_id"],  # type: ignore[arg-type]
        fields["request_id"],  # type: ignore[arg-type]
        fields["generation"],  # type: ignore[arg-type]
        fields["owner"],  # type: ignore[arg-type]
    )
    return KeyedTickets(key).block(
        fields["domain"],  # type: ignore[arg-type]
        fields["position"],  # type: ignore[arg-type]
        fields["round"],  # type: ignore[arg-type]
        fields["draw"],  # type: ignore[arg-type]
    )


def keyed(owner: Owner = Owner.WORKER) -> KeyedTickets:
    return KeyedTickets(derive_key(SEED, SESSION, 7, 3, owner))


# --- the block function --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (FULL, FULL, FULL, FULL),
            (FULL, FULL),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_block_function_gives_the_known_answers_of_random123(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    """The three philox4x32-10 rows of Random123's ``kat_vectors``."""
    assert philox4x32_10(counter, key) == words


# --- the key -------------------------------------------------------------------------------


def test_key_is_the_keyed_hash_of_the_packed_identity() -> None:
    """The bytes written out by hand, so that a change of the layout cannot hide in a struct."""
    message = SESSION + bytes([7, 0, 0, 0, 0, 0, 0, 0]) + bytes([3, 0, 0, 0, 0, 0, 0, 0])
    for owner in Owner:
        wanted = blake2b(
            message + bytes([owner]), digest_size=8, key=SEED, person=b"PP1-philox-v1\0\0\0"
        ).digest()
        assert derive_key(SEED, SESSION, 7, 3, owner) == wanted


def test_counter_words_are_where_the_abi_puts_them() -> None:
    key = bytes([1, 2, 3, 4, 5, 6, 7, 8])
    words = KeyedTickets(key).block(Domain.BONUS, 0x11223344, 0x55667788, 0x99AABB)
    assert words == philox4x32_10((0x0499AABB, 0x11223344, 0x55667788, 0), (0x04030201, 0x08070605))


# --- own vectors ---------------------------------------------------------------------------


def test_abi_name() -> None:
    assert RNG_ABI == "philox4x32-10/blake2b-v1"
    assert [(d.name, int(d)) for d in Domain] == [
        ("PROPOSAL", 1),
        ("ACCEPTANCE", 2),
        ("RESIDUAL", 3),
        ("BONUS", 4),
        ("TARGET_ONLY", 5),
    ]


@pytest.mark.parametrize(
    ("owner", "key", "tickets"),
    [
        (Owner.WORKER, "f50b8f56b43ddd4d", [5390271, 15112008, 3286362, 11124191, 3720242]),
        (Owner.VERIFIER, "ae429c549af3beb7", [8632793, 1520863, 9817226, 4979312, 4245358]),
    ],
)
def test_own_vectors(owner: Owner, key: str, tickets: list[int]) -> None:
    """24-bit tickets of the five domains at position 41, round 2."""
    assert derive_key(SEED, SESSION, 7, 3, owner).hex() == key
    drawn = [keyed(owner).ticket(24, domain, 41, 2) for domain in Domain]
    assert drawn == tickets


@pytest.mark.parametrize(
    ("bound", "position", "value"),
    [
        (3, 41, 2),
        (1000000, 41, 941684),
        (281474976710656, 41, 265060702820148),
        (4611686018427387904, 41, 4342754555005319130),
        (3689348814741910324, 7, 2720024131743688419),
    ],
)
def test_own_vectors_of_bounded_draws(bound: int, position: int, value: int) -> None:
    """Acceptance draws of round 2; the last row needed a second draw."""
    tickets = keyed(Owner.VERIFIER)
    assert tickets.below(bound, Domain.ACCEPTANCE, position, 2) == value


# --- each field counts ---------------------------------------------------------------------

CHANGES: dict[str, list[object]] = {
    "session_seed": [bytes([SEED[0] ^ 1]) + SEED[1:], SEED[:31] + bytes([SEED[31] ^ 0x80])],
    "session_id": [bytes([SESSION[0] ^ 1]) + SESSION[1:], SESSION[:15] + bytes([0])],
    "request_id": [8, 7 | 1 << 63],
    "generation": [4, 3 | 1 << 63],
    "owner": [Owner.VERIFIER],
    "domain": [domain for domain in Domain if domain is not Domain.PROPOSAL],
    "position": [42, 41 | 1 << 31],
    "round": [3, 2 | 1 << 31],
    "draw": [1, 1 << 23],
}


@pytest.mark.parametrize("field", list(BASE))
def test_each_field_of_the_layout_changes_the_ticket(field: str) -> None:
    """Its lowest and its highest bit, so that no field is cut short."""
    tickets = {block(BASE)[0] >> 8}
    for change in CHANGES[field]:
        tickets.add(block({**BASE, field: change})[0] >> 8)
    assert len(tickets) == 1 + len(CHANGES[field])


def test_request_and_generation_are_not_interchangeable() -> None:
    """Nor are position and round, nor the owner's byte and the last byte of the generation."""
    for left, right in (("request_id", "generation"), ("position", "round")):
        swapped = {**BASE, left: BASE[right], right: BASE[left]}
        assert block(swapped) != block(BASE)


# --- tickets -------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [1, 2, 8, 23, 24, 31, 32])
def test_ticket_is_the_top_of_word_zero(bits: int) -> None:
    tickets = keyed()
    word = tickets.block(Domain.PROPOSAL, 9, 4, 0)[0]
    assert tickets.ticket(bits, Domain.PROPOSAL, 9, 4) == word >> (32 - bits)


@deterministic
@given(
    question=st.tuples(
        st.sampled_from(Domain), st.integers(0, limits.POSITION_MAX), st.integers(0, FULL)
    ),
    others=st.lists(st.integers(0, FULL), max_size=4),
    bound=st.integers(1, BELOW_MAX),
    bits=st.integers(1, 32),
)
def test_a_draw_is_a_pure_function_of_its_question(
    question: tuple[Domain, int, int], others: list[int], bound: int, bits: int
) -> None:
    """Whatever was asked between: there is no stream position."""
    tickets = keyed()
    first = tickets.ticket(bits, *question), tickets.below(bound, *question)
    for position in others:
        tickets.below(bound, Domain.RESIDUAL, position, 1)
    again = keyed()
    assert (tickets.ticket(bits, *question), tickets.below(bound, *question)) == first
    assert (again.ticket(bits, *question), again.below(bound, *question)) == first
    assert 0 <= first[0] < 1 << bits
    assert 0 <= first[1] < bound


def test_the_key_does_not_show() -> None:
    key = derive_key(SEED, SESSION, 7, 3, Owner.VERIFIER)
    text = repr(KeyedTickets(key))
    assert key.hex() not in text
    assert not any(str(int.from_bytes(key[at : at + 4], "little")) in text for at in (0, 4))


# --- integers below a bound ----------------------------------------------------------------


@pytest.mark.parametrize("word_bits", range(1, 9))
def test_lemire_is_uniform_by_enumeration(word_bits: int) -> None:
    """Every word of every small width under every bound: equal shares, few words wasted."""
    words = 1 << word_bits
    for bound in range(1, words + 1):
        results = Counter(lemire(word, bound, word_bits) for word in range(words))
        wasted = results.pop(None, 0)
        assert results == dict.fromkeys(range(bound), words // bound)
        assert wasted == words % bound
        if bound <= words // 4:
            assert 4 * wasted <= words


def test_dropping_the_rejection_would_be_seen() -> None:
    """The same enumeration tells a plain multiply-and-shift, and a remainder, from uniform."""
    for biased in ([word * 3 >> 4 for word in range(16)], [word % 3 for word in range(16)]):
        assert sorted(Counter(biased).values()) == [5, 5, 6]


class Scripted(KeyedTickets):
    """Blocks by draw number; notes which were asked for."""

    __slots__ = ("_blocks", "asked")

    def __init__(self, blocks: list[tuple[int, int, int, int]]) -> None:
        super().__init__(bytes(8))
        self._blocks = blocks
        self.asked: list[int] = []

    def block(
        self, domain: int, position: int, round_: int, draw: int
    ) -> tuple[int, int, int, int]:
        self.asked.append(draw)
        return self._blocks[min(draw, len(self._blocks) - 1)]


def test_below_reads_word_zero_as_the_low_half_and_retries_with_the_next_draw() -> None:
    tickets = Scripted([(0, 0, FULL, FULL), (0, 0, FULL, FULL), (5, 1 << 31, 0, 0)])
    assert tickets.below(3, Domain.RESIDUAL, 0, 0) == 1
    assert tickets.asked == [0, 1, 2]


def test_below_fails_closed_when_every_retry_is_used_up() -> None:
    tickets = Scripted([(0, 0, 0, 0)])
    with pytest.raises(ProtocolError) as refusal:
        tickets.below(3, Domain.RESIDUAL, 0, 0)
    assert refusal.value.code is Code.RNG_EXHAUSTED
    assert tickets.asked == list(range(RETRIES_MAX + 1))


@pytest.mark.parametrize("bound", [1, 2, 1 << 24, 1 << 48, BELOW_MAX])
def test_powers_of_two_never_need_a_retry(bound: int) -> None:
    assert Scripted([(0, 0, 0, 0)]).below(bound, Domain.ACCEPTANCE, 0, 0) == 0
    assert Scripted([(FULL, FULL, 0, 0)]).below(bound, Domain.ACCEPTANCE, 0, 0) == bound - 1


# --- refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"session_seed": SEED[:31]}, "session_seed"),
        ({"session_seed": SEED + b"\0"}, "session_seed"),
        ({"session_id": SESSION[:15]}, "session_id"),
        ({"session_id": SESSION + b"\0"}, "session_id"),
        ({"request_id": -1}, "request_id"),
        ({"request_id": 1 << 64}, "request_id"),
        ({"generation": -1}, "generation"),
        ({"generation": 1 << 64}, "generation"),
        ({"owner": 2}, "owner"),
        ({"owner": -1}, "owner"),
        ({"position": -1}, "position"),
        ({"position": 1 << 32}, "position"),
        ({"round": -1}, "round"),
        ({"round": 1 << 32}, "round"),
        ({"draw": -1}, "draw"),
        ({"draw": 1 << 24}, "draw"),
    ],
)
def test_fields_out_of_range_are_refused_by_name(change: dict[str, object], field: str) -> None:
    with pytest.raises(ProtocolError) as refusal:
        block({**BASE, **change})
    assert (refusal.value.code, refusal.value.field) == (Code.RNG_RANGE, field)


def test_refusals_do_not_show_the_seed() -> None:
    with pytest.raises(ProtocolError) as refusal:
        derive_key(b"secret", SESSION, 1, 1, Owner.WORKER)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("domain", [-1, 0, 6, 255, 256])
def test_unregistered_domains_are_refused(domain: int) -> None:
    with pytest.raises(ProtocolError) as refusal:
        keyed().ticket(24, domain, 0, 0)  # type: ignore[arg-type]
    assert refusal.value.code is Code.RNG_DOMAIN
    with pytest.raises(ProtocolError) as refusal:
        keyed().below(3, domain, 0, 0)  # type: ignore[arg-type]
    assert refusal.value.code is Code.RNG_DOMAIN


@pytest.mark.parametrize("bits", [-1, 0, 33])
def test_ticket_widths_out_of_range_are_refused(bits: int) -> None:
    with pytest.raises(ProtocolError) as refusal:
        keyed().ticket(bits, Domain.PROPOSAL, 0, 0)
    assert (refusal.value.code, refusal.value.field) == (Code.RNG_RANGE, "bits")


@pytest.mark.parametrize("bound", [-1, 0, BELOW_MAX + 1])
def test_bounds_out_of_range_are_refused(bound: int) -> None:
    with pytest.raises(ProtocolError) as refusal:
        keyed().below(bound, Domain.RESIDUAL, 0, 0)
    assert (refusal.value.code, refusal.value.field) == (Code.RNG_RANGE, "bound")


@pytest.mark.parametrize("key", [b"", bytes(7), bytes(9)])
def test_keys_of_another_length_are_refused(key: bytes) -> None:
    with pytest.raises(ProtocolError) as refusal:
        KeyedTickets(key)
    assert (refusal.value.code, refusal.value.field) == (Code.RNG_RANGE, "key")
