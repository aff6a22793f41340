"""The id map's hash: its bytes, and that every way to change the map changes it."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from proto_v2.vocabulary import Vocabulary, map_hash
from tests.proto_samples import deterministic

TOKENS = [b"a", b"", b"bc", b"\xff\0"]


def test_hash_covers_count_lengths_and_bytes_in_id_order() -> None:
    """The hashed bytes written out by hand."""
    hashed = b"\x04\0\0\0" + b"\x01\0\0\0a" + b"\0\0\0\0" + b"\x02\0\0\0bc" + b"\x02\0\0\0\xff\0"
    wanted = blake2b(hashed, digest_size=32, person=b"PP1-vocab-v2\0\0\0\0").digest()
    assert map_hash(TOKENS) == wanted
    assert len(wanted) == 32


def test_own_vector() -> None:
    assert (
        map_hash(TOKENS).hex() == "8907d70cbc7887eb7bd0a19c4f82d3aa4860ed2628aaa69a10f55f1a305f8f87"
    )


def test_an_iterator_is_as_good_as_a_list() -> None:
    assert map_hash(iter(TOKENS)) == map_hash(TOKENS)


def test_bytes_cannot_move_between_tokens() -> None:
    """Concatenations agree; the maps do not."""
    maps: tuple[list[bytes], ...] = (
        [b"ab", b"c"],
        [b"a", b"bc"],
        [b"abc"],
        [b"abc", b""],
        [b"", b"abc"],
        [],
    )
    assert len({map_hash(tokens) for tokens in maps}) == len(maps)


@deterministic
@given(st.lists(st.binary(max_size=3), max_size=6), st.lists(st.binary(max_size=3), max_size=6))
def test_two_maps_have_one_hash_only_if_they_are_one_map(
    left: list[bytes], right: list[bytes]
) -> None:
    assert (map_hash(left) == map_hash(right)) == (left == right)


def test_a_vocabulary_is_its_width_its_legal_size_and_its_map() -> None:
    vocabulary = Vocabulary(12, 10, map_hash(TOKENS))
    assert vocabulary == Vocabulary(size=12, legal_size=10, map_hash=map_hash(TOKENS))
    for other in (
        Vocabulary(13, 10, map_hash(TOKENS)),
        Vocabulary(12, 11, map_hash(TOKENS)),
        Vocabulary(12, 10, map_hash(TOKENS[:-1])),
    ):
        assert vocabulary != other


@pytest.mark.parametrize(
    ("size", "legal_size", "length", "field"),
    [
        (0, 0, 32, "size"),
        (limits.VOCABULARY_SIZE_MAX + 1, 1, 32, "size"),
        (12, 0, 32, "legal_size"),
        (12, 13, 32, "legal_size"),
        (12, 10, 31, "map_hash"),
        (12, 10, 33, "map_hash"),
    ],
)
def test_a_vocabulary_that_no_row_can_have_is_refused_by_name(
    size: int, legal_size: int, length: int, field: str
) -> None:
    with pytest.raises(ProtocolError) as refusal:
        Vocabulary(size, legal_size, bytes(length))
    assert (refusal.value.code, refusal.value.field) == (
        Code.CONFIG_INVALID,
        f"vocabulary.{field}",
    )


def test_the_smallest_and_the_widest_vocabulary() -> None:
    for size in (1, limits.VOCABULARY_SIZE_MAX):
        assert Vocabulary(size, size, bytes(32)).legal_size == size
