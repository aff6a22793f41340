"""Bookkeeping that every engine needs: open sessions and checked token runs.

Engines refuse misuse instead of guessing, so that a caller that forgets a
rollback or mixes up two sessions fails loudly instead of drawing from the
wrong distribution.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError

State = TypeVar("State")


class SessionTable(Generic[State]):
    """Open sessions by id, at most ``limits.SESSIONS_MAX`` of them."""

    def __init__(self) -> None:
        self._states: dict[bytes, State] = {}

    def add(self, session: bytes, state: State) -> None:
        """Raises ``ProtocolError`` SESSION_DUPLICATE or SESSION_LIMIT."""
        if session in self._states:
            raise ProtocolError(
                Code.SESSION_DUPLICATE, "session", "one that is not open", session.hex()
            )
        if len(self._states) >= limits.SESSIONS_MAX:
            raise ProtocolError(
                Code.SESSION_LIMIT,
                "session",
                f"at most {limits.SESSIONS_MAX} open sessions",
                session.hex(),
            )
        self._states[session] = state

    def get(self, session: bytes) -> State:
        """Raises ``ProtocolError`` SESSION_UNKNOWN."""
        try:
            return self._states[session]
        except KeyError:
            raise ProtocolError(
                Code.SESSION_UNKNOWN, "session", "an open session", session.hex()
            ) from None

    def discard(self, session: bytes) -> State | None:
        """Forget the session; its state, or None when it was not open."""
        return self._states.pop(session, None)

    def __len__(self) -> int:
        return len(self._states)


def checked(tokens: Sequence[int], legal_size: int, room: int, field: str) -> list[int]:
    """The tokens as a list, when each is a legal id and ``room`` holds them.

    Raises:
        ProtocolError: PREFIX_RANGE or PROMPT_TOKEN, naming ``field``.
    """
    if len(tokens) > room:
        raise ProtocolError(Code.PREFIX_RANGE, field, f"at most {room} tokens", len(tokens))
    for token in tokens:
        if not 0 <= token < legal_size:
            raise ProtocolError(Code.PROMPT_TOKEN, field, f"ids below {legal_size}", token)
    return [int(token) for token in tokens]


def checked_prefix(prefix: Sequence[int], legal_size: int, room: int) -> list[int]:
    """Like ``checked`` for a session's first tokens, of which there is at least one."""
    if not prefix:
        raise ProtocolError(Code.PREFIX_RANGE, "prefix", "at least one token", 0)
    return checked(prefix, legal_size, room, "prefix")


class CommittedTokens:
    """The committed tokens of one draft session."""

    __slots__ = ("_legal_size", "_room", "tokens")

    def __init__(self, prefix: Sequence[int], legal_size: int, room: int) -> None:
        self._legal_size = legal_size
        self._room = room
        self.tokens = checked_prefix(prefix, legal_size, room)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens. Raises PREFIX_RANGE or PROMPT_TOKEN."""
        room = self._room - len(self.tokens)
        self.tokens.extend(checked(tokens, self._legal_size, room, "tokens"))

    def rollback(self, length: int) -> None:
        """Keep the first ``length`` tokens. Raises POSITION_MISMATCH."""
        if not 1 <= length <= len(self.tokens):
            raise ProtocolError(Code.POSITION_MISMATCH, "length", f"1..{len(self.tokens)}", length)
        del self.tokens[length:]

    def with_chain(self, chain: Sequence[int]) -> list[int]:
        """Committed tokens followed by ``chain``, checked like an extension."""
        room = self._room - len(self.tokens)
        return self.tokens + checked(chain, self._legal_size, room, "chain")


class VerifiedTokens:
    """The tokens of one target session: committed ones, then drafts under test.

    One verification may be outstanding. It ends by ``commit`` (the accepted
    drafts and the last token) or by ``rollback``; a second verification before
    that is a fault of the caller and raises ``TARGET_FAILED``.
    """

    __slots__ = ("_drafts", "_legal_size", "_room", "tokens")

    def __init__(self, prefix: Sequence[int], legal_size: int, room: int) -> None:
        self._legal_size = legal_size
        self._room = room
        self._drafts: list[int] | None = None
        self.tokens = checked_prefix(prefix, legal_size, room)

    def begin(self, drafts: Sequence[int]) -> list[int]:
        """Take drafts under test; the committed tokens followed by them.

        Raises:
            ProtocolError: TARGET_FAILED, PREFIX_RANGE, PROMPT_TOKEN.
        """
        if self._drafts is not None:
            raise ProtocolError(
                Code.TARGET_FAILED,
                "session",
                "commit or rollback before the next verification",
                f"{len(self._drafts)} drafts under test",
            )
        room = self._room - len(self.tokens)
        self._drafts = checked(drafts, self._legal_size, room, "drafts")
        return self.tokens + self._drafts

    def commit(self, tokens: Sequence[int]) -> None:
        """Append accepted drafts and the last token; ends the verification.

        Raises:
            ProtocolError: PREFIX_RANGE, PROMPT_TOKEN, or TARGET_FAILED when no
                verification is outstanding or all but the last token are not
                the drafts that were verified. Nothing changes then.
        """
        room = self._room - len(self.tokens)
        kept = checked(tokens, self._legal_size, room, "tokens")
        if not kept or self._drafts is None:
            raise ProtocolError(
                Code.TARGET_FAILED, "tokens", "a verified chain's outcome", f"{len(kept)} tokens"
            )
        if len(kept) > len(self._drafts) + 1 or kept[:-1] != self._drafts[: len(kept) - 1]:
            raise ProtocolError(
                Code.TARGET_FAILED, "tokens", f"accepted drafts of {self._drafts}, one token", kept
            )
        self.tokens.extend(kept)
        self._drafts = None

    def rollback(self) -> None:
        """Forget drafts under test; nothing happens when there are none."""
        self._drafts = None
