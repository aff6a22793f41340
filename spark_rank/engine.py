"""The interface of a target engine: the smallest one that every engine can fill.

An engine is called from one thread, off the event loop; it may be slow and it
may raise, which poisons the sessions of that call. It owns every processor
that shapes the target's law (temperature, penalties, grammar, masks) and
attests them by the policy id in its identity. (Seed 000, "The full target p";
seed 001.)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from proto_v2.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class TargetIdentity:
    """What HELLO says of a target, and what a request is checked against.

    ``processors`` is the policy id of everything applied to the logits,
    ``stop_tokens`` the end-of-sequence family that always ends a request.
    """

    checkpoint: str
    processors: str
    vocabulary: Vocabulary
    context_tokens_max: int
    stop_tokens: frozenset[int]


@dataclass(frozen=True, slots=True)
class VerifyItem:
    """One request of an evaluation: the drafts to judge, and whether this rank samples it."""

    session: bytes
    drafts: tuple[int, ...]
    owned: bool


class TargetEngine(Protocol):
    """Target logits for sessions that advance by committed tokens."""

    def identity(self) -> TargetIdentity:
        """The identity that this process states in HELLO."""
        ...

    def open(self, session: bytes, prefix: Sequence[int], temperature: float) -> None:
        """Start a session; temperature 0.0 makes the target greedy (one-hot, ties lowest id)."""
        ...

    def verify(self, items: Sequence[VerifyItem]) -> list[NDArray[np.float32] | None]:
        """Processed logits of each item, for the positions of its drafts and one more.

        Row i is conditioned on the committed prefix and ``drafts[:i]``:
        float32 ``[len(drafts) + 1, vocabulary.size]``, masked ids -inf. An
        engine whose ranks compute together must take part in items that it
        does not own; one that replicates the weights may give None for them.
        Commits nothing.
        """
        ...

    def commit(self, session: bytes, tokens: Sequence[int]) -> None:
        """Append committed tokens: the accepted drafts and the last token, owned or not."""
        ...

    def rollback(self, session: bytes) -> None:
        """Forget everything that is not committed."""
        ...

    def close(self, session: bytes) -> None:
        """Forget the session and its state; nothing happens if it is not open."""
        ...
