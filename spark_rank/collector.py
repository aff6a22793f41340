"""From rows and a completion to proposals that may be evaluated, or a reason why not.

Both ranks run this same code on the same bytes, rank 1 without trusting what
rank 0 found. A row's bytes are copied into the request's staging slot, checked
against their binding and decoded; the slot becomes READY only when the whole
chain and its completion are in. One fault discards the whole chain of that
request; the first fault is the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from proto_v2 import limits
from proto_v2.binding import proposal_digest
from proto_v2.dyadic import Categorical
from proto_v2.effects import Buffer
from proto_v2.errors import Code, ProtocolError, known_code
from proto_v2.messages import Completion, CompletionEntry, PrepareEntry, Row, Rows, Step, StepEntry
from proto_v2.negotiate import Terms
from proto_v2.rng import Domain, TicketSource
from proto_v2.slots import Lease, SlotTable
from proto_v2.validate import check_completion, check_draw, check_row, read_row, split_payload

# Gives the writable memory of a staging slot.
SlotMemory = Callable[[int], memoryview]


@dataclass(slots=True)
class Proposal:
    """What has come in for one step entry."""

    entry: StepEntry
    lease: Lease | None = None
    tokens: list[int] = field(default_factory=list)
    rows: list[Categorical] = field(default_factory=list)
    checksums: list[int] = field(default_factory=list)
    reply_bytes: int = 0
    fault: ProtocolError | None = None
    complete: bool = False

    @property
    def settled(self) -> bool:
        """Whether nothing more is waited for."""
        return self.complete or self.fault is not None or self.entry.depth == 0

    @property
    def status(self) -> int:
        """0, or the code of the fault."""
        return 0 if self.fault is None else int(self.fault.code)


class Collector:
    """The proposals of one step on one rank.

    ``draws`` are the worker's tickets of each entry's session and generation.
    """

    def __init__(
        self,
        terms: Terms,
        step: Step,
        draws: Sequence[TicketSource],
        slots: SlotTable,
        memory: SlotMemory,
        mass_bits: int = limits.MASS_BITS,
    ) -> None:
        self.step = step
        self.proposals = [Proposal(entry) for entry in step.entries]
        self._terms = terms
        self._draws = draws
        self._slots = slots
        self._memory = memory
        self._mass_bits = mass_bits
        self._closed = False
        bank = step.step % limits.BATCHES_IN_FLIGHT
        for proposal in self.proposals:
            entry = proposal.entry
            if entry.depth == 0:
                continue
            try:
                proposal.lease = slots.acquire(
                    bank * terms.requests_max + entry.slot,
                    entry.session_id,
                    entry.generation,
                    entry.round,
                )
            except ProtocolError as error:
                proposal.fault = error

    @property
    def settled(self) -> bool:
        """Whether every proposal of the step is complete or at fault."""
        return all(proposal.settled for proposal in self.proposals)

    def on_rows(self, message: Rows, payload: Buffer) -> None:
        """Take rows; a fault is recorded on the proposal that it concerns."""
        try:
            parts = split_payload(self.step, message, payload)
        except ProtocolError as error:
            self.fail(error)
            return
        for row, part in zip(message.rows, parts, strict=True):
            proposal = self.proposals[row.entry]
            if proposal.fault is None and not proposal.complete:
                try:
                    self._take(proposal, row, part)
                except ProtocolError as error:
                    proposal.fault = error

    def _take(self, proposal: Proposal, row: Row, payload: Buffer) -> None:
        entry, index = proposal.entry, len(proposal.tokens)
        earlier = row.position - entry.position
        if 0 <= earlier < index:
            if row.checksum == proposal.checksums[earlier]:
                return  # the same row again
            raise ProtocolError(
                Code.ROW_DUPLICATE, f"rows[{earlier}]", "the bytes as first sent", "others"
            )
        check_row(self._terms, entry, index, row)
        lease = proposal.lease
        assert lease is not None, "a row within its depth has a slot"
        self._slots.check_writable(lease)
        start = proposal.reply_bytes
        staged = self._memory(lease.slot)[start : start + row.byte_length]
        staged[:] = payload
        categorical = read_row(
            self._terms, entry, index, proposal.tokens, row, staged, self._mass_bits
        )
        ticket = self._draws[row.entry].ticket(
            self._mass_bits, Domain.PROPOSAL, row.position, entry.round
        )
        check_draw(entry, index, row.token, categorical, ticket)
        proposal.tokens.append(row.token)
        proposal.rows.append(categorical)
        proposal.checksums.append(row.checksum)
        proposal.reply_bytes += row.byte_length

    def on_completion(self, message: Completion) -> None:
        """Take the completion; whole chains become ready, everything else is at fault.

        An entry of depth 0 asked for nothing, so nothing can be wrong with its proposal.
        The worker need not even know the session; where it should, rank 0 acts on that.
        """
        if len(message.entries) != len(self.proposals):
            self.fail(
                ProtocolError(
                    Code.ROW_COUNT,
                    "completion.entries",
                    len(self.proposals),
                    len(message.entries),
                )
            )
            return
        for proposal, completion in zip(self.proposals, message.entries, strict=True):
            if not proposal.settled:
                try:
                    self._complete(proposal, completion)
                except ProtocolError as error:
                    proposal.fault = error

    def _complete(self, proposal: Proposal, completion: CompletionEntry) -> None:
        check_completion(proposal.entry, completion, proposal.checksums, proposal.reply_bytes)
        if completion.status:
            code = known_code(completion.status, Code.COMPLETION_STATUS)
            raise ProtocolError(code, "completion.status", 0, completion.status)
        assert proposal.lease is not None, "a proposal without a slot is at fault"
        self._slots.publish(proposal.lease)
        proposal.complete = True

    def fail(self, error: ProtocolError) -> None:
        """Nothing more is waited for: whatever is not complete is at fault."""
        for proposal in self.proposals:
            if not proposal.settled:
                proposal.fault = error

    def discard(self, index: int, error: ProtocolError) -> None:
        """Discard one proposal, whatever its state; the first fault stays the reason."""
        proposal = self.proposals[index]
        if proposal.fault is None:
            proposal.fault = error

    def finding(self, index: int) -> PrepareEntry:
        """What this rank found: the status and the digest of what it holds."""
        proposal = self.proposals[index]
        entry = proposal.entry
        usable = proposal.fault is None
        return PrepareEntry(
            session_id=entry.session_id,
            generation=entry.generation,
            round=entry.round,
            status=proposal.status,
            digest=proposal_digest(
                entry,
                proposal.tokens if usable else (),
                proposal.checksums if usable else (),
            ),
        )

    def hold(self, index: int) -> tuple[tuple[int, ...], tuple[Categorical, ...]]:
        """Tokens and rows of a ready proposal, held until ``release``."""
        proposal = self.proposals[index]
        assert proposal.fault is None and proposal.complete, "only a whole proposal is evaluated"
        assert proposal.lease is not None
        self._slots.hold(proposal.lease)
        return tuple(proposal.tokens), tuple(proposal.rows)

    def release(self, index: int) -> None:
        """The evaluation of a held proposal has ended."""
        lease = self.proposals[index].lease
        assert lease is not None
        self._slots.release(lease)

    def close(self) -> None:
        """The step is over: every slot is free, now or when its consumer lets go."""
        if self._closed:
            return
        self._closed = True
        for proposal in self.proposals:
            proposal.rows.clear()  # no q outlives its round, also where the step itself is kept
            if proposal.lease is not None:
                self._slots.retire(proposal.lease)
