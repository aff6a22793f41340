"""Slot life: FREE > RECEIVING > READY > HELD(n) > DRAINING > FREE.

A slot is the staging memory of one request for one batch. This table holds the
rules and no memory: whoever owns the bytes asks it first. A lease names the
slot and the generation and round it was taken for; every use of a lease that
is over raises ``STALE_LEASE``, so a late write can never touch a slot that was
given to somebody else.
"""

from dataclasses import dataclass
from enum import Enum, auto

from .errors import Code, ProtocolError


class SlotState(Enum):
    """Where a slot is in its life."""

    FREE = auto()
    RECEIVING = auto()  # rows are being copied and validated
    READY = auto()  # every row validated; may be read
    HELD = auto()  # read by one or more consumers
    DRAINING = auto()  # over, but a consumer has not let go


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use one slot for one round of one session."""

    slot: int
    serial: int
    session_id: bytes
    generation: int
    round: int


@dataclass(slots=True)
class _Slot:
    state: SlotState = SlotState.FREE
    serial: int = 0
    holders: int = 0


class SlotTable:
    """The slots of one endpoint."""

    def __init__(self, count: int) -> None:
        self._slots = [_Slot() for _ in range(count)]

    def __len__(self) -> int:
        return len(self._slots)

    def state(self, slot: int) -> SlotState:
        """State of a slot."""
        return self._slots[slot].state

    def free(self) -> int:
        """How many slots are free."""
        return sum(slot.state is SlotState.FREE for slot in self._slots)

    def acquire(self, slot: int, session_id: bytes, generation: int, round_: int) -> Lease:
        """FREE to RECEIVING; ``SLOT_BUSY`` when anyone still uses the slot."""
        if not 0 <= slot < len(self._slots):
            raise ProtocolError(Code.SLOT_RANGE, "slot", f"below {len(self._slots)}", slot)
        entry = self._slots[slot]
        if entry.state is not SlotState.FREE:
            raise ProtocolError(Code.SLOT_BUSY, f"slot {slot}", "FREE", entry.state.name)
        entry.state = SlotState.RECEIVING
        entry.serial += 1
        return Lease(slot, entry.serial, session_id, generation, round_)

    def _current(self, lease: Lease, *states: SlotState) -> _Slot:
        entry = self._slots[lease.slot]
        if entry.serial != lease.serial or entry.state not in states:
            raise ProtocolError(
                Code.STALE_LEASE,
                f"slot {lease.slot}",
                f"lease {entry.serial} in {' or '.join(state.name for state in states)}",
                f"lease {lease.serial} in {entry.state.name}",
            )
        return entry

    def check_writable(self, lease: Lease) -> None:
        """Refuse a write unless the lease is current and still receiving."""
        self._current(lease, SlotState.RECEIVING)

    def publish(self, lease: Lease) -> None:
        """RECEIVING to READY: every row of the slot has been validated."""
        self._current(lease, SlotState.RECEIVING).state = SlotState.READY

    def hold(self, lease: Lease) -> None:
        """One more consumer reads the slot."""
        entry = self._current(lease, SlotState.READY, SlotState.HELD)
        entry.state = SlotState.HELD
        entry.holders += 1

    def release(self, lease: Lease) -> None:
        """One consumer is done. The last one frees a draining slot."""
        entry = self._current(lease, SlotState.HELD, SlotState.DRAINING)
        entry.holders -= 1
        assert entry.holders >= 0, "released more often than held"
        if entry.holders == 0:
            done = entry.state is SlotState.DRAINING
            entry.state = SlotState.FREE if done else SlotState.READY

    def retire(self, lease: Lease) -> None:
        """The round is over: free now, or when the last consumer lets go."""
        entry = self._current(
            lease, SlotState.RECEIVING, SlotState.READY, SlotState.HELD, SlotState.DRAINING
        )
        entry.state = SlotState.DRAINING if entry.holders else SlotState.FREE
