"""Engines of three or four tokens whose laws are exact at a mass of a few tickets.

A ``TinyLaw`` gives target counts and draft weights by the last token alone, so
that the joint law of a text is a product of rows. ``TinyDraft`` and
``TinyTarget`` serve it through the interfaces of the product.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from proto_v2.vocabulary import Vocabulary, map_hash
from spark_rank.engine import TargetIdentity, VerifyItem
from tests.support.chains import logits_of
from worker.engine import DraftIdentity

Counts = tuple[int, ...]
Text = tuple[int, ...]


@dataclass(frozen=True)
class TinyLaw:
    """Rows by the last token: ``target`` counts of total ``2**target_bits``, ``draft`` weights.

    Draft weights must be whole tickets of whatever mass they are drawn at.
    """

    target: Mapping[int, Counts]
    draft: Mapping[int, tuple[float, ...]]
    target_bits: int
    _logits: dict[int, NDArray[np.float32]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(self.target[0])

    def vocabulary(self) -> Vocabulary:
        """All ids are legal."""
        return Vocabulary(self.size, self.size, map_hash([b"t%d" % i for i in range(self.size)]))

    def logits(self, last: int) -> NDArray[np.float32]:
        """Processed logits whose quantised law is exactly ``target[last]``."""
        if last not in self._logits:
            self._logits[last] = logits_of(self.target[last], self.target_bits)
        return self._logits[last]

    def joint(self, first: int, length: int) -> dict[Text, Fraction]:
        """The target's law of the ``length`` tokens after ``first``."""
        law: dict[Text, Fraction] = {(): Fraction(1)}
        for _ in range(length):
            law = {
                (*text, token): mass * Fraction(count, 1 << self.target_bits)
                for text, mass in law.items()
                for token, count in enumerate(self.target[text[-1] if text else first])
                if count
            }
        return law


class TinyDraft:
    """A ``DraftEngine`` over a ``TinyLaw``."""

    def __init__(self, law: TinyLaw) -> None:
        self._law = law
        self.sessions: dict[bytes, list[int]] = {}

    def identity(self) -> DraftIdentity:
        return DraftIdentity("tiny-draft", True, "tiny-target", "none", self._law.vocabulary())

    def open(self, session: bytes, prefix: Sequence[int]) -> None:
        assert session not in self.sessions
        self.sessions[session] = list(prefix)

    def extend(self, session: bytes, tokens: Sequence[int]) -> None:
        self.sessions[session] += tokens

    def rollback(self, session: bytes, length: int) -> None:
        assert 1 <= length <= len(self.sessions[session])
        del self.sessions[session][length:]

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        last = [*self.sessions[session], *chain][-1]
        return np.asarray(self._law.draft[last], dtype=np.float64)

    def close(self, session: bytes) -> None:
        self.sessions.pop(session, None)


class TinyTarget:
    """A ``TargetEngine`` over a ``TinyLaw``."""

    def __init__(self, law: TinyLaw) -> None:
        self._law = law
        self.sessions: dict[bytes, list[int]] = {}

    def identity(self) -> TargetIdentity:
        return TargetIdentity("tiny-target", "none", self._law.vocabulary(), 64, frozenset())

    def open(self, session: bytes, prefix: Sequence[int], temperature: float) -> None:
        assert session not in self.sessions
        self.sessions[session] = list(prefix)

    def verify(self, items: Sequence[VerifyItem]) -> list[NDArray[np.float32] | None]:
        return [
            np.stack(
                [self._law.logits(last) for last in (self.sessions[item.session][-1], *item.drafts)]
            )
            if item.owned
            else None
            for item in items
        ]

    def commit(self, session: bytes, tokens: Sequence[int]) -> None:
        self.sessions[session] += tokens

    def rollback(self, session: bytes) -> None: ...

    def close(self, session: bytes) -> None:
        self.sessions.pop(session, None)
