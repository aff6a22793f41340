"""Named deadlines of a machine: set, cleared, and asked for as one number."""

from collections.abc import Hashable


class Deadlines:
    """A small set of named times in nanoseconds."""

    def __init__(self) -> None:
        self._at: dict[Hashable, int] = {}

    def set(self, name: Hashable, at_ns: int) -> None:
        """Set or move a deadline."""
        self._at[name] = at_ns

    def clear(self, name: Hashable) -> None:
        """Forget a deadline; no error when it was not set."""
        self._at.pop(name, None)

    def armed(self, name: Hashable) -> bool:
        """Whether the deadline is set."""
        return name in self._at

    def next(self) -> int | None:
        """The earliest deadline."""
        return min(self._at.values(), default=None)

    def expire(self, now_ns: int) -> list[Hashable]:
        """Remove and return every deadline at or before ``now_ns``, earliest first."""
        due = sorted(
            (name for name, at_ns in self._at.items() if at_ns <= now_ns),
            key=lambda name: self._at[name],
        )
        for name in due:
            del self._at[name]
        return due
