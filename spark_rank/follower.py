"""Rank 1 as a machine: validates on its own, samples what it owns, applies first.

It decides nothing: not the depth, not the fallback, not the end of a round.
Its only timer is the silence of rank 0, after which every session here is over
(rank 0, should it come back, is told so and ends the requests with a named
error). A finding that contradicts the decision record is answered with Nak and
poisons the session; nothing of such a record is applied.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proto_v2 import limits
from proto_v2.effects import Buffer, Count, Effect, Note, Peer, Run
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    AnyMessage,
    Cancel,
    Completion,
    Decide,
    Decision,
    DecisionKind,
    Hello,
    Invalidate,
    Message,
    Nak,
    Open,
    Prepare,
    PrepareEntry,
    Rows,
    Step,
    VerdictEntry,
    tokens_from_bytes,
)
from proto_v2.negotiate import Terms
from proto_v2.peerlink import LinkEvent, LinkTiming, PeerLink
from proto_v2.rng import KeyedTickets, Owner
from proto_v2.slots import SlotTable
from proto_v2.validate import check_entry_against, check_step

from .collector import Collector, SlotMemory
from .evaluate import build_verify, release_used, verdict_entries
from .jobs import CloseTarget, CommitTarget, OpenTarget
from .pair import PairFollower, Phase, TextRules, recompose
from .request import MakeTickets, Request, open_request
from .verify import Finish

_INFO, _WARNING = 20, 30
_QUESTIONS = (Prepare, Invalidate, Decide, Decision)
_OF_A_STEP = (Step, *_QUESTIONS)
RANK: int = 1

# Allocates the staging memory for agreed terms.
MakeStaging = Callable[[Terms], SlotMemory]


@dataclass(slots=True)
class _Current:
    """The step in progress."""

    follower: PairFollower
    collector: Collector
    requests: list[Request]
    legal_size: int
    findings: list[PrepareEntry] = field(default_factory=list)
    decide: Decide | None = None
    verdicts: dict[int, VerdictEntry] | None = None

    @property
    def owned(self) -> list[int]:
        return [index for index, request in enumerate(self.requests) if request.owner == RANK]


@dataclass(frozen=True, slots=True)
class _Evaluation:
    """An evaluation job in flight: valid only while its step is the current one."""

    current: _Current


class RankOneMachine:
    """Follows one rank 0 on one bound link."""

    def __init__(
        self,
        *,
        boot_id: bytes,
        make_hello: Callable[[], Hello],
        make_staging: MakeStaging,
        context_tokens_max: int,
        timing: LinkTiming,
        make_tickets: MakeTickets = KeyedTickets,
        mass_bits: int = limits.MASS_BITS,
    ) -> None:
        self._boot_id = boot_id
        self._make_hello = make_hello
        self._make_staging = make_staging
        self._context_tokens_max = context_tokens_max
        self._timing = timing
        self._make_tickets = make_tickets
        self._mass_bits = mass_bits
        self._out: list[Effect] = []
        self._link: PeerLink | None = None
        self._candidates: dict[Peer, PeerLink] = {}
        self._slots = SlotTable(0)
        self._shape = (0, 0)
        self._memory: SlotMemory | None = None
        self._requests: dict[bytes, Request] = {}
        self._current: _Current | None = None
        self._jobs: dict[int, _Evaluation | bytes] = {}
        self._job_id = 0

    # --- the machine interface ---

    def effects(self) -> list[Effect]:
        """Everything to carry out since the last call, in order."""
        out, self._out[:] = list(self._out), []
        return out

    def next_deadline(self) -> int | None:
        """The earliest deadline of any connection."""
        links = list(self._candidates.values())
        if self._link is not None:
            links.append(self._link)
        return min((at for link in links if (at := link.next_deadline()) is not None), default=None)

    def expire(self, now_ns: int) -> None:
        """Ping, and end everything when rank 0 has gone silent."""
        for peer, candidate in list(self._candidates.items()):
            if candidate.expire(now_ns) is LinkEvent.LOST:
                del self._candidates[peer]
        if self._link is not None and self._link.expire(now_ns) is LinkEvent.LOST:
            self._end_all(Code.RANK_LOST)
            self._link = None

    def link_up(self, peer: Peer, now_ns: int) -> None:
        """A ROUTER learns of a peer by its first message, so there is nothing to do."""

    def link_down(self, peer: Peer, now_ns: int) -> None:
        """Rank 0 is gone: every session here is over."""
        self._candidates.pop(peer, None)
        if self._link is not None and self._link.peer == peer:
            self._end_all(Code.RANK_LOST)
            self._link.down()
            self._link = None

    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        """Take one message; strangers get no further than the handshake."""
        link = self._link if self._link is not None and self._link.peer == source else None
        if link is None:
            link = self._candidates.get(source) or PeerLink(
                source,
                self._boot_id,
                self._make_hello,
                self._out,
                calling=False,
                timing=self._timing,
            )
        held = link is self._link
        found = link.receive(frames, now_ns)
        if found is LinkEvent.AGREED:
            self._adopt(link)
        elif held and link.agreed is None:
            # Rank 0 negotiates again on the same connection, or was refused at it: the
            # old agreement is over either way.
            self._end_all(Code.RANK_LOST)
        elif isinstance(found, tuple) and held:
            self._on_message(link, *found)
        if held or found is LinkEvent.AGREED:
            return
        if found is LinkEvent.REFUSED or not link.negotiating:
            self._candidates.pop(source, None)
        elif source not in self._candidates:
            if len(self._candidates) >= limits.LINKS_MAX:
                self._candidates.pop(next(iter(self._candidates)))
            self._candidates[source] = link

    def completed(self, job_id: int, result: object, now_ns: int) -> None:
        """Take an evaluation, or note that an engine call failed."""
        pending = self._jobs.pop(job_id)
        if isinstance(pending, _Evaluation):
            self._on_evaluated(pending.current, result)
        elif isinstance(result, Exception):
            # The runner keeps the session apart; its next verdict ends the request.
            self._note(_WARNING, "target_engine_failed", error=f"{type(result).__name__}: {result}")

    # --- observers ---

    @property
    def requests(self) -> dict[bytes, Request]:
        """The open requests by session id (read only)."""
        return self._requests

    @property
    def candidates(self) -> list[Peer]:
        """Connections that have said hello and are not agreed with, oldest first."""
        return list(self._candidates)

    @property
    def slots(self) -> SlotTable:
        """The slot table (read only)."""
        return self._slots

    # --- rank 0 comes and goes ---

    def _adopt(self, link: PeerLink) -> None:
        """The newest agreed rank 0 is the one; there is never more than one."""
        self._end_all(Code.RANK_LOST)
        if self._link is not None and self._link is not link:
            self._link.down()
        self._candidates.pop(link.peer, None)
        self._link = link
        agreed = link.agreed
        assert agreed is not None
        shape = (agreed.terms.slots, agreed.terms.slot_bytes)
        if self._memory is None or shape != self._shape:
            self._memory = self._make_staging(agreed.terms)
            self._slots = SlotTable(agreed.terms.slots)
            self._shape = shape
        self._note(_INFO, "link_agreed", link_epoch=f"{agreed.link_epoch:016x}")

    def _end_all(self, code: Code) -> None:
        self._abandon_step()
        for session_id in list(self._requests):
            self._close(session_id, code)

    def _abandon_step(self) -> None:
        current = self._current
        if current is not None:
            current.collector.close()  # slots that the engine still reads drain later
            self._current = None

    def _close(self, session_id: bytes, code: Code | None) -> None:
        del self._requests[session_id]
        self._run(CloseTarget(session_id), session_id)
        if code is not None:
            self._out.append(Count("pp1_requests_ended_total", (("code", code.name),)))
            self._note(_WARNING, "request_ended", session=session_id.hex(), code=code.name)

    # --- messages ---

    def _on_message(self, link: PeerLink, message: AnyMessage, payload: Buffer | None) -> None:
        try:
            answer = self._answer(link, message, payload)
        except ProtocolError as error:
            step = message.step if isinstance(message, _OF_A_STEP) else 0
            session_id = message.session_id if isinstance(message, Open) else b""
            link.nak(error, step=step, session_id=session_id)
            if isinstance(message, _QUESTIONS):
                self._note(_WARNING, "step_refused", error=str(error))
                self._poison_step()
            return
        if answer is not None:
            link.send(answer)

    def _poison_step(self) -> None:
        """The ranks contradict each other: no request of the step may go on here."""
        current = self._current
        if current is None:
            return
        self._abandon_step()
        for request in current.requests:
            if request.session_id in self._requests:
                self._close(request.session_id, Code.SESSION_POISONED)

    def _answer(
        self, link: PeerLink, message: AnyMessage, payload: Buffer | None
    ) -> Message | None:
        agreed = link.agreed
        assert agreed is not None
        if isinstance(message, Open):
            self._on_open(agreed.terms, message)
            return None
        if isinstance(message, Step):
            self._on_step(agreed.terms, message)
            return None
        if isinstance(message, Cancel):
            if message.session_id in self._requests:
                self._on_cancel(message.session_id)
            return None
        if isinstance(message, Nak):
            self._note(_WARNING, "nak_received", code=message.code, field=message.field)
            return None
        if not isinstance(message, (Rows, Completion, Prepare, Invalidate, Decide, Decision)):
            raise ProtocolError(
                Code.KIND_UNEXPECTED, "kind", "a message to rank 1", type(message).__name__
            )
        current = self._current
        if current is None or current.follower.step.step != message.step:
            self._out.append(Count("pp1_pair_stale_total", (("kind", type(message).__name__),)))
            return None
        if isinstance(message, Rows):
            assert payload is not None
            if current.follower.phase is Phase.COLLECTING:
                current.collector.on_rows(message, payload)
            return None
        if isinstance(message, Completion):
            if current.follower.phase is Phase.COLLECTING:
                current.collector.on_completion(message)
            return None
        return self._on_pair(current, message)

    def _on_pair(
        self, current: _Current, message: Prepare | Invalidate | Decide | Decision
    ) -> Message | None:
        repeated = current.follower.repeated(message)
        if repeated is not None:
            return repeated
        if isinstance(message, Prepare):
            current.collector.fail(
                ProtocolError(Code.Q_MISSING, "rows", "whole proposals at Prepare", "not all")
            )
            current.findings = [
                current.collector.finding(index) for index in range(len(current.requests))
            ]
            return current.follower.on_prepare(message, current.findings)
        if isinstance(message, Invalidate):
            answer = current.follower.on_invalidate(message)
            for index, reason in current.follower.discards.items():
                current.collector.discard(
                    index, ProtocolError(Code.GENERATION_STALE, "generation", "live", reason)
                )
            return answer
        if isinstance(message, Decide):
            if current.decide is not None:
                if message != current.decide:
                    raise ProtocolError(
                        Code.DECISION_MISMATCH, "Decide", "the content as first sent", "other"
                    )
                return None  # a repeat while the engine is still at it
            current.follower.on_decide(message, current.findings)
            current.decide = message
            job = build_verify(
                RANK, current.follower.step, message.uses, current.requests, current.collector
            )
            self._run(job, _Evaluation(current))
            return None
        return self._on_decision(current, message)

    def _on_cancel(self, session_id: bytes) -> None:
        """Rank 0 has ended a request, and left its step if that is still undecided."""
        current = self._current
        if (
            current is not None
            and current.follower.phase is not Phase.DONE
            and any(request.session_id == session_id for request in current.requests)
        ):
            self._abandon_step()
        self._close(session_id, Code.CANCELLED)

    def _on_open(self, terms: Terms, message: Open) -> None:
        if message.session_id in self._requests:
            return  # a repeat
        if message.slot >= terms.requests_max:
            raise ProtocolError(
                Code.SLOT_RANGE, "slot", f"below {terms.requests_max}", message.slot
            )
        request = open_request(
            message,
            target_checkpoint=terms.target_checkpoint,
            processors=terms.processors,
            legal_size=terms.legal_size,
            context_tokens_max=self._context_tokens_max,
            make_tickets=self._make_tickets,
        )
        for session_id, other in list(self._requests.items()):
            if other.slot == message.slot:
                self._close(session_id, Code.CANCELLED)  # over at rank 0, its Cancel was lost
        self._requests[message.session_id] = request
        self._run(
            OpenTarget(message.session_id, tuple(request.ledger.tokens), message.temperature),
            message.session_id,
        )

    def _on_step(self, terms: Terms, step: Step) -> None:
        current = self._current
        if current is not None and current.follower.step == step:
            return  # a repeat
        check_step(terms, step)
        requests = []
        for entry in step.entries:
            request = self._requests.get(entry.session_id)
            if request is None:
                raise ProtocolError(
                    Code.SESSION_UNKNOWN, "session_id", "a request here", entry.session_id.hex()
                )
            check_entry_against(request.ledger, entry, request.slot, request.context)
            requests.append(request)
        named = {entry.session_id for entry in step.entries}
        if current is not None and current.follower.phase is not Phase.DONE:
            # Rank 0 leaves a step undone only by ending every request of it.
            if any(request.session_id in named for request in current.requests):
                raise ProtocolError(
                    Code.ROUND_AHEAD, "step", f"step {current.follower.step.step} first", step.step
                )
            self._abandon_step()
        for session_id in [known for known in self._requests if known not in named]:
            # A step names every request of rank 0: this one is over, its Cancel was lost.
            self._close(session_id, Code.CANCELLED)
        assert self._memory is not None
        for request, entry in zip(requests, step.entries, strict=True):
            request.ledger.open_round(entry.round)
        draws = [request.tickets(Owner.WORKER) for request in requests]
        collector = Collector(terms, step, draws, self._slots, self._memory, self._mass_bits)
        self._current = _Current(PairFollower(step), collector, requests, terms.legal_size)

    # --- evaluation and decision ---

    def _on_evaluated(self, current: _Current, result: object) -> None:
        assert current.decide is not None
        release_used(current.follower.uses, current.collector)
        link = self._link
        if current is not self._current or link is None or link.agreed is None:
            return  # the step was abandoned while the engine was at it
        current.verdicts, troubles = verdict_entries(current.follower.step, current.owned, result)
        for trouble in troubles:
            self._note(_WARNING, "target_failed", error=trouble)
        ordered = [verdict for _, verdict in sorted(current.verdicts.items())]
        link.send(current.follower.on_evaluated(current.decide, ordered))

    def _on_decision(self, current: _Current, message: Decision) -> Message:
        step = current.follower.step
        verdicts = current.verdicts or {}

        def prefix_after(index: int, tokens: Sequence[int]) -> tuple[int, bytes]:
            ledger = current.requests[index].ledger
            return ledger.length + len(tokens), ledger.digest_after(tokens)

        expected = []
        for index, (entry, request) in enumerate(zip(step.entries, current.requests, strict=True)):
            used = current.follower.uses[index] if current.follower.uses else False
            drafts = current.collector.proposals[index].tokens if used else ()
            expected.append(
                recompose(
                    index,
                    entry,
                    drafts,
                    current.follower.discards.get(index, 0),
                    TextRules(request.room, request.stop_tokens, current.legal_size),
                    message.entries[index],
                    verdicts.get(index),
                    prefix_after,
                )
            )
        answer = current.follower.on_decision(message, expected)
        for index, (request, outcome) in enumerate(zip(current.requests, expected, strict=True)):
            ends = outcome.kind == DecisionKind.END
            if not ends:
                packed = outcome.tokens[: outcome.token_count * 4]
                tokens = tuple(tokens_from_bytes(packed, "decision.tokens"))
                request.ledger.append(tokens)
                self._run(CommitTarget(request.session_id, tokens), request.session_id)
                if index in current.follower.discards:
                    request.ledger.begin(request.ledger.generation + 1)
            if ends or outcome.finish != Finish.NONE:
                self._close(request.session_id, Code(outcome.reason) if ends else None)
        current.collector.close()
        # The step stays, so that a repeated Decision is answered with the same Applied.
        return answer

    # --- small helpers ---

    def _run(self, job: object, pending: _Evaluation | bytes) -> None:
        self._job_id += 1
        self._jobs[self._job_id] = pending
        self._out.append(Run(self._job_id, job))

    def _note(self, level: int, event: str, **fields: object) -> None:
        self._out.append(Note(level, event, fields))
