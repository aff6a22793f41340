"""The worker leader as a machine: it owns the proposal draws and their bytes.

Per session it holds a ledger (committed prefix, generation, round) and the
chain of the last round, per link the cached reply of the last steps. A step is
answered once with fresh draws and ever after with the same bytes. Draft work
leaves as ``Run`` effects that the daemon executes in order on one engine
thread; a result that arrives after its generation is over is dropped.

Whatever goes wrong with one request ends in that request's completion status;
the other requests of the step, and other peers, are not touched.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from proto_v2 import limits
from proto_v2.binding import completion_checksum
from proto_v2.effects import Buffer, Count, Effect, Note, Peer, Run
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    AnyMessage,
    Cancel,
    Commit,
    CommitEntry,
    Completion,
    CompletionEntry,
    Hello,
    Nak,
    Ready,
    Reset,
    Row,
    Rows,
    Step,
    StepEntry,
    check_legal,
    tokens_from_bytes,
)
from proto_v2.negotiate import Terms
from proto_v2.peerlink import LinkEvent, LinkTiming, PeerLink
from proto_v2.representation import Representation
from proto_v2.rng import KeyedTickets, TicketSource
from proto_v2.session import Ledger
from proto_v2.validate import check_entry_against, check_step

from .proposal import (
    AdvanceSession,
    Chain,
    ChainFailed,
    CloseSession,
    Draft,
    DraftItem,
    OpenSession,
    engine_session,
)

_REPLIES_KEPT: Final = limits.BATCHES_IN_FLIGHT
_INFO, _WARNING = 20, 30


@dataclass(slots=True)
class _Session:
    engine: bytes
    ledger: Ledger
    slot: int
    context: int
    key: bytes
    drawn: tuple[int, ...] = ()
    drawn_round: int = 0
    committed_round: int = 0  # the last one that a commit named: no other commit of it
    broken: Code | None = None


@dataclass(slots=True)
class _Reply:
    """The reply to one step: the step, then the frames once they exist."""

    step: Step
    frames: list[tuple[Buffer, ...]] = field(default_factory=list)
    done: bool = False


@dataclass(slots=True)
class _Line:
    """One rank 0 on one connection, with everything it may address."""

    link: PeerLink
    sessions: dict[bytes, _Session] = field(default_factory=dict)
    replies: OrderedDict[int, _Reply] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A draft job in flight: whose step, and the statuses already known."""

    line: _Line
    step: Step
    statuses: dict[int, Code]
    generations: dict[int, int]


class WorkerMachine:
    """Serves any number of rank-0 peers on one bound link."""

    def __init__(
        self,
        *,
        boot_id: bytes,
        make_hello: Callable[[], Hello],
        timing: LinkTiming,
        tickets: Callable[[bytes], TicketSource] = KeyedTickets,
    ) -> None:
        self._boot_id = boot_id
        self._make_hello = make_hello
        self._timing = timing
        self._tickets = tickets
        self._out: list[Effect] = []
        self._lines: dict[Peer, _Line] = {}
        self._jobs: dict[int, _Pending | tuple[_Session, int]] = {}
        self._job_id = 0

    # --- the machine interface ---

    def effects(self) -> list[Effect]:
        """Everything to carry out since the last call, in order."""
        out, self._out[:] = list(self._out), []
        return out

    def next_deadline(self) -> int | None:
        """The earliest deadline of any connection."""
        return min(
            (at for line in self._lines.values() if (at := line.link.next_deadline()) is not None),
            default=None,
        )

    def expire(self, now_ns: int) -> None:
        """Ping, and drop the sessions of peers that have gone silent."""
        for peer, line in list(self._lines.items()):
            if line.link.expire(now_ns) is LinkEvent.LOST:
                self._drop(peer)

    def link_up(self, peer: Peer, now_ns: int) -> None:
        """A ROUTER learns of a peer by its first message, so there is nothing to do."""

    def link_down(self, peer: Peer, now_ns: int) -> None:
        """The route is gone: its sessions and cached replies go with it."""
        self._drop(peer)

    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        """Take one message of any peer."""
        line = self._lines.get(source)
        if line is None:
            if len(self._lines) >= limits.LINKS_MAX:
                self._out.append(Count("pp1_links_refused_total"))
                return
            link = PeerLink(
                source,
                self._boot_id,
                self._make_hello,
                self._out,
                calling=False,
                timing=self._timing,
            )
            line = _Line(link)
        found = line.link.receive(frames, now_ns)
        if line.link.negotiating:
            self._lines.setdefault(source, line)
        if found is LinkEvent.AGREED:
            self._clear(line)
            agreed = line.link.agreed
            assert agreed is not None
            self._note(_INFO, "link_agreed", link_epoch=f"{agreed.link_epoch:016x}")
        elif found is LinkEvent.REFUSED:
            self._drop(source)
        elif isinstance(found, tuple):
            self._on_message(line, found[0])

    def completed(self, job_id: int, result: object, now_ns: int) -> None:
        """Take the result of a draft, or the failure of an engine call."""
        pending = self._jobs.pop(job_id)
        if isinstance(pending, _Pending):
            self._on_drafted(pending, result)
        elif isinstance(result, Exception):
            session, generation = pending
            self._note(_WARNING, "draft_engine_failed", error=f"{type(result).__name__}: {result}")
            if session.ledger.generation == generation:
                session.broken = Code.DRAFT_FAILED

    # --- observers ---

    @property
    def sessions(self) -> int:
        """Sessions held for all peers."""
        return sum(len(line.sessions) for line in self._lines.values())

    # --- peers ---

    def _drop(self, peer: Peer) -> None:
        line = self._lines.pop(peer, None)
        if line is not None:
            self._clear(line)
            line.link.down()

    def _clear(self, line: _Line) -> None:
        for session_id in list(line.sessions):
            self._close(line, session_id)
        line.replies.clear()

    def _close(self, line: _Line, session_id: bytes) -> None:
        session = line.sessions.pop(session_id)
        self._run(CloseSession(session.engine), (session, session.ledger.generation))

    # --- messages ---

    def _on_message(self, line: _Line, message: AnyMessage) -> None:
        agreed = line.link.agreed
        assert agreed is not None
        try:
            if isinstance(message, Step):
                self._on_step(line, agreed.terms, message)
            elif isinstance(message, Commit):
                self._on_commits(line, agreed.terms, message)
            elif isinstance(message, Reset):
                self._on_reset(line, agreed.terms, agreed.link_epoch, message)
            elif isinstance(message, Cancel):
                if message.session_id in line.sessions:
                    self._close(line, message.session_id)
            elif isinstance(message, Nak):
                self._note(_WARNING, "nak_received", code=message.code, field=message.field)
            else:
                raise ProtocolError(
                    Code.KIND_UNEXPECTED, "kind", "a message to a worker", type(message).__name__
                )
        except ProtocolError as error:
            line.link.nak(
                error,
                step=message.step if isinstance(message, Step) else 0,
                session_id=message.session_id if isinstance(message, (Reset, Cancel)) else b"",
            )

    def _on_reset(self, line: _Line, terms: Terms, epoch: int, reset: Reset) -> None:
        session = line.sessions.get(reset.session_id)
        if session is None:
            ledger = Ledger(reset.session_id)
        else:
            ledger = session.ledger
            if reset.generation == ledger.generation and reset.digest == ledger.digest:
                line.link.send(
                    Ready(reset.session_id, reset.generation, ledger.length, ledger.digest)
                )
                return  # a repeat
        if reset.generation <= ledger.generation:
            raise ProtocolError(
                Code.GENERATION_STALE, "generation", f"above {ledger.generation}", reset.generation
            )
        if reset.slot >= terms.requests_max:
            raise ProtocolError(Code.SLOT_RANGE, "slot", f"below {terms.requests_max}", reset.slot)
        rebuilt = session is None or session.broken is not None or reset.base_length == 0
        if session is not None:
            # The earlier generation is over even where this reset is refused below.
            session.broken = Code.GENERATION_STALE
        if ledger.digest_at(reset.base_length) != reset.base_digest:
            raise ProtocolError(
                Code.PREFIX_UNKNOWN, "base_digest", "a prefix held here", reset.base_digest.hex()
            )
        suffix = tokens_from_bytes(reset.suffix, "suffix")
        check_legal(suffix, terms.legal_size, Code.TOKEN_RANGE, "suffix")
        if not 1 <= reset.base_length + len(suffix) <= limits.PREFIX_TOKENS_MAX:
            raise ProtocolError(
                Code.PREFIX_RANGE,
                "suffix",
                f"1..{limits.PREFIX_TOKENS_MAX} tokens in all",
                reset.base_length + len(suffix),
            )
        fresh = Ledger(reset.session_id)
        fresh.append(ledger.tokens[: reset.base_length])
        fresh.append(suffix)
        if fresh.digest != reset.digest:
            raise ProtocolError(
                Code.PREFIX_MISMATCH, "digest", fresh.digest.hex(), reset.digest.hex()
            )
        self._vacate(line, reset)
        fresh.begin(reset.generation)
        fresh.round = reset.round
        line.sessions[reset.session_id] = renewed = _Session(
            engine=engine_session(epoch, reset.session_id),
            ledger=fresh,
            slot=reset.slot,
            context=reset.context,
            key=reset.key,
        )
        if rebuilt:
            job: OpenSession | AdvanceSession = OpenSession(renewed.engine, tuple(fresh.tokens))
        else:
            job = AdvanceSession(renewed.engine, reset.base_length, tuple(suffix))
        self._run(job, (renewed, reset.generation))
        line.link.send(Ready(reset.session_id, reset.generation, fresh.length, fresh.digest))

    def _vacate(self, line: _Line, reset: Reset) -> None:
        """A slot has one session: an earlier one in it is over, its Cancel was lost."""
        for session_id, session in list(line.sessions.items()):
            if session.slot == reset.slot and session_id != reset.session_id:
                self._close(line, session_id)

    def _on_commits(self, line: _Line, terms: Terms, message: Commit) -> None:
        """Each entry by itself: one that does not fit leaves the others alone."""
        for entry in message.entries:
            try:
                self._on_commit(line, terms, entry)
            except ProtocolError as error:
                line.link.nak(error, session_id=entry.session_id)

    def _on_commit(self, line: _Line, terms: Terms, commit: CommitEntry) -> None:
        session = line.sessions.get(commit.session_id)
        if session is None:
            raise ProtocolError(
                Code.SESSION_UNKNOWN, "session_id", "a session here", commit.session_id.hex()
            )
        ledger = session.ledger
        ledger.check_generation(commit.generation)
        if commit.position == ledger.length and commit.digest == ledger.digest:
            ledger.round = max(ledger.round, commit.round)
            return  # a repeat
        open_from = max(ledger.round, session.committed_round + 1)
        if commit.round < open_from:
            raise ProtocolError(
                Code.COMMIT_MISMATCH, "round", f"{open_from} or above", commit.round
            )
        drawn = session.drawn if session.drawn_round == commit.round else ()
        if commit.accepted > len(drawn):
            raise ProtocolError(
                Code.COMMIT_MISMATCH, "accepted", f"at most {len(drawn)}", commit.accepted
            )
        tokens = (*drawn[: commit.accepted], *commit.last)
        check_legal(tokens, terms.legal_size, Code.TOKEN_RANGE, "last")
        if (
            ledger.length + len(tokens) != commit.position
            or ledger.digest_after(tokens) != commit.digest
        ):
            raise ProtocolError(
                Code.COMMIT_MISMATCH,
                "digest",
                f"{ledger.digest_after(tokens).hex()} at {ledger.length + len(tokens)}",
                f"{commit.digest.hex()} at {commit.position}",
            )
        length = ledger.length
        ledger.append(tokens)
        ledger.round = session.committed_round = commit.round
        self._run(AdvanceSession(session.engine, length, tokens), (session, commit.generation))

    # --- steps ---

    def _on_step(self, line: _Line, terms: Terms, step: Step) -> None:
        known = line.replies.get(step.step)
        if known is not None:
            if known.step != step:
                raise ProtocolError(
                    Code.STEP_CHANGED, "step", "the step as first sent", "another one"
                )
            if known.done:
                self._out.append(Count("pp1_replies_repeated_total"))
                for frames in known.frames:
                    line.link.resend(frames)
            return
        if line.replies and step.step < next(reversed(line.replies)):
            raise ProtocolError(
                Code.ROUND_STALE, "step", f"above {next(reversed(line.replies))}", step.step
            )
        check_step(terms, step)
        reply = _Reply(step)
        line.replies[step.step] = reply
        while len(line.replies) > _REPLIES_KEPT:
            line.replies.popitem(last=False)
        statuses: dict[int, Code] = {}
        items: list[DraftItem] = []
        generations: dict[int, int] = {}
        for index, entry in enumerate(step.entries):
            try:
                session = self._accept(line, entry)
            except ProtocolError as error:
                self._out.append(Count("pp1_proposals_refused_total", (("code", error.code.name),)))
                statuses[index] = error.code
                continue
            generations[index] = entry.generation
            if entry.depth:
                items.append(DraftItem(index, session.engine, entry, self._tickets(session.key)))
        pending = _Pending(line, step, statuses, generations)
        if items:
            self._run(Draft(tuple(items)), pending)
        else:
            self._on_drafted(pending, ())

    def _accept(self, line: _Line, entry: StepEntry) -> _Session:
        """Open the round of one entry, or say why not. After this the key is spent."""
        session = line.sessions.get(entry.session_id)
        if session is None:
            raise ProtocolError(
                Code.SESSION_UNKNOWN, "session_id", "a session here", entry.session_id.hex()
            )
        check_entry_against(session.ledger, entry, session.slot, session.context)
        if session.broken is not None:
            raise ProtocolError(session.broken, "session", "a usable engine state", "a failed one")
        session.ledger.open_round(entry.round)
        session.drawn = ()
        session.drawn_round = entry.round
        return session

    def _on_drafted(self, pending: _Pending, result: object) -> None:
        line, step = pending.line, pending.step
        reply = line.replies.get(step.step)
        if reply is None or reply.step is not step or line.link.agreed is None:
            self._out.append(Count("pp1_drafts_dropped_total"))
            return  # the link or the step is over; nothing of it may leave
        chains: dict[int, Chain] = {}
        statuses = dict(pending.statuses)
        if isinstance(result, Exception):
            self._note(_WARNING, "draft_failed", error=f"{type(result).__name__}: {result}")
            for index in pending.generations:
                if step.entries[index].depth:
                    statuses[index] = Code.DRAFT_FAILED
        else:
            assert isinstance(result, tuple)
            for outcome in result:
                if isinstance(outcome, Chain):
                    chains[outcome.index] = outcome
                else:
                    assert isinstance(outcome, ChainFailed)
                    self._note(_WARNING, "draft_failed", error=outcome.detail)
                    statuses[outcome.index] = outcome.code
        self._mark(line, step, chains, statuses)
        self._send_rows(line, step, reply, chains)
        completion = Completion(
            step.step,
            tuple(
                _completion_entry(entry, chains.get(index), statuses.get(index))
                for index, entry in enumerate(step.entries)
            ),
        )
        reply.frames.append(line.link.send(completion))
        reply.done = True

    def _mark(
        self, line: _Line, step: Step, chains: dict[int, Chain], statuses: dict[int, Code]
    ) -> None:
        """Remember what was drawn, and which engine states can no longer be trusted.

        A chain whose generation has ended meanwhile is dropped: nothing of it leaves.
        """
        for index, entry in enumerate(step.entries):
            session = line.sessions.get(entry.session_id)
            if session is None or session.ledger.generation != entry.generation:
                if chains.pop(index, None) is not None:
                    statuses[index] = Code.GENERATION_STALE
                    self._out.append(Count("pp1_drafts_dropped_total"))
                continue
            if index in chains and session.drawn_round == entry.round:
                session.drawn = tuple(row.token for row in chains[index].rows)
            elif statuses.get(index) is Code.DRAFT_FAILED:
                session.broken = Code.DRAFT_FAILED

    def _send_rows(self, line: _Line, step: Step, reply: _Reply, chains: dict[int, Chain]) -> None:
        """Dense rows go one by one; sparse rows of the whole step share one message."""
        batch: list[Row] = []
        payloads: list[bytes] = []
        size = 0
        agreed = line.link.agreed
        assert agreed is not None
        room = agreed.terms.frame_bytes_max

        def flush() -> None:
            if batch:
                rows = Rows(step.step, tuple(batch))
                reply.frames.append(line.link.send(rows, b"".join(payloads)))
            batch.clear()
            payloads.clear()

        for index in sorted(chains):
            for row, payload in zip(chains[index].rows, chains[index].payloads, strict=True):
                dense = row.representation == Representation.DENSE_F32
                if batch and (dense or size + len(payload) > room):
                    flush()
                    size = 0
                batch.append(row)
                payloads.append(payload)
                size += len(payload)
        flush()

    # --- small helpers ---

    def _run(self, job: object, pending: _Pending | tuple[_Session, int]) -> None:
        self._job_id += 1
        self._jobs[self._job_id] = pending
        self._out.append(Run(self._job_id, job))

    def _note(self, level: int, event: str, **fields: object) -> None:
        self._out.append(Note(level, event, fields))


def _completion_entry(
    entry: StepEntry, chain: Chain | None, status: Code | None
) -> CompletionEntry:
    checksums = [] if chain is None else [row.checksum for row in chain.rows]
    reply_bytes = 0 if chain is None else sum(row.byte_length for row in chain.rows)
    code = 0 if status is None else int(status)
    return CompletionEntry(
        session_id=entry.session_id,
        generation=entry.generation,
        round=entry.round,
        status=code,
        row_count=len(checksums),
        reply_bytes=reply_bytes,
        checksum=completion_checksum(entry, code, reply_bytes, checksums),
    )
