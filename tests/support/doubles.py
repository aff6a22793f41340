"""Engine doubles for machine tests: scripted laws, recorded calls, planted failures.

``ScriptedLaw`` gives weights as functions of the whole context, so that a test
can write stops, grammars and penalties down as they are. The doubles are the
Markov engines over such a law; they record what they were asked, and raise or
answer wrongly where a test tells them to.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pp1.models.markov import MarkovLaw
from proto_v2.representation import Representation
from spark_rank.engine import VerifyItem
from spark_rank.engines.markov import MarkovTarget
from tests.support.trio import Trio
from worker.engines.markov import MarkovDraft

V = 16
Weights = Callable[[Sequence[int]], Sequence[float]]


class ScriptedLaw(MarkovLaw):
    """Weights of target and draft by context; None keeps the Markov law's."""

    def __init__(
        self,
        target: Weights | None = None,
        draft: Weights | None = None,
        vocabulary_size: int = V,
        seed: int = 0,
    ) -> None:
        super().__init__(vocabulary_size, seed)
        self._script_target = target
        self._script_draft = draft

    def target_logits(self, context: Sequence[int]) -> NDArray[np.float32]:
        if self._script_target is None:
            return super().target_logits(context)
        weights = np.asarray(self._script_target(context), dtype=np.float64)
        with np.errstate(divide="ignore"):
            logits: NDArray[np.float32] = np.log(weights).astype(np.float32)
        return logits

    def draft_weights(self, context: Sequence[int]) -> NDArray[np.float64]:
        if self._script_draft is None:
            return super().draft_weights(context)
        weights = np.asarray(self._script_draft(context), dtype=np.float64)
        normalised: NDArray[np.float64] = weights / weights.sum()
        return normalised


def only(token: int, size: int = V) -> list[float]:
    """Weights that allow one token."""
    return [float(index == token) for index in range(size)]


def script(tokens: Sequence[int], prompt: int, then: int = 0) -> Weights:
    """Certain of ``tokens`` one after the other from the end of the prompt, then of ``then``."""

    def weights(context: Sequence[int]) -> Sequence[float]:
        place = len(context) - prompt
        return only(tokens[place] if place < len(tokens) else then)

    return weights


class Draft(MarkovDraft):
    """Records the context of every position that was drawn.

    ``fails(context)`` is asked before each position and may raise.
    """

    def __init__(self, law: MarkovLaw | None = None) -> None:
        super().__init__(V)
        self.law = law or ScriptedLaw()
        self.contexts: list[tuple[int, ...]] = []
        self.calls: list[tuple[str, bytes]] = []
        self.fails: Callable[[Sequence[int]], None] = lambda context: None

    def open(self, session: bytes, prefix: Sequence[int]) -> None:
        self.calls.append(("open", session))
        super().open(session, prefix)

    def close(self, session: bytes) -> None:
        self.calls.append(("close", session))
        super().close(session)

    def next_weights(
        self, session: bytes, chain: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        context = self._sessions.get(session).with_chain(chain)
        self.fails(context)
        self.contexts.append(tuple(context))
        return super().next_weights(session, chain, temperature)

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)


class Target(MarkovTarget):
    """Records every evaluation, and the contexts of the rows that it computed.

    ``fails`` is asked before each call with its name and session and may
    raise; ``skew`` may change the logits of a row.
    """

    def __init__(self, law: MarkovLaw | None = None, stop_tokens: Sequence[int] = ()) -> None:
        super().__init__(V, stop_tokens=stop_tokens)
        self.law = law or ScriptedLaw()
        self.evaluations: list[list[VerifyItem]] = []
        self.contexts: list[tuple[int, ...]] = []
        self.fails: Callable[[str, bytes], None] = lambda call, session: None
        self.skew: Callable[[NDArray[np.float32]], NDArray[np.float32]] = lambda logits: logits

    def open(self, session: bytes, prefix: Sequence[int], temperature: float) -> None:
        self.fails("open", session)
        super().open(session, prefix, temperature)

    def verify(self, items: Sequence[VerifyItem]) -> list[NDArray[np.float32] | None]:
        self.evaluations.append(list(items))
        for item in items:
            self.fails("verify", item.session)
        return super().verify(items)

    def _logits(self, tokens: list[int], drafts: int, greedy: bool) -> NDArray[np.float32]:
        committed = len(tokens) - drafts
        self.contexts += [tuple(tokens[: committed + index]) for index in range(drafts + 1)]
        return self.skew(super()._logits(tokens, drafts, greedy))

    def commit(self, session: bytes, tokens: Sequence[int]) -> None:
        self.fails("commit", session)
        super().commit(session, tokens)

    @property
    def open_sessions(self) -> int:
        return len(self._sessions)


class Bench:
    """A trio over doubles, with the checks that every scenario ends with."""

    def __init__(
        self, law: MarkovLaw | None = None, stop_tokens: Sequence[int] = (), **options: object
    ) -> None:
        self.draft = Draft(law)
        self.targets = (Target(law, stop_tokens), Target(law, stop_tokens))
        self.trio = Trio(self.draft, self.targets, **options)  # type: ignore[arg-type]

    def check_rest(self) -> None:
        """Slots free, requests and sessions gone, on machines and engines alike."""
        self.trio.check_rest()
        assert self.draft.open_sessions == 0
        assert [target.open_sessions for target in self.targets] == [0, 0]


DENSE, SPARSE = int(Representation.DENSE_F32), int(Representation.SPARSE_F32)
SEED = bytes(range(32))
