"""The ledger of one session: what is committed, and which round may be drawn.

Worker, rank 0 and rank 1 each hold one ``Ledger`` per session and keep them
equal by digest. The digest of a prefix is a chain,

    d(0) = BLAKE2b-128(session_id),  d(n) = BLAKE2b-128(d(n-1) || int32 token n),

so extending it costs one hash and every earlier length has a digest that can
serve as the base of a Reset.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from . import limits
from .errors import Code, ProtocolError

_PERSON: Final = b"PP1-prefix-v2\0\0\0"
_TOKEN: Final = struct.Struct("<i")


def empty_digest(session_id: bytes) -> bytes:
    """The digest of the empty prefix of a session."""
    return blake2b(session_id, digest_size=limits.DIGEST_BYTES, person=_PERSON).digest()


def extend_digest(digest: bytes, tokens: Sequence[int]) -> bytes:
    """The digest after ``tokens`` more tokens."""
    for token in tokens:
        digest = blake2b(
            digest + _TOKEN.pack(token), digest_size=limits.DIGEST_BYTES, person=_PERSON
        ).digest()
    return digest


class Ledger:
    """Committed prefix, generation and round of one session.

    Generations and rounds only grow. A round is opened once (``open_round``),
    and its RNG keys are drawn under that round only, so a key cannot be used
    twice with effect.
    """

    __slots__ = ("_digests", "generation", "round", "session_id", "tokens")

    def __init__(self, session_id: bytes) -> None:
        self.session_id = session_id
        self.generation = 0
        self.round = 0
        self.tokens: list[int] = []
        self._digests = [empty_digest(session_id)]

    @property
    def length(self) -> int:
        """Number of committed tokens: the position of the next one."""
        return len(self.tokens)

    @property
    def digest(self) -> bytes:
        """Digest of the committed prefix."""
        return self._digests[-1]

    def digest_at(self, length: int) -> bytes | None:
        """Digest of the first ``length`` tokens, None beyond the end."""
        return self._digests[length] if 0 <= length < len(self._digests) else None

    def begin(self, generation: int) -> None:
        """Begin a generation; everything of the earlier one is over."""
        if generation <= self.generation:
            raise ProtocolError(
                Code.GENERATION_STALE, "generation", f"above {self.generation}", generation
            )
        self.generation = generation
        self.round = 0

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        assert 0 <= length <= self.length
        del self.tokens[length:]
        del self._digests[length + 1 :]

    def append(self, tokens: Sequence[int]) -> bytes:
        """Commit tokens; returns the new digest."""
        if self.length + len(tokens) > limits.PREFIX_TOKENS_MAX:
            raise ProtocolError(
                Code.PREFIX_RANGE,
                "tokens",
                f"at most {limits.PREFIX_TOKENS_MAX}",
                self.length + len(tokens),
            )
        for token in tokens:
            self._digests.append(extend_digest(self._digests[-1], (token,)))
            self.tokens.append(token)
        return self.digest

    def digest_after(self, tokens: Sequence[int]) -> bytes:
        """The digest that ``append(tokens)`` would lead to."""
        return extend_digest(self.digest, tokens)

    def check_generation(self, generation: int) -> None:
        """Refuse any generation but the current one."""
        if generation < self.generation:
            raise ProtocolError(Code.GENERATION_STALE, "generation", self.generation, generation)
        if generation > self.generation:
            raise ProtocolError(Code.GENERATION_AHEAD, "generation", self.generation, generation)

    def check_round(self, round_: int) -> None:
        """Refuse any round but the one after the last opened."""
        if round_ <= self.round:
            raise ProtocolError(Code.ROUND_STALE, "round", self.round + 1, round_)
        if round_ > self.round + 1:
            raise ProtocolError(Code.ROUND_AHEAD, "round", self.round + 1, round_)

    def check_anchor(self, position: int, digest: bytes) -> None:
        """Refuse an anchor that is not exactly the end of the committed prefix."""
        if position != self.length:
            raise ProtocolError(Code.POSITION_MISMATCH, "position", self.length, position)
        if digest != self.digest:
            raise ProtocolError(Code.PREFIX_MISMATCH, "digest", self.digest.hex(), digest.hex())

    def open_round(self, round_: int) -> None:
        """Make ``round_`` the current round."""
        self.check_round(round_)
        self.round = round_
