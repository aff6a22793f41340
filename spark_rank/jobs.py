"""The slow work of a rank, as values, and the runner that carries it out.

All jobs of a rank run in order on one engine thread. ``EngineRunner`` is the
only code that touches the engine; it keeps a session that failed apart, so
that one request's failure does not reach the others' evaluation.
"""

from collections.abc import Callable
from dataclasses import dataclass

from proto_v2 import limits
from proto_v2.dyadic import Categorical
from proto_v2.errors import Code, ProtocolError
from proto_v2.rng import TicketSource

from .engine import TargetEngine, VerifyItem
from .verify import Verdict, verify_chain


@dataclass(frozen=True, slots=True)
class OpenTarget:
    """Hold this prefix under this target temperature (0.0 is greedy)."""

    session_id: bytes
    prefix: tuple[int, ...]
    temperature: float


@dataclass(frozen=True, slots=True)
class CommitTarget:
    """Both ranks committed these tokens."""

    session_id: bytes
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseTarget:
    """Forget the session."""

    session_id: bytes


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """One request of an evaluation. Without drafts it is a target-only round."""

    index: int
    session_id: bytes
    position: int
    round: int
    drafts: tuple[int, ...]
    rows: tuple[Categorical, ...]
    tickets: TicketSource
    stop_tokens: frozenset[int]
    room: int
    owned: bool


@dataclass(frozen=True, slots=True)
class Verify:
    """Evaluate one step: every request, so that ranks that compute together can."""

    tasks: tuple[VerifyTask, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rank found for one request: a verdict, or the code that ends it.

    Only the owner gives a verdict; a rank whose engine session failed gives the
    code for any request, since its engine takes part in every evaluation.
    """

    index: int
    verdict: Verdict | Code
    detail: str = ""


class EngineRunner:
    """Carries out jobs on one target engine."""

    def __init__(self, engine: TargetEngine, target_bits: int = limits.TARGET_BITS) -> None:
        self._engine = engine
        self._target_bits = target_bits
        self._legal_size = engine.identity().vocabulary.legal_size
        self._failed: set[bytes] = set()

    def run(self, job: object) -> tuple[Outcome, ...]:
        """Carry out one job. Raises whatever the engine raises for open and commit."""
        if isinstance(job, Verify):
            return self._verify(job)
        if isinstance(job, OpenTarget):
            self._guarded(job.session_id, lambda: self._open(job))
        elif isinstance(job, CommitTarget):
            if job.session_id not in self._failed:
                self._guarded(
                    job.session_id, lambda: self._engine.commit(job.session_id, job.tokens)
                )
        elif isinstance(job, CloseTarget):
            self._failed.discard(job.session_id)
            self._engine.close(job.session_id)
        else:
            raise TypeError(f"not a target job: {type(job).__name__}")
        return ()

    def _open(self, job: OpenTarget) -> None:
        self._engine.open(job.session_id, job.prefix, job.temperature)

    def _guarded(self, session_id: bytes, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self._failed.add(session_id)
            raise

    def _verify(self, job: Verify) -> tuple[Outcome, ...]:
        tasks = [task for task in job.tasks if task.session_id not in self._failed]
        outcomes = [
            Outcome(task.index, Code.TARGET_FAILED, "the session failed earlier")
            for task in job.tasks
            if task.session_id in self._failed
        ]
        items = [VerifyItem(task.session_id, task.drafts, task.owned) for task in tasks]
        try:
            logits = self._engine.verify(items) if items else []
        except Exception as error:  # an engine may raise anything; the sessions are poisoned
            self._failed.update(task.session_id for task in tasks)
            detail = f"{type(error).__name__}: {error}"
            return (*outcomes, *(Outcome(t.index, Code.TARGET_FAILED, detail) for t in tasks))
        for task, rows in zip(tasks, logits, strict=True):
            if task.owned:
                outcomes.append(self._judge(task, rows))
        return tuple(outcomes)

    def _judge(self, task: VerifyTask, logits: object) -> Outcome:
        try:
            verdict = verify_chain(
                position=task.position,
                round_=task.round,
                drafts=task.drafts,
                rows=task.rows,
                logits=logits,  # type: ignore[arg-type]
                tickets=task.tickets,
                stop_tokens=task.stop_tokens,
                room=task.room,
                legal_size=self._legal_size,
                target_bits=self._target_bits,
            )
        except ProtocolError as error:
            self._failed.add(task.session_id)
            return Outcome(task.index, error.code, str(error))
        return Outcome(task.index, verdict)
