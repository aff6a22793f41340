"""The RNG ABI ``philox4x32-10/blake2b-v1``: who draws what, under which key.

    key64   = BLAKE2b-64(key = session_seed[32], person = "PP1-philox-v1\\0\\0\\0",
                         msg = LE{ session_id[16], request_id u64, generation u64, owner u8 })
    counter = ( draw[0:24] | domain[24:32], position u32, round u32, 0 )

The block function is Philox4x32-10 (Salmon et al., "Parallel Random Numbers:
As Easy as 1, 2, 3", SC11), bit-exact with Random123 and cuRAND. A draw is a
pure function of key and counter: there is no stream position that discarded
rows could move, and a repeated question gets the same answer. Worker and
verifier have different keys, and the uses of one key different domains, so
proposal noise is never shared with acceptance or correction (seed 000).
"""

import struct
from enum import IntEnum
from hashlib import blake2b
from typing import Final, Protocol

from . import limits
from .errors import Code, ProtocolError

RNG_ABI: Final = "philox4x32-10/blake2b-v1"
PERSON: Final = b"PP1-philox-v1\0\0\0"

BELOW_MAX: Final = 1 << 62
RETRIES_MAX: Final = 128

_M0: Final = 0xD2511F53
_M1: Final = 0xCD9E8D57
_W0: Final = 0x9E3779B9
_W1: Final = 0xBB67AE85
_MASK: Final = 0xFFFF_FFFF
_MESSAGE: Final = struct.Struct("<16sQQB")
_DRAW_MAX: Final = (1 << 24) - 1

assert len(PERSON) == 16
assert RETRIES_MAX <= _DRAW_MAX


class Domain(IntEnum):
    """What a draw is for. 0 and every other number are refused."""

    PROPOSAL = 1
    ACCEPTANCE = 2
    RESIDUAL = 3
    BONUS = 4
    TARGET_ONLY = 5


_DOMAINS: Final = frozenset(int(domain) for domain in Domain)


class Owner(IntEnum):
    """Who draws: the worker its proposals, the verifier everything else."""

    WORKER = 0
    VERIFIER = 1


def derive_key(
    session_seed: bytes, session_id: bytes, request_id: int, generation: int, owner: Owner
) -> bytes:
    """The 64-bit key (8 bytes, little endian) of one owner in one generation.

    Raises:
        ProtocolError: RNG_RANGE for a field of the wrong size.
    """
    _check("session_seed", len(session_seed) == limits.SEED_BYTES, "32 bytes", len(session_seed))
    _check("session_id", len(session_id) == limits.ID_BYTES, "16 bytes", len(session_id))
    _check("request_id", 0 <= request_id < 1 << 64, "a u64", request_id)
    _check("generation", 0 <= generation < 1 << 64, "a u64", generation)
    _check("owner", owner in (0, 1), "0 or 1", owner)
    return blake2b(
        _MESSAGE.pack(session_id, request_id, generation, owner),
        digest_size=limits.KEY_BYTES,
        key=session_seed,
        person=PERSON,
    ).digest()


def _check(field: str, holds: bool, wanted: object, got: object) -> None:
    if not holds:
        raise ProtocolError(Code.RNG_RANGE, field, wanted, got)


def philox4x32_10(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Ten rounds of Philox4x32: four 32-bit words of a counter under a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0, product1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


class TicketSource(Protocol):
    """Where every random choice of the product comes from.

    Product code draws through this interface only, so that a test can put
    every possible ticket in place of a random one.
    """

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        """Uniform in ``[0, 2**bits)``, 1 <= bits <= 32."""
        ...

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        """Uniform in ``[0, bound)``, 1 <= bound <= 2**62."""
        ...


def lemire(word: int, bound: int, word_bits: int) -> int | None:
    """Lemire's reduction of one uniform word to ``[0, bound)``; None asks for another word.

    Exactly uniform: of the 2**word_bits words, each result keeps the same
    number, ``2**word_bits // bound``. (Lemire, "Fast Random Integer Generation
    in an Interval", 2019.)
    """
    words = 1 << word_bits
    product = word * bound
    low = product & (words - 1)
    # The words that cannot be shared out evenly are those of the lowest ``low``;
    # there are fewer than ``bound`` of them, so most calls never divide.
    if low < bound and low < words - words // bound * bound:
        return None
    return product >> word_bits


class KeyedTickets:
    """Tickets under one key: a pure function of its arguments, without state."""

    __slots__ = ("_key",)

    def __init__(self, key: bytes) -> None:
        """``key`` is the 8 bytes of ``derive_key``."""
        _check("key", len(key) == limits.KEY_BYTES, "8 bytes", len(key))
        low, high = struct.unpack("<II", key)
        self._key = (low, high)

    def block(
        self, domain: int, position: int, round_: int, draw: int
    ) -> tuple[int, int, int, int]:
        """The four words of one draw.

        Raises:
            ProtocolError: RNG_DOMAIN or RNG_RANGE.
        """
        if domain not in _DOMAINS:
            raise ProtocolError(Code.RNG_DOMAIN, "domain", sorted(_DOMAINS), domain)
        _check("position", 0 <= position <= _MASK, "a u32", position)
        _check("round", 0 <= round_ <= _MASK, "a u32", round_)
        _check("draw", 0 <= draw <= _DRAW_MAX, "24 bits", draw)
        return philox4x32_10((draw | domain << 24, position, round_, 0), self._key)

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        """The top ``bits`` bits of word 0 of draw 0."""
        _check("bits", 1 <= bits <= 32, "1..32", bits)
        return self.block(domain, position, round_, 0)[0] >> (32 - bits)

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        """Lemire's method on word 0 + 2**32 word 1, a new draw number for each retry.

        Raises:
            ProtocolError: RNG_RANGE, or RNG_EXHAUSTED after ``RETRIES_MAX``
                retries (each of probability at most 1/4).
        """
        _check("bound", 1 <= bound <= BELOW_MAX, f"1..{BELOW_MAX}", bound)
        for draw in range(RETRIES_MAX + 1):
            words = self.block(domain, position, round_, draw)
            found = lemire(words[0] | words[1] << 32, bound, 64)
            if found is not None:
                return found
        raise ProtocolError(Code.RNG_EXHAUSTED, "draw", f"at most {RETRIES_MAX} retries", "more")
