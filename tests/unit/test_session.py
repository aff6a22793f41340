"""The ledger: digests, generations, rounds and anchors, each at its edge."""

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from proto_v2.session import Ledger, empty_digest, extend_digest
from tests.proto_samples import SESSION, deterministic


def ledger() -> Ledger:
    """Generation 3, round 4, three tokens."""
    held = Ledger(SESSION)
    held.append([5, 6, 7])
    held.begin(3)
    held.round = 4
    return held


def code_of(action: object, *args: object) -> Code:
    with pytest.raises(ProtocolError) as caught:
        action(*args)  # type: ignore[operator]
    return caught.value.code


def test_the_digest_chain_is_the_documented_one() -> None:
    person = b"PP1-prefix-v2\0\0\0"
    digest = blake2b(SESSION, digest_size=16, person=person).digest()
    assert empty_digest(SESSION) == digest
    for token in (5, -1, (1 << 31) - 1):
        packed = token.to_bytes(4, "little", signed=True)
        digest = blake2b(digest + packed, digest_size=16, person=person).digest()
    assert extend_digest(empty_digest(SESSION), [5, -1, (1 << 31) - 1]) == digest


@deterministic
@given(
    st.lists(st.integers(0, 9), max_size=8),
    st.lists(st.integers(0, 9), max_size=8),
    st.integers(0, 16),
)
def test_digests_depend_on_the_tokens_only(first: list[int], second: list[int], cut: int) -> None:
    held = Ledger(SESSION)
    assert held.append(first) == held.digest
    after = held.digest_after(second)
    assert held.append(second) == after == extend_digest(empty_digest(SESSION), first + second)
    keep = min(cut, held.length)
    expected = extend_digest(empty_digest(SESSION), (first + second)[:keep])
    assert held.digest_at(keep) == expected
    held.truncate(keep)
    assert (held.digest, held.length, held.tokens) == (expected, keep, (first + second)[:keep])
    assert held.digest_at(keep + 1) is None
    assert held.digest_at(-1) is None


def test_digests_tell_sessions_orders_and_lengths_apart() -> None:
    digests = [
        extend_digest(empty_digest(session), tokens)
        for session in (SESSION, bytes(16))
        for tokens in ([], [0], [0, 0], [1, 2], [2, 1], [1 << 16], [1, 0])
    ]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("length", [-1, 4])
def test_only_what_is_held_can_be_kept(length: int) -> None:
    with pytest.raises(AssertionError):
        ledger().truncate(length)


def test_generations_only_grow_and_start_at_round_zero() -> None:
    held = ledger()
    for generation in (0, 2, 3):
        assert code_of(held.begin, generation) is Code.GENERATION_STALE
    assert (held.generation, held.round) == (3, 4)
    held.begin(4)
    assert (held.generation, held.round) == (4, 0)
    held.begin(limits.GENERATION_MAX)
    assert held.length == 3


def test_only_the_current_generation() -> None:
    held = ledger()
    held.check_generation(3)
    assert code_of(held.check_generation, 2) is Code.GENERATION_STALE
    assert code_of(held.check_generation, 4) is Code.GENERATION_AHEAD
    assert code_of(held.check_generation, limits.GENERATION_MAX) is Code.GENERATION_AHEAD


def test_only_the_next_round_and_only_once() -> None:
    held = ledger()
    for round_ in (0, 3, 4):
        assert code_of(held.check_round, round_) is Code.ROUND_STALE
        assert code_of(held.open_round, round_) is Code.ROUND_STALE
    for round_ in (6, limits.ROUND_MAX):
        assert code_of(held.check_round, round_) is Code.ROUND_AHEAD
    held.check_round(5)
    held.open_round(5)
    assert code_of(held.open_round, 5) is Code.ROUND_STALE
    held.open_round(6)
    assert held.round == 6


def test_only_the_end_of_the_committed_prefix() -> None:
    held = ledger()
    held.check_anchor(3, held.digest)
    for position in (2, 4, limits.POSITION_MAX):
        assert code_of(held.check_anchor, position, held.digest) is Code.POSITION_MISMATCH
    earlier = held.digest_at(2)
    assert code_of(held.check_anchor, 3, earlier) is Code.PREFIX_MISMATCH
    flipped = bytes([held.digest[0] ^ 1]) + held.digest[1:]
    assert code_of(held.check_anchor, 3, flipped) is Code.PREFIX_MISMATCH


def test_the_prefix_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREFIX_TOKENS_MAX", 5)
    held = ledger()
    before = held.digest
    assert code_of(held.append, [1, 2, 3]) is Code.PREFIX_RANGE
    assert (held.length, held.digest) == (3, before)
    held.append([1, 2])
    assert code_of(held.append, [1]) is Code.PREFIX_RANGE
