"""What the next round asks for, fixed from what is known before anything is drawn.

Pure: committed history, agreed terms, the breaker and where the worker stands
go in, a step entry and the reason for having no drafts come out. Nothing here
can see a drawn token, so no depth depends on one. (Seed 000, "Depth admission
must not inspect its own future draws".)
"""

from dataclasses import dataclass

from msgspec.structs import replace

from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import StepEntry
from proto_v2.negotiate import Terms
from proto_v2.validate import STEP_ENTRY_RULES

from .active import Active, WorkerSide


@dataclass(frozen=True, slots=True)
class Conditions:
    """What holds for every request of a round.

    ``worker`` is None without a usable worker, and ``unusable`` says why.
    ``batch_fits``: the worker takes as many requests as this step names.
    """

    pair: Terms
    worker: Terms | None
    unusable: Code | None
    breaker_allows: bool
    batch_fits: bool


def plan(active: Active, now: Conditions) -> tuple[StepEntry, Code | None]:
    """The step entry of one request, and why it has no drafts although it wants some.

    Without drafts the proposal's parameters mean nothing, so they are ones that
    every peer takes: what one client asks for never spoils the batch of others.
    """
    request, params, ledger = active.request, active.params, active.ledger
    wish = StepEntry(
        session_id=request.session_id,
        slot=request.slot,
        generation=ledger.generation,
        round=ledger.round + 1,
        position=ledger.length,
        digest=ledger.digest,
        depth=_depth(active, now),
        temperature=params.draft_temperature,
        representation=params.representation,
        support=params.support,
        context=request.context,
    )
    reason = _no_draft(active, wish, now) if params.depth else None
    if wish.depth and reason is None:
        return wish, None
    return replace(wish, depth=0, representation=_common_representation(now), support=1), reason


def _depth(active: Active, now: Conditions) -> int:
    if now.worker is None:
        return 0
    # The last token of a request comes from the target, so no draft is for it.
    room = active.request.room - 1
    return max(0, min(active.params.depth, now.worker.depth_max, now.pair.depth_max, room))


def _no_draft(active: Active, wish: StepEntry, now: Conditions) -> Code | None:
    if now.worker is None:
        return now.unusable or Code.WORKER_DOWN
    if not now.batch_fits:
        return Code.BATCH_RANGE
    if active.worker is not WorkerSide.READY:
        return Code.RESET_PENDING
    if not now.breaker_allows:
        return Code.BREAKER_OPEN
    try:
        for terms in (now.worker, now.pair):
            for rule in STEP_ENTRY_RULES:
                rule(terms, wish)
    except ProtocolError as error:
        return error.code
    return None


def _common_representation(now: Conditions) -> int:
    """One that both peers take; any of rank 1's where no worker will be asked."""
    known = now.pair.representations
    common = [one for one in known if now.worker and one in now.worker.representations]
    return (common or known)[0]
