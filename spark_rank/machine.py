"""Rank 0 as a machine: requests in, rounds with worker and rank 1, tokens out.

One round at a time, for all active requests together:

    plan (depths fixed) -> Step to rank 1 and worker -> rows forwarded as they come
    -> findings -> pair agreement (``pair``) -> evaluation -> decision -> both apply
    -> tokens to the clients, Commit to the worker -> next round

A worker that is missing, late, wrong or restarted costs the proposal of the
requests concerned and ends their generation on both ranks; the text goes on
target-only and speculates again after a Reset. A rank 1 that is missing ends
the requests with a named error: rank 0 never commits alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proto_v2 import limits
from proto_v2.deadlines import Deadlines
from proto_v2.effects import Buffer, Count, Effect, Note, Peer, Run, Stop
from proto_v2.errors import Code, ExitCode, ProtocolError, known_code
from proto_v2.messages import (
    Abort,
    Applied,
    Cancel,
    Completion,
    Decide,
    DecisionEntry,
    DecisionKind,
    Generate,
    Hello,
    Invalidated,
    Message,
    Nak,
    Prepared,
    Ready,
    Rows,
    Step,
    StepEntry,
    Tokens,
    VerdictEntry,
    Verdicts,
    tokens_from_bytes,
)
from proto_v2.negotiate import Terms
from proto_v2.peerlink import LinkEvent, LinkTiming, PeerLink
from proto_v2.rng import KeyedTickets, Owner
from proto_v2.slots import SlotTable

from .active import Active, WorkerSide
from .breaker import Breaker
from .clients import Clients, Identity
from .collector import Collector, SlotMemory
from .evaluate import build_verify, release_used, verdict_entries
from .jobs import CloseTarget, CommitTarget, OpenTarget
from .lanes import Lanes
from .pair import PairLeader, Phase, TextRules, check_verdict, compose_entry, ending
from .planning import Conditions, plan
from .request import MakeTickets
from .verify import Finish
from .worker_port import WorkerPort

_INFO, _WARNING = 20, 30
RANK = 0
WORKER_PEER = Peer("worker")
PAIR_PEER = Peer("pair")

MakeStaging = Callable[[Terms], SlotMemory]


@dataclass(frozen=True, slots=True)
class Timing:
    """Nanoseconds. Deadlines are far above any time that depends on a message's size."""

    link: LinkTiming = field(default_factory=LinkTiming)
    step_ns: int = 10_000_000_000  # Step to whole completion
    retry_ns: int = 1_000_000_000  # before a question is asked again
    pair_ns: int = 20_000_000_000  # for rank 1 to answer one question
    target_ns: int = 120_000_000_000  # for an evaluation on either rank
    pair_connect_ns: int = 60_000_000_000  # for the first agreement with rank 1


@dataclass(slots=True)
class _Round:
    """The round in progress."""

    step: Step
    actives: list[Active]
    collector: Collector
    leader: PairLeader
    asked_worker: bool
    question: tuple[Buffer, ...] = ()

    @property
    def owned(self) -> list[int]:
        return [i for i, active in enumerate(self.actives) if active.request.owner == RANK]

    @property
    def foreign(self) -> list[int]:
        return [i for i, active in enumerate(self.actives) if active.request.owner != RANK]


class RankZeroMachine:
    """Leads the pair. ``entropy(n)`` gives n random bytes (injected, so runs replay)."""

    def __init__(
        self,
        *,
        boot_id: bytes,
        make_hello: Callable[[], Hello],
        make_staging: MakeStaging,
        entropy: Callable[[int], bytes],
        identity: Identity,
        timing: Timing,
        start_ns: int,
        breaker: Breaker | None = None,
        make_tickets: MakeTickets = KeyedTickets,
        mass_bits: int = limits.MASS_BITS,
    ) -> None:
        self._out: list[Effect] = []
        self._make_staging = make_staging
        self._identity = identity
        self._timing = timing
        self._breaker = breaker or Breaker()
        self._mass_bits = mass_bits
        self._deadlines = Deadlines()
        self._deadlines.set("pair_connect", start_ns + timing.pair_connect_ns)

        def link(peer: Peer) -> PeerLink:
            return PeerLink(peer, boot_id, make_hello, self._out, calling=True, timing=timing.link)

        self._pair = link(PAIR_PEER)
        self._worker = WorkerPort(link(WORKER_PEER), self._out, timing.retry_ns)
        self._clients = Clients(boot_id, identity, self._out)
        self._ever_paired = False
        self._ever_worked = False
        self._shape = (0, 0)
        self._slots = SlotTable(0)
        self._memory: SlotMemory | None = None
        self._lanes = Lanes(self._clients, identity, entropy, make_tickets, self._out)
        self._round: _Round | None = None
        self._step_id = 0
        self._jobs: dict[int, _Round | None] = {}
        self._job_id = 0

    # --- the machine interface ---

    def effects(self) -> list[Effect]:
        """Everything to carry out since the last call, in order."""
        out, self._out[:] = list(self._out), []
        return out

    def next_deadline(self) -> int | None:
        """The earliest deadline of links, round and resets."""
        times = (
            self._deadlines.next(),
            self._pair.next_deadline(),
            self._worker.link.next_deadline(),
            self._worker.next_deadline(),
        )
        return min((at for at in times if at is not None), default=None)

    def link_up(self, peer: Peer, now_ns: int) -> None:
        """A connection to worker or rank 1 stands: negotiate."""
        if peer.link == PAIR_PEER.link:
            self._pair_lost()
            self._pair.up(now_ns)
        elif peer.link == WORKER_PEER.link:
            self._worker_lost(now_ns)
            self._worker.link.up(now_ns)

    def link_down(self, peer: Peer, now_ns: int) -> None:
        """A connection is gone."""
        if peer.link == PAIR_PEER.link:
            self._note(_WARNING, "pair_link_down")
            self._pair.down()
            self._pair_lost()
        elif peer.link == WORKER_PEER.link:
            self._note(_WARNING, "worker_link_down")
            self._worker.link.down()
            self._worker_lost(now_ns)
        else:
            self._lanes.cancel(lambda client, key: client == peer)

    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        """Take one message of worker, rank 1 or a client."""
        if source.link == PAIR_PEER.link:
            self._from_pair(frames, now_ns)
        elif source.link == WORKER_PEER.link:
            self._from_worker(frames, now_ns)
        else:
            self._from_client(source, frames)
        self._next_round(now_ns)

    def completed(self, job_id: int, result: object, now_ns: int) -> None:
        """Take an evaluation, or note that an engine call failed."""
        round_ = self._jobs.pop(job_id)
        if round_ is not None:
            try:
                self._on_evaluated(round_, result, now_ns)
            except ProtocolError as error:
                self._split(error)
        elif isinstance(result, Exception):
            # The runner keeps the session apart; its next verdict ends the request.
            self._note(_WARNING, "target_engine_failed", error=f"{type(result).__name__}: {result}")
        self._next_round(now_ns)

    def expire(self, now_ns: int) -> None:
        """Act on silence, unanswered questions and the deadlines of the round."""
        if self._pair.expire(now_ns) is LinkEvent.LOST:
            self._pair_lost()
        if self._worker.link.expire(now_ns) is LinkEvent.LOST:
            self._worker_lost(now_ns)
        self._worker.expire(now_ns)
        for name in self._deadlines.expire(now_ns):
            self._on_deadline(str(name), now_ns)
        self._next_round(now_ns)

    def _on_deadline(self, name: str, now_ns: int) -> None:
        round_ = self._round
        if name == "pair_connect":
            if not self._ever_paired:
                error = ProtocolError(
                    Code.PEER_UNREACHABLE, "pair", "a rank 1 that agrees in time", "none"
                )
                self._out.append(Stop(int(ExitCode.UNREACHABLE), str(error)))
            return
        if name == "held":
            return  # the next round begins what has waited long enough
        if round_ is None:
            return  # ended by another deadline that fell due in this same call
        if name == "step_retry":
            self._worker.link.send(round_.step)
        elif name == "step":
            error = ProtocolError(
                Code.DRAFT_LATE, "completion", f"within {self._timing.step_ns} ns", "nothing whole"
            )
            round_.collector.fail(error)
            self._prepare(round_, now_ns)
        elif name == "pair_retry":
            self._pair.resend(round_.question)
            self._deadlines.set("pair_retry", now_ns + self._timing.retry_ns)
        elif name == "pair":
            evaluating = round_.leader.phase is Phase.EVALUATING
            self._end_round(Code.TARGET_LATE if evaluating else Code.RANK_LOST)

    # --- observers ---

    @property
    def slots(self) -> SlotTable:
        """The slot table (read only)."""
        return self._slots

    @property
    def actives(self) -> list[Active]:
        """The requests in lanes (read only)."""
        return self._lanes.actives

    @property
    def worker_ready(self) -> bool:
        """Whether a worker is agreed with."""
        return self._worker.terms is not None

    @property
    def pair_ready(self) -> bool:
        """Whether rank 1 is agreed with."""
        return self._pair.agreed is not None

    # --- links ---

    def _refused(self, link: PeerLink, first: bool) -> None:
        if first:
            self._out.append(Stop(int(ExitCode.REFUSED), str(link.refused)))

    def _pair_lost(self) -> None:
        """Rank 1 is gone or new: nothing that is open can go on."""
        self._round_over()
        for active in self.actives:
            self._end(active, Code.RANK_LOST)
        # As a new request would be: none waits for a rank that may never come back.
        self._lanes.refuse_waiting(Code.RANK_LOST, lambda client, key: True)

    def _worker_lost(self, now_ns: int) -> None:
        self._worker.lost(self.actives)
        round_ = self._round
        if round_ is not None and round_.leader.phase is Phase.COLLECTING:
            round_.collector.fail(ProtocolError(Code.WORKER_DOWN, "worker", "a live link", "none"))
            self._prepare(round_, now_ns)

    # --- worker messages ---

    def _from_worker(self, frames: Sequence[memoryview], now_ns: int) -> None:
        found = self._worker.link.receive(frames, now_ns)
        if found is LinkEvent.AGREED:
            self._ever_worked = True
            self._note(_INFO, "worker_agreed")
            for active in self.actives:
                self._worker.sync(active, 0, now_ns)
        elif found is LinkEvent.LOST:
            self._worker_lost(now_ns)
        elif found is LinkEvent.REFUSED:
            self._refused(self._worker.link, first=not self._ever_worked)
        elif isinstance(found, tuple):
            message, payload = found
            if isinstance(message, (Rows, Completion)):
                self._on_proposal(message, payload, now_ns)
            elif isinstance(message, Ready):
                self._worker.on_ready(self._lanes.by_session(message.session_id), message)
            elif isinstance(message, Nak):
                self._on_worker_nak(message, now_ns)
            else:
                self._worker.link.nak(_unexpected(message))

    def _on_proposal(self, message: Rows | Completion, payload: Buffer | None, now_ns: int) -> None:
        round_ = self._round
        if (
            round_ is None
            or round_.step.step != message.step
            or round_.leader.phase is not Phase.COLLECTING
            or not round_.asked_worker
        ):
            self._out.append(Count("pp1_late_replies_total", (("kind", type(message).__name__),)))
            return
        # Rank 1 gets the same bytes and finds for itself.
        self._pair.send(message, payload)
        if isinstance(message, Rows):
            assert payload is not None
            round_.collector.on_rows(message, payload)
        else:
            round_.collector.on_completion(message)
            # Depth 0 asks for nothing, yet the answer tells whether the worker is in step.
            for active, entry in zip(round_.actives, message.entries, strict=False):
                if entry.status and active.worker is WorkerSide.READY:
                    code = known_code(entry.status, Code.COMPLETION_STATUS)
                    active.lose_worker(code, forget=self._worker.forgets(code))
            self._prepare(round_, now_ns)

    def _on_worker_nak(self, nak: Nak, now_ns: int) -> None:
        self._worker.on_nak(self._lanes.by_session(nak.session_id), nak, now_ns)
        round_ = self._round
        if (
            round_ is not None
            and nak.step == round_.step.step
            and round_.leader.phase is Phase.COLLECTING
        ):
            code = known_code(nak.code, Code.DRAFT_FAILED)
            round_.collector.fail(ProtocolError(code, nak.field, nak.wanted, nak.got))
            self._prepare(round_, now_ns)

    # --- planning ---

    def _next_round(self, now_ns: int) -> None:
        """Begin a round if none is in progress and there is something to generate."""
        if self._round is not None or self._pair.agreed is None:
            return
        for active in self.actives:
            if active.cancelled is not None:
                self._end(active, active.cancelled)
        self._admit(now_ns)
        self._begin_held(now_ns)
        actives = [active for active in self.actives if active.opening is None]
        if not actives:
            return
        self._step_id += 1
        step = Step(self._step_id, self._plan(actives))
        if not self._breaker.allows():
            self._breaker.round_skipped()
        for active, entry in zip(actives, step.entries, strict=True):
            active.ledger.open_round(entry.round)
        assert self._memory is not None
        collector = Collector(
            self._pair.agreed.terms,
            step,
            [active.request.tickets(Owner.WORKER) for active in actives],
            self._slots,
            self._memory,
            self._mass_bits,
        )
        asks = any(entry.depth for entry in step.entries)
        self._round = _Round(step, actives, collector, PairLeader(step), asks)
        for index, active in enumerate(actives):
            if active.out_of_step is not None:
                error = ProtocolError(active.out_of_step, "worker", "in step", "lost")
                collector.discard(index, error)
        self._pair.send(step)
        if asks:
            self._worker.link.send(step)
            self._deadlines.set("step", now_ns + self._timing.step_ns)
            self._deadlines.set("step_retry", now_ns + self._timing.step_ns // 2)
        else:
            self._prepare(self._round, now_ns)

    def _plan(self, actives: list[Active]) -> tuple[StepEntry, ...]:
        """The entries of the next step, and a count of every request without drafts."""
        assert self._pair.agreed is not None
        worker = self._worker.terms
        now = Conditions(
            pair=self._pair.agreed.terms,
            worker=worker,
            unusable=self._worker.unusable,
            breaker_allows=self._breaker.allows(),
            batch_fits=worker is not None
            and all(active.request.slot < worker.requests_max for active in self.actives),
        )
        entries = []
        for active in actives:
            entry, reason = plan(active, now)
            if reason is not None:
                self._out.append(Count("pp1_no_draft_total", (("reason", reason.name),)))
            entries.append(entry)
        return tuple(entries)

    # --- requests ---

    def _from_client(self, source: Peer, frames: Sequence[memoryview]) -> None:
        """Answer a query, queue a request, or mark one as not wanted any more."""
        message = self._clients.receive(
            source, frames, pair_ready=self.pair_ready, worker_ready=self.worker_ready
        )
        if isinstance(message, Generate):
            self._lanes.queue(source, message, pair_ready=self.pair_ready)
        elif isinstance(message, Abort):
            self._lanes.cancel(lambda client, key: client == source and key == message.key)

    def _admit(self, now_ns: int) -> None:
        """Give waiting requests the free lanes, as many as a batch of both peers may have."""
        assert self._pair.agreed is not None
        lanes = self._pair.agreed.terms.requests_max
        if self._worker.terms is not None:
            lanes = min(lanes, self._worker.terms.requests_max)
        for active in self._lanes.admit(lanes, now_ns + self._timing.retry_ns):
            self._worker.sync(active, 0, now_ns)

    def _begin_held(self, now_ns: int) -> None:
        """Open on both ranks what no longer waits for the worker's first Ready."""
        self._deadlines.clear("held")
        for active in self.actives:
            message = active.opening
            if message is None:
                continue
            if active.worker is WorkerSide.RESET_SENT and now_ns < active.held_until_ns:
                self._deadlines.set("held", active.held_until_ns)
                continue
            active.opening = None
            self._pair.send(message)
            tokens = tuple(active.ledger.tokens)
            self._run(OpenTarget(message.session_id, tokens, active.request.temperature), None)

    def _end(self, active: Active, code: Code) -> None:
        """End a request with an error, on every side that can be reached."""
        self._out.append(Count("pp1_requests_ended_total", (("code", code.name),)))
        error = ProtocolError(code, "request", "a request that goes on", f"{code.name} on rank 0")
        self._clients.failed(active.client, active.params.key, error)
        if self._pair.agreed is not None:
            self._pair.send(Cancel(active.request.session_id, active.ledger.generation, int(code)))
        self._release(active, code)

    def _release(self, active: Active, code: Code | None) -> None:
        """Free the lane; the worker and the engine forget the session."""
        self._lanes.free(active)
        self._worker.close(active, 0 if code is None else int(code))
        self._run(CloseTarget(active.request.session_id), None)

    # --- the round: agreement ---

    def _from_pair(self, frames: Sequence[memoryview], now_ns: int) -> None:
        found = self._pair.receive(frames, now_ns)
        if found is LinkEvent.AGREED:
            self._adopt_pair()
        elif found is LinkEvent.LOST:
            self._pair_lost()
        elif found is LinkEvent.REFUSED:
            self._refused(self._pair, first=not self._ever_paired)
        elif isinstance(found, tuple):
            message = found[0]
            try:
                self._on_pair_message(message, now_ns)
            except ProtocolError as error:
                self._split(error)

    def _split(self, error: ProtocolError) -> None:
        """Rank 1 says what it cannot have found: nothing of the round is committed."""
        self._note(_WARNING, "rank_split", error=str(error))
        self._end_round(Code.RANK_SPLIT)

    def _adopt_pair(self) -> None:
        agreed = self._pair.agreed
        assert agreed is not None
        self._ever_paired = True
        self._deadlines.clear("pair_connect")
        shape = (agreed.terms.slots, agreed.terms.slot_bytes)
        if self._memory is None or shape != self._shape:
            self._memory = self._make_staging(agreed.terms)
            self._slots = SlotTable(agreed.terms.slots)
            self._shape = shape
        self._note(_INFO, "pair_agreed")

    def _on_pair_message(self, message: Message, now_ns: int) -> None:
        if isinstance(message, Nak):
            self._on_pair_nak(message)
            return
        if not isinstance(message, (Prepared, Invalidated, Verdicts, Applied)):
            self._pair.nak(_unexpected(message))
            return
        round_ = self._round
        if round_ is None or round_.step.step != message.step:
            self._out.append(Count("pp1_pair_stale_total", (("kind", type(message).__name__),)))
            return
        leader = round_.leader
        if isinstance(message, Prepared):
            self._on_answer(round_, leader.on_prepared(message), now_ns)
        elif isinstance(message, Invalidated):
            self._on_answer(round_, leader.on_invalidated(message), now_ns)
        elif isinstance(message, Verdicts):
            leader.on_verdicts(message, round_.foreign)
            self._compose(round_, now_ns)
        elif leader.on_applied(message):
            self._apply(round_, now_ns)

    def _on_pair_nak(self, nak: Nak) -> None:
        code = known_code(nak.code, Code.RANK_SPLIT)
        self._note(_WARNING, "pair_nak", code=code.name, field=nak.field, got=nak.got)
        active = self._lanes.by_session(nak.session_id)
        if self._round is not None and nak.step == self._round.step.step:
            self._end_round(code)
        elif active is not None:
            if self._round is not None and active in self._round.actives:
                self._end_round(code)
            else:
                self._end(active, code)

    def _ask(self, message: Message, now_ns: int, limit_ns: int) -> None:
        """Put one question to rank 1; it is repeated until answered or too late."""
        round_ = self._round
        assert round_ is not None
        round_.question = self._pair.send(message)
        self._deadlines.set("pair", now_ns + limit_ns)
        self._deadlines.set("pair_retry", now_ns + self._timing.retry_ns)

    def _prepare(self, round_: _Round, now_ns: int) -> None:
        """Own findings are final: rank 1 is asked for its own."""
        self._deadlines.clear("step")
        self._deadlines.clear("step_retry")
        unsent = ProtocolError(Code.Q_MISSING, "rows", "whole proposals", "not all")
        round_.collector.fail(unsent)
        findings = [round_.collector.finding(i) for i in range(len(round_.actives))]
        self._ask(round_.leader.prepare(findings), now_ns, self._timing.pair_ns)

    def _on_answer(self, round_: _Round, question: Message | None, now_ns: int) -> None:
        if question is None:
            return  # a repeated answer
        if not isinstance(question, Decide):
            self._ask(question, now_ns, self._timing.pair_ns)
            return
        for index, status in enumerate(round_.leader.statuses):
            if status:
                code = known_code(status, Code.PREPARED_MISMATCH)
                round_.collector.discard(index, ProtocolError(code, "pair", "usable", "discarded"))
                self._count_discard(round_.step.entries[index], code)
                if code is Code.TOKEN_NOT_DRAWN:
                    self._worker.distrust(self.actives)
        self._ask(question, now_ns, self._timing.target_ns)
        job = build_verify(
            RANK,
            round_.step,
            round_.leader.uses,
            [active.request for active in round_.actives],
            round_.collector,
        )
        self._run(job, round_)

    def _count_discard(self, entry: StepEntry, code: Code) -> None:
        self._out.append(Count("pp1_generations_invalidated_total", (("reason", code.name),)))
        if entry.depth:
            self._out.append(Count("pp1_proposals_discarded_total", (("reason", code.name),)))
            self._note(_WARNING, "proposal_discarded", reason=code.name, round=entry.round)

    def _on_evaluated(self, round_: _Round, result: object, now_ns: int) -> None:
        release_used(round_.leader.uses, round_.collector)
        if round_ is not self._round:
            return  # the round ended while the engine was at it
        verdicts, troubles = verdict_entries(round_.step, round_.owned, result)
        for trouble in troubles:
            self._note(_WARNING, "target_failed", error=trouble)
        round_.leader.own_verdicts(verdicts)
        self._compose(round_, now_ns)

    def _compose(self, round_: _Round, now_ns: int) -> None:
        """With every verdict in, write the decision record and have rank 1 apply it."""
        verdicts = round_.leader.verdicts()
        if verdicts is None or round_.leader.phase is not Phase.EVALUATING:
            return
        entries = [
            self._compose_entry(round_, index, verdicts[index])
            for index in range(len(round_.actives))
        ]
        self._ask(round_.leader.decide_outcome(entries), now_ns, self._timing.pair_ns)

    def _compose_entry(self, round_: _Round, index: int, verdict: VerdictEntry) -> DecisionEntry:
        active, entry = round_.actives[index], round_.step.entries[index]
        used = round_.leader.uses[index]
        drafts = round_.collector.proposals[index].tokens if used else []
        if active.cancelled is not None:
            verdict = ending(entry, active.cancelled)
        else:
            request = active.request
            legal_size = self._identity.vocabulary.legal_size
            rules = TextRules(request.room, request.stop_tokens, legal_size)
            check_verdict(entry, drafts, rules, verdict)

        def prefix_after(_: int, tokens: Sequence[int]) -> tuple[int, bytes]:
            return active.ledger.length + len(tokens), active.ledger.digest_after(tokens)

        return compose_entry(
            index, entry, drafts, round_.leader.statuses[index], verdict, prefix_after
        )

    # --- the round: its end ---

    def _apply(self, round_: _Round, now_ns: int) -> None:
        """Rank 1 has applied the decision: commit here, show the tokens, tell the worker."""
        decision = round_.leader.decision
        assert decision is not None
        self._round_over()
        pairs = list(zip(round_.actives, decision.entries, strict=False))
        for active, entry in pairs:
            if entry.kind == DecisionKind.COMMIT:
                self._commit(active, entry)
        self._score(round_)
        alive = [
            (active, entry)
            for index, (active, entry) in enumerate(pairs)
            if entry.kind == DecisionKind.COMMIT and not round_.leader.statuses[index]
        ]
        self._worker.committed(alive)
        for index, (active, entry) in enumerate(pairs):
            if entry.kind == DecisionKind.END:
                self._end(active, known_code(entry.reason, Code.RANK_SPLIT))
                continue
            status = round_.leader.statuses[index]
            if status:
                self._new_generation(active, known_code(status, Code.PREPARED_MISMATCH))
            if entry.finish != Finish.NONE:
                self._clients.send(active.client, active.finished(entry.finish))
                self._release(active, None)
            else:
                self._worker.sync(active, status, now_ns)

    def _commit(self, active: Active, entry: DecisionEntry) -> None:
        packed = entry.tokens[: entry.token_count * 4]
        tokens = tuple(tokens_from_bytes(packed, "decision.tokens"))
        index = active.generated
        active.ledger.append(tokens)
        active.stats.add(entry)
        self._run(CommitTarget(active.request.session_id, tokens), None)
        self._clients.send(
            active.client,
            Tokens(
                key=active.params.key,
                index=index,
                tokens=packed,
                depth=entry.depth,
                accepted=entry.accepted,
                reason=entry.reason,
            ),
        )
        for name, value in (
            ("pp1_tokens_committed_total", len(tokens)),
            ("pp1_spec_decode_num_draft_tokens_total", entry.depth),
            ("pp1_spec_decode_num_accepted_tokens_total", entry.accepted),
            ("pp1_spec_decode_num_rejected_tokens_total", entry.rejected),
            ("pp1_spec_decode_num_unverified_tokens_total", entry.unverified),
        ):
            if value:
                self._out.append(Count(name, (), value))
        kind = "speculative" if entry.depth else "target_only"
        self._out.append(Count("pp1_request_rounds_total", (("kind", kind),)))

    def _score(self, round_: _Round) -> None:
        """Tell the breaker how the worker did, if it was asked at all."""
        if not round_.asked_worker:
            return
        asked = [i for i, entry in enumerate(round_.step.entries) if entry.depth]
        before = self._breaker.state
        if any(round_.leader.statuses[i] == 0 for i in asked):
            self._breaker.succeeded()
        else:
            self._breaker.failed()
        if self._breaker.state is not before:
            self._note(_WARNING, "breaker", state=self._breaker.state.name)
            self._out.append(
                Count("pp1_breaker_transitions_total", (("state", self._breaker.state.name),))
            )

    def _new_generation(self, active: Active, code: Code) -> None:
        """Both ranks have ended the generation; the next one has no past but the prefix."""
        active.ledger.begin(active.ledger.generation + 1)
        active.lose_worker(code, forget=self._worker.forgets(code))
        active.out_of_step = None

    def _round_over(self) -> None:
        """Leave the round: no question is open and every slot drains."""
        round_ = self._round
        if round_ is None:
            return
        self._round = None
        round_.collector.close()
        for name in ("step", "step_retry", "pair", "pair_retry"):
            self._deadlines.clear(name)

    def _end_round(self, code: Code) -> None:
        """The ranks cannot agree on this round: its requests end, nothing is committed."""
        round_ = self._round
        assert round_ is not None
        self._round_over()
        for active in round_.actives:
            self._end(active, code)

    # --- small helpers ---

    def _run(self, job: object, round_: _Round | None) -> None:
        self._job_id += 1
        self._jobs[self._job_id] = round_
        self._out.append(Run(self._job_id, job))

    def _note(self, level: int, event: str, **fields: object) -> None:
        self._out.append(Note(level, event, fields))


def _unexpected(message: Message) -> ProtocolError:
    return ProtocolError(
        Code.KIND_UNEXPECTED, "kind", "a message to rank 0", type(message).__name__
    )
