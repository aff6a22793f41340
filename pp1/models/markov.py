"""An exact target and draft law for tests: order-one Markov, small vocabulary.

Every conditional law is a row of small integers hashed from the seed, so tests
compute with ``Fraction`` what the engines draw from. Supports differ on
purpose: in every row some ids have zero target weight and others zero draft
weight. Temperature does not change these laws; a test that knows p and q needs
them to stay what they are. Only the target's 0.0 is obeyed: it means greedy.
"""

from collections.abc import Sequence
from fractions import Fraction
from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

from proto_v2.errors import Code, ProtocolError
from proto_v2.vocabulary import Vocabulary, map_hash

VOCABULARY_SIZE_MIN: Final = 4
VOCABULARY_SIZE_MAX: Final = 64
VOCABULARY_SIZE: Final = 16
CONTEXT_TOKENS_MAX: Final = 8192
PROCESSORS: Final = "none"

_PERSON: Final = b"PP1-markov-v1\0\0\0"
_WEIGHT_MAX: Final = 32


class MarkovLaw:
    """Known laws p(. | last token) and q(. | last token) over 4..64 ids.

    About an eighth of the ids of each row, at least one, has zero target
    weight, and as many others have zero draft weight; every other weight is an
    integer in 1..32. Draft weights lean towards the target's, so that chains
    are accepted often but not always.

    Raises:
        ProtocolError: CONFIG_INVALID for a size or seed out of range.
    """

    def __init__(self, vocabulary_size: int = VOCABULARY_SIZE, seed: int = 0) -> None:
        if not VOCABULARY_SIZE_MIN <= vocabulary_size <= VOCABULARY_SIZE_MAX:
            raise ProtocolError(
                Code.CONFIG_INVALID,
                "vocabulary_size",
                f"{VOCABULARY_SIZE_MIN}..{VOCABULARY_SIZE_MAX}",
                vocabulary_size,
            )
        if not 0 <= seed < 1 << 64:
            raise ProtocolError(Code.CONFIG_INVALID, "seed", "0..2**64-1", seed)
        self.vocabulary_size = vocabulary_size
        self.seed = seed
        rows = [self._row(last) for last in range(vocabulary_size)]
        self._target = tuple(target for target, _ in rows)
        self._draft = tuple(draft for _, draft in rows)

    def _row(self, last: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        size = self.vocabulary_size
        words = [self._words(last, token) for token in range(size)]
        order = sorted(range(size), key=lambda token: (words[token][0], token))
        zeros = max(1, size // 8)
        target = [1 + word[1] % _WEIGHT_MAX for word in words]
        noise = [1 + word[2] % _WEIGHT_MAX for word in words]
        draft = [(p + q + 1) // 2 for p, q in zip(target, noise, strict=True)]
        for token in order[:zeros]:
            target[token] = 0
        for token in order[zeros : 2 * zeros]:
            draft[token] = 0
        return tuple(target), tuple(draft)

    def _words(self, last: int, token: int) -> tuple[int, int, int]:
        message = b"".join(
            value.to_bytes(8, "little") for value in (self.seed, self.vocabulary_size, last, token)
        )
        digest = blake2b(message, digest_size=24, person=_PERSON).digest()
        first, second, third = (int.from_bytes(digest[i : i + 8], "little") for i in (0, 8, 16))
        return first, second, third

    def target_weights(self, context: Sequence[int]) -> tuple[int, ...]:
        """Integer target weights after ``context``; p(v) is weight(v) over their sum."""
        return self._target[self._last(context)]

    def draft_counts(self, context: Sequence[int]) -> tuple[int, ...]:
        """Integer draft weights after ``context``; q(v) is weight(v) over their sum."""
        return self._draft[self._last(context)]

    def target_law(self, context: Sequence[int]) -> tuple[Fraction, ...]:
        """p(. | context), exactly."""
        weights = self.target_weights(context)
        total = sum(weights)
        return tuple(Fraction(weight, total) for weight in weights)

    def draft_law(self, context: Sequence[int]) -> tuple[Fraction, ...]:
        """q(. | context), exactly."""
        weights = self.draft_counts(context)
        total = sum(weights)
        return tuple(Fraction(weight, total) for weight in weights)

    def target_logits(self, context: Sequence[int]) -> NDArray[np.float32]:
        """Natural logarithms of the target weights, float32 ``[V]``, -inf at zeros.

        Rounding to float32 moves the softmax by less than 1e-6 from
        ``target_law``; zeros stay exact.
        """
        weights = np.array(self.target_weights(context), dtype=np.float64)
        with np.errstate(divide="ignore"):
            logits: NDArray[np.float32] = np.log(weights).astype(np.float32)
        return logits

    def draft_weights(self, context: Sequence[int]) -> NDArray[np.float64]:
        """q(. | context) as float64 ``[V]``, normalised, exact zeros."""
        weights = np.array(self.draft_counts(context), dtype=np.float64)
        normalised: NDArray[np.float64] = weights / weights.sum()
        return normalised

    def vocabulary(self) -> Vocabulary:
        """Ids 0..V-1, all legal; the map's tokens are ``b"m0"``, ``b"m1"``, ..."""
        tokens = [b"m%d" % token for token in range(self.vocabulary_size)]
        return Vocabulary(self.vocabulary_size, self.vocabulary_size, map_hash(tokens))

    def target_checkpoint(self) -> str:
        """The target's identity for HELLO."""
        return f"markov-target-v1/V{self.vocabulary_size}/seed{self.seed}"

    def draft_checkpoint(self) -> str:
        """The drafter's identity for HELLO."""
        return f"markov-draft-v1/V{self.vocabulary_size}/seed{self.seed}"

    def _last(self, context: Sequence[int]) -> int:
        if not context or not 0 <= context[-1] < self.vocabulary_size:
            raise ProtocolError(
                Code.PROMPT_TOKEN,
                "context",
                f"ids below {self.vocabulary_size}",
                list(context[-1:]),
            )
        return context[-1]
