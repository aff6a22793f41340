"""Integer tickets from independent, domain-separated streams.

A test generator, not the product's RNG ABI: BLAKE2b over the whole question.
Each owner has streams of its own, each domain, position, generation and round
within them as well, and Python's global random state is never touched.
"""

from enum import IntEnum
from hashlib import blake2b
from typing import Protocol


class Domain(IntEnum):
    """What a ticket is for."""

    PROPOSAL = 1
    ACCEPTANCE = 2
    RESIDUAL = 3
    BONUS = 4
    TARGET_ONLY = 5


class Owner(IntEnum):
    """Who draws."""

    WORKER = 0
    VERIFIER = 1


class Tickets(Protocol):
    """Where the oracle's choices come from."""

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        """Uniform in ``[0, bound)``."""
        ...


class Streams:
    """One owner's tickets for one generation of one request."""

    def __init__(self, seed: bytes, request: str, generation: int, owner: Owner) -> None:
        self._prefix = repr((seed, request, generation, int(owner)))

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        """Uniform in ``[0, bound)``, by rejection from the next power of two."""
        if bound < 1:
            raise ValueError(f"no ticket below {bound}")
        bits = (bound - 1).bit_length()
        retry = 0
        while True:
            value = self._bits(bits, repr((int(domain), position, round_, retry)))
            if value < bound:
                return value
            retry += 1

    def _bits(self, bits: int, question: str) -> int:
        blocks = b"".join(
            blake2b(f"{self._prefix}{question}{block}".encode()).digest()
            for block in range(bits // 512 + 1)
        )
        return int.from_bytes(blocks, "little") & ((1 << bits) - 1)
