"""Staging memory: where rows wait between the wire and their last consumer.

All of it is had once, before the first message that needs it, and none later
(seed 000, "Size and critical path"): one anonymous private mapping, page
aligned per slot, every page touched, and shown to a registration hook.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError

Register: TypeAlias = Callable[[int, int], str | None]
"""``(address, byte_count)`` of the whole mapping; a note if it had no effect.

Where page locking, ``cudaHostRegister`` or a NIXL registration goes. It may
raise ``ProtocolError`` to refuse the start.
"""


def lock_pages(address: int, byte_count: int) -> str | None:
    """``mlock`` the range, so that it is never paged out.

    Best effort: where the process may not lock as much (RLIMIT_MEMLOCK) the
    note says so and staging works unlocked. The lock ends with the mapping.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(byte_count)) == 0:
        return None
    return f"mlock of {byte_count} bytes: {os.strerror(ctypes.get_errno())}"


class Staging:
    """``slots`` writable buffers of ``slot_bytes`` bytes each.

    ``bound`` limits ``slots * slot_bytes``; rounding each slot up to whole
    pages comes on top. ``note`` is what the hook had to say, or None. Raises
    ``ProtocolError(MEMORY_SHORT)`` if the bound is exceeded or the system has
    no such mapping.
    """

    allocations: ClassVar[int] = 0
    """How often this process has had staging memory; constant after start."""

    def __init__(
        self,
        slots: int,
        slot_bytes: int,
        register: Register = lock_pages,
        *,
        bound: int = limits.STAGING_BYTES_DEFAULT,
    ) -> None:
        wanted = slots * slot_bytes
        if slots < 1 or slot_bytes < 1 or wanted > bound:
            raise ProtocolError(
                Code.MEMORY_SHORT, "staging", f"1..{bound} bytes", f"{slots} x {slot_bytes}"
            )
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._stride = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.mapped_bytes = slots * self._stride
        try:
            mapping = mmap.mmap(-1, self.mapped_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise ProtocolError(
                Code.MEMORY_SHORT, "staging", f"{self.mapped_bytes} bytes", str(error)
            ) from error
        Staging.allocations += 1
        self._memory: memoryview | None = memoryview(mapping)
        # One write per page makes it resident now instead of under a deadline.
        self._memory[:: mmap.PAGESIZE] = bytes(self.mapped_bytes // mmap.PAGESIZE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.note = register(self.address, self.mapped_bytes)

    def slot(self, index: int) -> memoryview:
        """The writable bytes of one slot, ``slot_bytes`` long, page aligned.

        Raises ``IndexError`` outside ``range(slots)``, ``ValueError`` after ``close``.
        """
        if self._memory is None:
            raise ValueError("staging memory is closed")
        if not 0 <= index < self.slots:
            raise IndexError(f"slot {index} of {self.slots}")
        start = index * self._stride
        return self._memory[start : start + self.slot_bytes]

    def close(self) -> None:
        """Hand out no more; the mapping itself ends with the last view of it.

        Unmapping under a consumer that still reads would be worse than waiting.
        """
        self._memory = None
