"""The interface of a draft engine: the smallest one that every engine can fill.

An engine is called from one thread, off the event loop; it may be slow and it
may raise. A raised ``ProtocolError`` keeps its code; any other exception is
counted as ``DRAFT_FAILED``. Engines that hold state (KV, Markov, grammar) keep
it per session and must bring all of it back on ``rollback``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from proto_v2.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class DraftIdentity:
    """What HELLO says of a drafter.

    ``native`` is true for a drafter that was trained together with its target
    and false for one adapted to it afterwards; ``target_checkpoint`` names the
    target that it was made for and ``processors`` that target's processor
    policy. (Seed 000, HELLO row.)
    """

    checkpoint: str
    native: bool
    target_checkpoint: str
    processors: str
    vocabulary: Vocabulary


class DraftEngine(Protocol):
    """Draft distributions for sessions that advance by committed tokens.

    All methods but ``identity`` and ``close`` raise ``ProtocolError``
    ``SESSION_UNKNOWN`` for a session that is not open.
    """

    def identity(self) -> DraftIdentity:
        """The identity that this process states in HELLO."""
        ...

    def open(self, session: bytes, prefix: Sequence[int]) -> None:
        """Start a session whose committed tokens are ``prefix`` (not empty).

        Raises:
            ProtocolError: SESSION_DUPLICATE, PREFIX_RANGE, PROMPT_TOKEN.
        """
        ...

    def extend(self, session: bytes, tokens: Sequence[int]) -> None:
        """Append committed tokens; none is allowed.

        Raises:
            ProtocolError: PREFIX_RANGE, PROMPT_TOKEN.
        """
        ...

    def rollback(self, session: bytes, length: int) -> None:
        """Keep the first ``length`` committed tokens, at least one.

        Raises:
            ProtocolError: POSITION_MISMATCH when fewer are held.
        """
        ...

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        """The draft distribution of one position.

        Conditioned on the committed tokens followed by ``chain``, the tokens
        drawn so far in this proposal. The committed state does not change.

        Returns:
            float64 ``[vocabulary.size]``, summing to one within 1e-9, exactly
            zero at masked ids and at ids from ``legal_size`` on.
        """
        ...

    def close(self, session: bytes) -> None:
        """Forget the session and its state; nothing happens if it is not open."""
        ...
