"""The one place where the transport reads a clock."""

import time


def monotonic_ns() -> int:
    """Nanoseconds on a clock that never steps back; its zero means nothing."""
    return time.monotonic_ns()
