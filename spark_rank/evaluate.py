"""What both ranks do alike between Decide and Decision.

Building the evaluation of a step from the requests and their proposals, and
turning outcomes of the engine runner into verdict entries.
"""

from collections.abc import Sequence

from proto_v2.errors import Code
from proto_v2.messages import Step, StepEntry, VerdictEntry, tokens_to_bytes
from proto_v2.rng import Owner

from .collector import Collector
from .jobs import Outcome, Verify, VerifyTask
from .pair import ending
from .request import Request


def build_verify(
    rank: int,
    step: Step,
    uses: Sequence[bool],
    requests: Sequence[Request],
    collector: Collector,
) -> Verify:
    """The evaluation job of one step; used proposals are held until ``release_used``."""
    tasks = []
    for index, (entry, used, request) in enumerate(zip(step.entries, uses, requests, strict=True)):
        drafts, rows = collector.hold(index) if used else ((), ())
        tasks.append(
            VerifyTask(
                index=index,
                session_id=entry.session_id,
                position=entry.position,
                round=entry.round,
                drafts=drafts,
                rows=rows,
                tickets=request.tickets(Owner.VERIFIER),
                stop_tokens=request.stop_tokens,
                room=request.room,
                owned=request.owner == rank,
            )
        )
    return Verify(tuple(tasks))


def release_used(uses: Sequence[bool], collector: Collector) -> None:
    """The evaluation has ended: the sampler lets go of the slots."""
    for index, used in enumerate(uses):
        if used:
            collector.release(index)


def verdict_entries(
    step: Step, owned: Sequence[int], result: object
) -> tuple[dict[int, VerdictEntry], list[str]]:
    """Verdict entries by index, and what went wrong.

    One for each owned request, and one that ends it for any other whose engine
    session failed here: that rank could not go on with it.
    """
    troubles: list[str] = []
    verdicts: dict[int, VerdictEntry] = {}
    if isinstance(result, Exception):
        troubles.append(f"{type(result).__name__}: {result}")
        failed = {i: ending(entry, Code.TARGET_FAILED) for i, entry in enumerate(step.entries)}
        return failed, troubles
    assert isinstance(result, tuple)
    for outcome in result:
        assert isinstance(outcome, Outcome)
        entry = step.entries[outcome.index]
        if isinstance(outcome.verdict, Code):
            troubles.append(outcome.detail)
            verdicts[outcome.index] = ending(entry, outcome.verdict)
        else:
            verdicts[outcome.index] = _verdict_entry(entry, outcome)
    assert verdicts.keys() >= set(owned), "an outcome for each owned request"
    return verdicts, troubles


def _verdict_entry(entry: StepEntry, outcome: Outcome) -> VerdictEntry:
    verdict = outcome.verdict
    assert not isinstance(verdict, Code)
    return VerdictEntry(
        session_id=entry.session_id,
        generation=entry.generation,
        round=entry.round,
        status=0,
        accepted=verdict.accepted,
        rejected=verdict.rejected,
        unverified=verdict.unverified,
        last=int(verdict.last),
        finish=int(verdict.finish),
        tokens=tokens_to_bytes(verdict.tokens),
    )
