"""The agreement of the two ranks on one step: both commit the same, or neither.

    rank 0                                   rank 1
    COLLECTING                               COLLECTING
      | own findings      -- Prepare -->       | own findings
    PREPARING             <-- Prepared --    PREPARED
      | any discard?      -- Invalidate -->    |
    INVALIDATING          <-- Invalidated -- INVALIDATED
      |                   -- Decide -->        |
    EVALUATING            <-- Verdicts --    EVALUATING
      | compose           -- Decision -->      | check, apply
    APPLYING              <-- Applied --     APPLIED
      | apply
    DONE

Rank 1 applies first; rank 0 applies, shows tokens and tells the worker only
after ``Applied``. So no token is ever visible that only one rank committed.
After PREPARED rank 1 has no timer of its own, and after Decide rank 0 only
retransmits. Every message after COLLECTING is answered again, with the same
content, when it is repeated. One decision record of fixed shape serves every
kind of step. (Seed 000, "No partial commit on one rank and fallback on the
other"; specs/06.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from proto_v2 import limits
from proto_v2.binding import decision_digest
from proto_v2.errors import Code, ProtocolError, known_code
from proto_v2.messages import (
    Applied,
    Decide,
    Decision,
    DecisionEntry,
    DecisionKind,
    Invalidate,
    Invalidated,
    Invalidation,
    Message,
    Prepare,
    Prepared,
    PrepareEntry,
    Step,
    StepEntry,
    VerdictEntry,
    Verdicts,
    tokens_from_bytes,
    tokens_to_bytes,
)

from .verify import Finish, LastToken

# (position, digest) of a request's prefix after these tokens.
PrefixAfter = Callable[[int, Sequence[int]], tuple[int, bytes]]

EMPTY_ENTRY: Final = DecisionEntry(
    kind=int(DecisionKind.EMPTY),
    session_id=bytes(limits.ID_BYTES),
    generation=0,
    round=0,
    reason=0,
    depth=0,
    accepted=0,
    rejected=0,
    unverified=0,
    last=0,
    finish=0,
    token_count=0,
    tokens=bytes((limits.DEPTH_MAX + 1) * 4),
    position=0,
    digest=bytes(limits.DIGEST_BYTES),
)


class Phase(Enum):
    """Where one rank is with one step."""

    COLLECTING = auto()
    PREPARING = auto()  # rank 0 waits for Prepared; rank 1 has answered it
    INVALIDATING = auto()
    EVALUATING = auto()
    APPLYING = auto()  # rank 0 waits for Applied; rank 1 has verdicts out
    DONE = auto()


def _same_place(entry: StepEntry, other: PrepareEntry | VerdictEntry) -> bool:
    return (entry.session_id, entry.generation, entry.round) == (
        other.session_id,
        other.generation,
        other.round,
    )


@dataclass(frozen=True, slots=True)
class TextRules:
    """What bounds a request's text: tokens left, tokens that end it, ids it may hold."""

    room: int
    stop_tokens: frozenset[int]
    legal_size: int

    def finish_after(self, tokens: Sequence[int]) -> Finish:
        """How the request stands after these tokens, judged by the last one."""
        if tokens[-1] in self.stop_tokens:
            return Finish.STOP
        return Finish.LENGTH if len(tokens) == self.room else Finish.NONE


def check_verdict(
    entry: StepEntry, drafts: Sequence[int], rules: TextRules, v: VerdictEntry
) -> None:
    """Refuse a verdict that no run of the verifier on this proposal could give.

    Raises:
        ProtocolError: RANK_SPLIT, naming the field.
    """

    def refuse(field: str, wanted: object, got: object) -> ProtocolError:
        return ProtocolError(Code.RANK_SPLIT, f"verdict.{field}", wanted, got)

    if not _same_place(entry, v):
        raise refuse("session_id", entry.session_id.hex(), v.session_id.hex())
    if v.status:
        if v != ending(entry, known_code(v.status, Code.RANK_SPLIT)):
            raise refuse("status", "a registered code and nothing committed", v.status)
        return
    if v.accepted + v.rejected + v.unverified != len(drafts):
        raise refuse("unverified", f"a total of {len(drafts)}", v.unverified)
    if v.last not in tuple(LastToken):
        raise refuse("last", "a registered place", v.last)
    if len(v.tokens) % 4:
        raise refuse("tokens", "whole tokens", f"{len(v.tokens)} bytes")
    tokens = tokens_from_bytes(v.tokens, "verdict.tokens")
    has_last = v.last != LastToken.NONE
    if len(tokens) != v.accepted + has_last or not 1 <= len(tokens) <= rules.room:
        raise refuse("tokens", f"{v.accepted + has_last} within {rules.room}", len(tokens))
    if not all(0 <= token < rules.legal_size for token in tokens):
        raise refuse("tokens", f"ids below {rules.legal_size}", tokens)
    if tokens[: v.accepted] != list(drafts[: v.accepted]):
        raise refuse("tokens", list(drafts[: v.accepted]), tokens)
    if v.rejected != (v.last == LastToken.CORRECTION):
        raise refuse("rejected", int(v.last == LastToken.CORRECTION), v.rejected)
    if (v.last == LastToken.TARGET_ONLY) != (len(drafts) == 0):
        raise refuse("last", "TARGET_ONLY without drafts only", v.last)
    if v.last == LastToken.BONUS and v.accepted != len(drafts):
        raise refuse("last", "BONUS after the whole chain only", v.accepted)
    if not rules.stop_tokens.isdisjoint(tokens[:-1]):
        raise refuse("tokens", "nothing after a stop", tokens)
    finish = rules.finish_after(tokens)
    if v.finish != finish:
        raise refuse("finish", finish.name, v.finish)
    if not has_last and finish is Finish.NONE:
        raise refuse("last", "a token of the target's own unless the request ends", v.last)


def compose_entry(
    index: int,
    entry: StepEntry,
    drafts: Sequence[int],
    status: int,
    verdict: VerdictEntry,
    prefix_after: PrefixAfter,
) -> DecisionEntry:
    """The decision entry of one request from its owner's verdict."""
    tokens = tokens_from_bytes(verdict.tokens, "verdict.tokens")
    ends = verdict.status != 0
    position, digest = prefix_after(index, () if ends else tokens)
    packed = b"" if ends else verdict.tokens
    return DecisionEntry(
        kind=int(DecisionKind.END if ends else DecisionKind.COMMIT),
        session_id=entry.session_id,
        generation=entry.generation,
        round=entry.round,
        reason=verdict.status or status,
        depth=len(drafts),
        accepted=0 if ends else verdict.accepted,
        rejected=0 if ends else verdict.rejected,
        unverified=len(drafts) if ends else verdict.unverified,
        last=0 if ends else verdict.last,
        finish=0 if ends else verdict.finish,
        token_count=len(packed) // 4,
        tokens=packed.ljust((limits.DEPTH_MAX + 1) * 4, b"\0"),
        position=position,
        digest=digest,
    )


def ending(entry: StepEntry, code: Code) -> VerdictEntry:
    """The verdict that ends a request instead of committing anything."""
    return VerdictEntry(
        session_id=entry.session_id,
        generation=entry.generation,
        round=entry.round,
        status=int(code),
        accepted=0,
        rejected=0,
        unverified=0,
        last=0,
        finish=0,
        tokens=tokens_to_bytes(()),
    )


def recompose(
    index: int,
    entry: StepEntry,
    drafts: Sequence[int],
    status: int,
    rules: TextRules,
    got: DecisionEntry,
    own: VerdictEntry | None,
    prefix_after: PrefixAfter,
) -> DecisionEntry:
    """The entry that rank 1 itself would write where rank 0 wrote ``got``.

    For a request that this rank owns (``own``) the verdict is its own. For
    the other rank's, the verdict is read off ``got``, which must be one that
    these drafts allow; position and digest are always computed here.

    Raises:
        ProtocolError: RANK_SPLIT or a token code.
    """
    if got.kind == DecisionKind.END:
        verdict = ending(entry, known_code(got.reason, Code.RANK_SPLIT))
    elif own is not None:
        verdict = own
    else:
        verdict = VerdictEntry(
            session_id=got.session_id,
            generation=got.generation,
            round=got.round,
            status=0,
            accepted=got.accepted,
            rejected=got.rejected,
            unverified=got.unverified,
            last=got.last,
            finish=got.finish,
            tokens=got.tokens[: got.token_count * 4],
        )
        check_verdict(entry, drafts, rules, verdict)
    return compose_entry(index, entry, drafts, status, verdict, prefix_after)


class PairLeader:
    """Rank 0's side of one step. Returns what to send to rank 1, if anything."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.phase = Phase.COLLECTING
        self.statuses = [0] * len(step.entries)
        self.decision: Decision | None = None
        self._prepare: Prepare | None = None
        self._invalidate: Invalidate | None = None
        self._mine: dict[int, VerdictEntry] | None = None
        self._theirs: dict[int, VerdictEntry] | None = None

    @property
    def uses(self) -> tuple[bool, ...]:
        """Which requests' proposals are evaluated."""
        return tuple(
            entry.depth > 0 and status == 0
            for entry, status in zip(self.step.entries, self.statuses, strict=True)
        )

    def prepare(self, findings: Sequence[PrepareEntry]) -> Prepare:
        """Own findings are in: ask rank 1 for its own."""
        assert self.phase is Phase.COLLECTING
        self.phase = Phase.PREPARING
        self._prepare = Prepare(self.step.step, tuple(findings))
        return self._prepare

    def on_prepared(self, message: Prepared) -> Message | None:
        """Merge both findings; Invalidate if anything is discarded, else Decide."""
        if self.phase is not Phase.PREPARING:
            return None
        assert self._prepare is not None
        if len(message.entries) != len(self._prepare.entries):
            raise ProtocolError(
                Code.RANK_SPLIT, "prepared", len(self._prepare.entries), len(message.entries)
            )
        for index, (mine, theirs) in enumerate(
            zip(self._prepare.entries, message.entries, strict=True)
        ):
            if not _same_place(self.step.entries[index], theirs):
                raise ProtocolError(
                    Code.RANK_SPLIT, "prepared", mine.session_id.hex(), theirs.session_id.hex()
                )
            status = mine.status or theirs.status
            if status == 0 and mine.digest != theirs.digest:
                status = int(Code.PREPARED_MISMATCH)
            self.statuses[index] = status
        doomed = tuple(
            Invalidation(entry.session_id, entry.generation, status)
            for entry, status in zip(self.step.entries, self.statuses, strict=True)
            if status
        )
        if doomed:
            self.phase = Phase.INVALIDATING
            self._invalidate = Invalidate(self.step.step, doomed)
            return self._invalidate
        return self._decide()

    def on_invalidated(self, message: Invalidated) -> Message | None:
        """Both ranks have ended the same generations: evaluate."""
        if self.phase is not Phase.INVALIDATING:
            return None
        assert self._invalidate is not None
        if message.entries != self._invalidate.entries:
            raise ProtocolError(
                Code.RANK_SPLIT, "invalidated", "the generations asked for", "others"
            )
        return self._decide()

    def _decide(self) -> Decide:
        self.phase = Phase.EVALUATING
        return Decide(self.step.step, self.uses)

    def own_verdicts(self, verdicts: dict[int, VerdictEntry]) -> None:
        """Verdicts on the requests that rank 0 owns, and ends of others that failed on it."""
        assert self.phase is Phase.EVALUATING and self._mine is None
        self._mine = verdicts

    def on_verdicts(self, message: Verdicts, expected: Sequence[int]) -> None:
        """Verdicts on the requests that rank 1 owns, and ends of others that failed on it."""
        if self.phase is not Phase.EVALUATING or self._theirs is not None:
            return
        found: dict[int, VerdictEntry] = {}
        for verdict in message.entries:
            place = [i for i, entry in enumerate(self.step.entries) if _same_place(entry, verdict)]
            if not place or place[0] in found or not (place[0] in expected or verdict.status):
                raise ProtocolError(
                    Code.RANK_SPLIT, "verdicts", "its own requests, once", verdict.session_id.hex()
                )
            found[place[0]] = verdict
        if not found.keys() >= set(expected):
            raise ProtocolError(Code.RANK_SPLIT, "verdicts", list(expected), sorted(found))
        self._theirs = found

    def verdicts(self) -> dict[int, VerdictEntry] | None:
        """All verdicts by entry index, or None while some are missing.

        An end on either rank is the verdict: the other could not go on alone.
        """
        if self._mine is None or self._theirs is None:
            return None
        ends = {index: verdict for index, verdict in self._mine.items() if verdict.status}
        return {**self._mine, **self._theirs, **ends}

    def decide_outcome(self, entries: Sequence[DecisionEntry]) -> Decision:
        """Every verdict is in: the decision record."""
        assert self.phase is Phase.EVALUATING
        self.phase = Phase.APPLYING
        padding = (EMPTY_ENTRY,) * (limits.REQUESTS_MAX - len(entries))
        self.decision = Decision(self.step.step, (*entries, *padding))
        return self.decision

    def on_applied(self, message: Applied) -> bool:
        """Whether rank 1 has now applied exactly this decision."""
        if self.phase is not Phase.APPLYING:
            return False
        assert self.decision is not None
        digest = decision_digest(self.decision)
        if message.digest != digest:
            raise ProtocolError(
                Code.RANK_SPLIT, "applied.digest", digest.hex(), message.digest.hex()
            )
        self.phase = Phase.DONE
        return True


class PairFollower:
    """Rank 1's side of one step. Keeps each answer, for repeats of its question."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.phase = Phase.COLLECTING
        self.discards: dict[int, int] = {}
        self.uses: tuple[bool, ...] = ()
        self._answers: dict[type[Message], tuple[Message, Message]] = {}

    def repeated(self, message: Message) -> Message | None:
        """The earlier answer to exactly this message.

        Raises:
            ProtocolError: DECISION_MISMATCH when the same question comes with
                another content.
        """
        known = self._answers.get(type(message))
        if known is None:
            return None
        if known[0] != message:
            raise ProtocolError(
                Code.DECISION_MISMATCH, type(message).__name__, "the content as first sent", "other"
            )
        return known[1]

    def _move(self, message: Message, wanted: tuple[Phase, ...], to: Phase) -> None:
        if self.phase not in wanted:
            names = " or ".join(phase.name for phase in wanted)
            raise ProtocolError(Code.STEP_STALE, type(message).__name__, names, self.phase.name)
        self.phase = to

    def _answer(self, message: Message, answer: Message) -> None:
        self._answers[type(message)] = (message, answer)

    def on_prepare(self, message: Prepare, findings: Sequence[PrepareEntry]) -> Prepared:
        """Answer with this rank's own findings."""
        self._move(message, (Phase.COLLECTING,), Phase.PREPARING)
        answer = Prepared(self.step.step, tuple(findings))
        self._answer(message, answer)
        return answer

    def on_invalidate(self, message: Invalidate) -> Invalidated:
        """End those generations here too."""
        self._move(message, (Phase.PREPARING,), Phase.INVALIDATING)
        places = {
            (entry.session_id, entry.generation): index
            for index, entry in enumerate(self.step.entries)
        }
        for entry in message.entries:
            index = places.get((entry.session_id, entry.generation))
            if index is None:
                raise ProtocolError(
                    Code.DECISION_MISMATCH, "invalidate", "a session of the step",
                    entry.session_id.hex(),
                )  # fmt: skip
            self.discards[index] = entry.reason
        answer = Invalidated(self.step.step, message.entries)
        self._answer(message, answer)
        return answer

    def on_decide(self, message: Decide, own_findings: Sequence[PrepareEntry]) -> None:
        """Rank 0 decided which proposals are used; none that this rank found faulty."""
        self._move(message, (Phase.PREPARING, Phase.INVALIDATING), Phase.EVALUATING)
        uses = tuple(
            entry.depth > 0 and index not in self.discards and own_findings[index].status == 0
            for index, entry in enumerate(self.step.entries)
        )
        if message.uses != uses:
            raise ProtocolError(Code.DECISION_MISMATCH, "decide.uses", uses, message.uses)
        self.uses = uses

    def on_evaluated(self, decide: Decide, verdicts: Sequence[VerdictEntry]) -> Verdicts:
        """The verdicts of the requests that this rank owns, and ends of others that failed."""
        assert self.phase is Phase.EVALUATING
        self.phase = Phase.APPLYING
        answer = Verdicts(self.step.step, tuple(verdicts))
        self._answer(decide, answer)
        return answer

    def on_decision(self, message: Decision, expected: Sequence[DecisionEntry]) -> Applied:
        """Check the record against ``expected`` (``recompose``), then acknowledge it.

        Raises:
            ProtocolError: DECISION_MISMATCH; nothing of the record may be applied.
        """
        self._move(message, (Phase.APPLYING,), Phase.DONE)
        padding = (EMPTY_ENTRY,) * (limits.REQUESTS_MAX - len(expected))
        for index, (got, wanted) in enumerate(
            zip(message.entries, (*expected, *padding), strict=True)
        ):
            if got != wanted:
                raise ProtocolError(
                    Code.DECISION_MISMATCH, f"decision.entries[{index}]", wanted, got
                )
        answer = Applied(self.step.step, decision_digest(message))
        self._answer(message, answer)
        return answer
