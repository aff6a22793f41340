"""Slot life: which move each state allows, and that a lease that is over moves nothing."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2.errors import Code, ProtocolError
from proto_v2.slots import Lease, SlotState, SlotTable
from tests.proto_samples import SESSION, deterministic

OTHER = b"o" * 16
Move = Callable[[SlotTable, Lease], None]

MOVES: dict[str, Move] = {
    "check_writable": SlotTable.check_writable,
    "publish": SlotTable.publish,
    "hold": SlotTable.hold,
    "release": SlotTable.release,
    "retire": SlotTable.retire,
}

# The whole life, once: state, holders -> move -> state, holders; anything absent is stale.
LIFE: dict[tuple[SlotState, int], dict[str, tuple[SlotState, int]]] = {
    (SlotState.FREE, 0): {},
    (SlotState.RECEIVING, 0): {
        "check_writable": (SlotState.RECEIVING, 0),
        "publish": (SlotState.READY, 0),
        "retire": (SlotState.FREE, 0),
    },
    (SlotState.READY, 0): {
        "hold": (SlotState.HELD, 1),
        "retire": (SlotState.FREE, 0),
    },
    (SlotState.HELD, 1): {
        "hold": (SlotState.HELD, 2),
        "release": (SlotState.READY, 0),
        "retire": (SlotState.DRAINING, 1),
    },
    (SlotState.HELD, 2): {
        "hold": (SlotState.HELD, 3),
        "release": (SlotState.HELD, 1),
        "retire": (SlotState.DRAINING, 2),
    },
    (SlotState.DRAINING, 2): {
        "release": (SlotState.DRAINING, 1),
        "retire": (SlotState.DRAINING, 2),
    },
    (SlotState.DRAINING, 1): {
        "release": (SlotState.FREE, 0),
        "retire": (SlotState.DRAINING, 1),
    },
}

PATHS: dict[tuple[SlotState, int], list[str]] = {
    (SlotState.FREE, 0): ["retire"],
    (SlotState.RECEIVING, 0): [],
    (SlotState.READY, 0): ["publish"],
    (SlotState.HELD, 1): ["publish", "hold"],
    (SlotState.HELD, 2): ["publish", "hold", "hold"],
    (SlotState.DRAINING, 2): ["publish", "hold", "hold", "retire"],
    (SlotState.DRAINING, 1): ["publish", "hold", "retire"],
}


def at(state: tuple[SlotState, int]) -> tuple[SlotTable, Lease]:
    table = SlotTable(2)
    lease = table.acquire(1, SESSION, 3, 4)
    for move in PATHS[state]:
        MOVES[move](table, lease)
    assert table.state(1) is state[0]
    return table, lease


def stale(move: Move, table: SlotTable, lease: Lease) -> None:
    with pytest.raises(ProtocolError) as caught:
        move(table, lease)
    assert caught.value.code is Code.STALE_LEASE


@pytest.mark.parametrize("state", LIFE, ids=lambda state: f"{state[0].name}{state[1]}")
@pytest.mark.parametrize("name", MOVES)
def test_each_state_allows_exactly_its_moves(state: tuple[SlotState, int], name: str) -> None:
    table, lease = at(state)
    after = LIFE[state].get(name)
    if after is None:
        stale(MOVES[name], table, lease)
        assert table.state(1) is state[0]
    else:
        MOVES[name](table, lease)
        assert table.state(1) is after[0]
    assert table.state(0) is SlotState.FREE


@pytest.mark.parametrize("state", LIFE, ids=lambda state: f"{state[0].name}{state[1]}")
def test_a_slot_is_given_out_only_when_free(state: tuple[SlotState, int]) -> None:
    table, _ = at(state)
    if state[0] is SlotState.FREE:
        assert table.acquire(1, OTHER, 1, 1).serial == 2
        return
    with pytest.raises(ProtocolError) as caught:
        table.acquire(1, OTHER, 1, 1)
    assert caught.value.code is Code.SLOT_BUSY
    assert table.state(1) is state[0]


@pytest.mark.parametrize("slot", [-1, 2, 255])
def test_only_existing_slots(slot: int) -> None:
    table = SlotTable(2)
    assert len(table) == 2
    with pytest.raises(ProtocolError) as caught:
        table.acquire(slot, SESSION, 1, 1)
    assert caught.value.code is Code.SLOT_RANGE
    assert table.free() == 2


@pytest.mark.parametrize("name", MOVES)
def test_an_old_lease_never_touches_the_next_owner(name: str) -> None:
    table, old = at((SlotState.FREE, 0))
    lease = table.acquire(1, OTHER, 1, 1)
    stale(MOVES[name], table, old)
    table.publish(lease)
    stale(MOVES[name], table, old)
    table.hold(lease)
    stale(MOVES[name], table, old)
    table.retire(lease)
    stale(MOVES[name], table, old)
    assert table.state(1) is SlotState.DRAINING


def test_a_lease_names_what_it_was_taken_for() -> None:
    assert SlotTable(1).acquire(0, SESSION, 3, 4) == Lease(0, 1, SESSION, 3, 4)


@deterministic
@given(st.lists(st.tuples(st.sampled_from(["acquire", *MOVES]), st.integers(0, 30)), max_size=60))
def test_no_sequence_of_moves_loses_a_slot(moves: list[tuple[str, int]]) -> None:
    """Against a model: holders are counted, and retiring everything frees every slot."""
    table = SlotTable(2)
    leases: list[Lease] = []
    holders: dict[Lease, int] = {}
    for name, pick in moves:
        if name == "acquire":
            try:
                leases.append(table.acquire(pick % 2, SESSION, 1, pick + 1))
            except ProtocolError as error:
                assert error.code is Code.SLOT_BUSY
        elif leases:
            lease = leases[pick % len(leases)]
            try:
                MOVES[name](table, lease)
            except ProtocolError as error:
                assert error.code is Code.STALE_LEASE
            else:
                holders[lease] = holders.get(lease, 0) + {"hold": 1, "release": -1}.get(name, 0)
                assert holders[lease] >= 0
    for lease in leases:
        for _ in range(holders.get(lease, 0)):
            table.release(lease)
        try:
            table.retire(lease)
        except ProtocolError as error:
            assert error.code is Code.STALE_LEASE
    assert table.free() == 2
