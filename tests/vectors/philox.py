"""The RNG ABI of 02-rng-abi.md, written from that text alone."""

import struct
from hashlib import blake2b

PROPOSAL, ACCEPTANCE, RESIDUAL, BONUS, TARGET_ONLY = range(1, 6)
WORKER, VERIFIER = 0, 1


def block(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32 with ten rounds."""
    c = list(counter)
    for number in range(10):
        k = [(key[0] + number * 0x9E3779B9) % 2**32, (key[1] + number * 0xBB67AE85) % 2**32]
        high0, low0 = divmod(0xD2511F53 * c[0], 2**32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 2**32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
    return tuple(c)


def derive_key(
    session_seed: bytes, session_id: bytes, request_id: int, generation: int, owner: int
) -> bytes:
    """The key of one owner in one generation."""
    named = session_id + struct.pack("<QQB", request_id, generation, owner)
    person = b"PP1-philox-v1".ljust(16, b"\0")
    return blake2b(named, digest_size=8, key=session_seed, person=person).digest()


def words(key: bytes, domain: int, position: int, round_: int, draw: int = 0) -> tuple[int, ...]:
    """The words of one draw."""
    return block((domain << 24 | draw, position, round_, 0), struct.unpack("<II", key))


def ticket(key: bytes, bits: int, domain: int, position: int, round_: int) -> int:
    """The top bits of word 0 of draw 0."""
    return words(key, domain, position, round_)[0] >> 32 - bits


def reduce(word: int, bound: int) -> int | None:
    """The draw of one 64-bit word, or None for the next draw number."""
    high, low = divmod(word * bound, 2**64)
    return None if low < 2**64 - 2**64 // bound * bound else high


def below(key: bytes, bound: int, domain: int, position: int, round_: int) -> tuple[int, int]:
    """A draw below ``bound``, and how many draw numbers it took."""
    for draw in range(129):
        w = words(key, domain, position, round_, draw)
        found = reduce(w[0] + 2**32 * w[1], bound)
        if found is not None:
            return found, draw + 1
    raise AssertionError("this happens with probability below 2**-256")
