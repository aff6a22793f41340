"""Staging memory: had once, bounded, aligned, and gone only with its last view."""

import ctypes
import mmap

import pytest

from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from transport.staging import Staging, lock_pages


def unregistered(address: int, byte_count: int) -> None:
    """A hook that does nothing."""


def seed_staging() -> Staging:
    slot_bytes = limits.DEPTH_MAX * limits.DENSE_ROW_BYTES_DEFAULT
    return Staging(limits.SLOTS_MAX, slot_bytes, unregistered)


def test_the_default_bound_is_exactly_two_dense_batches() -> None:
    staging = seed_staging()
    assert staging.slots * staging.slot_bytes == 20_684_800
    with pytest.raises(ProtocolError) as caught:
        Staging(limits.SLOTS_MAX, staging.slot_bytes + 1, unregistered)
    assert caught.value.code is Code.MEMORY_SHORT


def test_slots_are_page_aligned_disjoint_and_zero() -> None:
    staging = Staging(3, mmap.PAGESIZE + 1, unregistered)
    for index in range(3):
        slot = staging.slot(index)
        assert (len(slot), slot.readonly, bytes(slot)) == (len(slot), False, bytes(len(slot)))
        assert len(slot) == mmap.PAGESIZE + 1
        address = ctypes.addressof(ctypes.c_char.from_buffer(slot))
        assert address % mmap.PAGESIZE == 0
        slot[:] = bytes([index + 1]) * len(slot)
    for index in range(3):
        assert set(staging.slot(index)) == {index + 1}


def test_nothing_is_allocated_after_start() -> None:
    staging = seed_staging()
    before = Staging.allocations
    row = bytes(range(256)) * (limits.DENSE_ROW_BYTES_DEFAULT // 256)
    for turn in range(1_000):
        staging.slot(turn % limits.SLOTS_MAX)[: len(row)] = row
    assert Staging.allocations == before


def test_the_hook_sees_the_whole_mapping() -> None:
    seen = []

    def register(address: int, byte_count: int) -> str:
        seen.append((address, byte_count))
        return "only looked"

    staging = Staging(2, 100, register)
    assert seen == [(staging.address, 2 * mmap.PAGESIZE)]
    assert staging.note == "only looked"
    staging.slot(1)[0] = 7
    assert ctypes.c_char.from_address(staging.address + mmap.PAGESIZE).value == b"\7"


def test_locking_pages_works_or_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    staging = Staging(1, mmap.PAGESIZE, lock_pages)
    assert staging.note is None or staging.note.startswith("mlock of")
    assert lock_pages(8, mmap.PAGESIZE) == f"mlock of {mmap.PAGESIZE} bytes: Cannot allocate memory"


@pytest.mark.parametrize(("slots", "slot_bytes"), [(0, 1), (1, 0), (-1, -1), (1, 1 << 61)])
def test_impossible_sizes_are_refused(slots: int, slot_bytes: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        Staging(slots, slot_bytes, unregistered, bound=1 << 62)
    assert caught.value.code is Code.MEMORY_SHORT


def test_memory_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        Staging(1 << 10, 1 << 50, unregistered, bound=1 << 62)
    assert caught.value.code is Code.MEMORY_SHORT
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("index", [-1, 2])
def test_an_unknown_slot_is_an_error(index: int) -> None:
    with pytest.raises(IndexError):
        Staging(2, 10, unregistered).slot(index)


def test_close_leaves_views_in_use_alone() -> None:
    staging = Staging(1, 10, unregistered)
    view = staging.slot(0)
    view[0] = 9
    staging.close()
    assert view[0] == 9
    with pytest.raises(ValueError, match="closed"):
        staging.slot(0)
