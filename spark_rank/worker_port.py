"""Rank 0's side of the leader link: resets, commits, and what the worker answers.

Holds no proposal: rows and completions go to the collector of the current
step. This keeps each request's ``WorkerSide`` true, so that a step only asks
for drafts where the worker is known to hold the generation.
"""

from collections.abc import Iterable
from typing import Final

from proto_v2.effects import Count, Effect, Note
from proto_v2.errors import Code, known_code
from proto_v2.messages import (
    Cancel,
    Commit,
    CommitEntry,
    DecisionEntry,
    Nak,
    Ready,
    Reset,
    tokens_from_bytes,
    tokens_to_bytes,
)
from proto_v2.negotiate import Terms
from proto_v2.peerlink import PeerLink

from .active import Active, WorkerSide
from .verify import LastToken

_WARNING, _ERROR = 30, 40

# After these the worker's engine or memory of the session cannot be built upon.
_FORGETS: Final = frozenset(
    {
        Code.WORKER_DOWN,
        Code.DRAFT_FAILED,
        Code.SESSION_UNKNOWN,
        Code.PREFIX_MISMATCH,
        Code.PREFIX_UNKNOWN,
        Code.COMMIT_MISMATCH,
    }
)


class WorkerPort:
    """The worker as rank 0 sees it."""

    def __init__(self, link: PeerLink, out: list[Effect], reset_retry_ns: int) -> None:
        self.link = link
        self._out = out
        self._reset_retry_ns = reset_retry_ns
        self._unanswered: dict[bytes, tuple[int, Reset]] = {}
        self._distrusted = b""  # boot id of the process that is not asked again

    @property
    def terms(self) -> Terms | None:
        """The agreed terms, or None while there is no usable worker."""
        agreed = self.link.agreed
        return None if agreed is None or self.unusable is not None else agreed.terms

    @property
    def unusable(self) -> Code | None:
        """Why no drafts can be asked for, if none can."""
        agreed = self.link.agreed
        if agreed is None:
            return Code.WORKER_DOWN
        return Code.TOKEN_NOT_DRAWN if agreed.peer_boot_id == self._distrusted else None

    def next_deadline(self) -> int | None:
        """When the link or an unanswered reset needs attention."""
        times = [at for at, _ in self._unanswered.values()]
        at = self.link.next_deadline()
        if at is not None:
            times.append(at)
        return min(times, default=None)

    def expire(self, now_ns: int) -> None:
        """Repeat resets that got no answer; the worker takes repeats as such."""
        for session_id, (at, reset) in list(self._unanswered.items()):
            if at <= now_ns:
                self._unanswered[session_id] = (now_ns + self._reset_retry_ns, reset)
                self.link.send(reset)

    def lost(self, actives: Iterable[Active]) -> None:
        """The agreement is gone: no request's generation is alive at the worker."""
        self._unanswered.clear()
        for active in actives:
            active.lose_worker(Code.WORKER_DOWN, forget=True)

    def distrust(self, actives: Iterable[Active]) -> None:
        """Ask this process no more: a token that its own counts do not give was seen once.

        What it drew before and would draw next is as doubtful, and to discard only what
        is found out would be to select by the draws. Another process is trusted anew.
        """
        agreed = self.link.agreed
        if agreed is None or self.unusable is not None:
            return
        self._distrusted = agreed.peer_boot_id
        self._out.append(Note(_ERROR, "worker_distrusted", {"boot_id": self._distrusted.hex()}))
        self._unanswered.clear()
        for active in actives:
            active.lose_worker(Code.TOKEN_NOT_DRAWN, forget=True)

    def sync(self, active: Active, reason: int, now_ns: int) -> None:
        """Begin the current generation at the worker, if it has not begun there."""
        if (
            self.terms is None
            or active.worker is not WorkerSide.NOTHING
            or active.out_of_step is not None
            or active.params.depth == 0
            or active.request.slot >= self.terms.requests_max
        ):
            return
        ledger, request = active.ledger, active.request
        base = active.acknowledged
        base_digest = ledger.digest_at(base)
        assert base_digest is not None, "an acknowledged prefix is a committed one"
        reset = Reset(
            session_id=request.session_id,
            request_id=request.request_id,
            slot=request.slot,
            generation=ledger.generation,
            round=ledger.round,
            reason=reason,
            base_length=base,
            base_digest=base_digest,
            suffix=tokens_to_bytes(ledger.tokens[base:]),
            digest=ledger.digest,
            key=request.worker_key(),
            context=request.context,
        )
        active.worker = WorkerSide.RESET_SENT
        self._unanswered[request.session_id] = (now_ns + self._reset_retry_ns, reset)
        self.link.send(reset)

    def on_ready(self, active: Active | None, ready: Ready) -> None:
        """The worker holds a generation."""
        waiting = self._unanswered.get(ready.session_id)
        if (
            active is None
            or waiting is None
            or ready.generation != active.ledger.generation
            or ready.digest != waiting[1].digest
        ):
            self._out.append(Count("pp1_late_replies_total", (("kind", "Ready"),)))
            return
        del self._unanswered[ready.session_id]
        active.worker = WorkerSide.READY
        active.acknowledged = ready.length

    def on_nak(self, active: Active | None, nak: Nak, now_ns: int) -> None:
        """The worker could not use a message about this request."""
        code = known_code(nak.code, Code.DRAFT_FAILED)
        self._out.append(
            Note(_WARNING, "worker_nak", {"code": code.name, "field": nak.field, "got": nak.got})
        )
        if active is None:
            return
        waiting = self._unanswered.pop(nak.session_id, None)
        if waiting is not None and code is Code.PREFIX_UNKNOWN and waiting[1].base_length:
            # The generation has not begun there, so it may still begin with the whole prefix.
            active.worker = WorkerSide.NOTHING
            active.acknowledged = 0
            self.sync(active, int(code), now_ns)
            return
        active.lose_worker(code, forget=code in _FORGETS)

    def committed(self, pairs: Iterable[tuple[Active, DecisionEntry]]) -> None:
        """Tell the worker what both ranks committed in generations that it holds."""
        if self.terms is None:
            return
        entries = []
        for active, entry in pairs:
            if active.worker is WorkerSide.NOTHING or active.out_of_step is not None:
                continue
            tokens = tokens_from_bytes(entry.tokens[: entry.token_count * 4], "tokens")
            entries.append(
                CommitEntry(
                    session_id=entry.session_id,
                    generation=entry.generation,
                    round=entry.round,
                    accepted=entry.accepted,
                    last=tuple(tokens[entry.accepted :]) if entry.last != LastToken.NONE else (),
                    position=entry.position,
                    digest=entry.digest,
                )
            )
        if entries:
            self.link.send(Commit(tuple(entries)))

    def close(self, active: Active, reason: int) -> None:
        """The request is over."""
        self._unanswered.pop(active.request.session_id, None)
        if self.link.agreed is not None and active.params.depth > 0:
            self.link.send(Cancel(active.request.session_id, active.ledger.generation, reason))

    @staticmethod
    def forgets(code: int) -> bool:
        """Whether a discard for this reason leaves nothing at the worker to build upon."""
        return code in _FORGETS
