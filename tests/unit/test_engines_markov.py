"""Engine misuse is refused, and state follows commits and rollbacks exactly."""

from collections.abc import Callable

import numpy as np
import pytest

from pp1.models import checkpoints
from proto_v2 import limits
from proto_v2.errors import Code, ProtocolError
from spark_rank.engine import TargetEngine, VerifyItem
from spark_rank.engines import create as create_target
from spark_rank.engines.markov import MarkovTarget
from worker.engine import DraftEngine
from worker.engines import create as create_draft
from worker.engines.markov import MarkovDraft

A, B = b"a" * 16, b"b" * 16


def code_of(call: Callable[[], object]) -> Code:
    with pytest.raises(ProtocolError) as caught:
        call()
    return caught.value.code


def test_draft_follows_commits_chain_and_rollback() -> None:
    engine = MarkovDraft(16, 1)
    law = engine.law
    engine.open(A, [1, 2])
    engine.open(B, [9])
    assert (engine.next_weights(A, (), 1.0) == law.draft_weights([2])).all()
    assert (engine.next_weights(A, (5, 6), 0.5) == law.draft_weights([6])).all()
    engine.extend(A, [3, 4])
    assert (engine.next_weights(A, (), 1.0) == law.draft_weights([4])).all()
    engine.rollback(A, 3)
    assert (engine.next_weights(A, (), 1.0) == law.draft_weights([3])).all()
    assert (engine.next_weights(B, (), 1.0) == law.draft_weights([9])).all()


def test_draft_refuses_misuse() -> None:
    engine = MarkovDraft(16, 1)
    engine.open(A, [1, 2])
    assert code_of(lambda: engine.open(A, [1])) is Code.SESSION_DUPLICATE
    assert code_of(lambda: engine.open(B, [])) is Code.PREFIX_RANGE
    assert code_of(lambda: engine.open(B, [16])) is Code.PROMPT_TOKEN
    assert code_of(lambda: engine.extend(A, [-1])) is Code.PROMPT_TOKEN
    assert code_of(lambda: engine.rollback(A, 3)) is Code.POSITION_MISMATCH
    assert code_of(lambda: engine.rollback(A, 0)) is Code.POSITION_MISMATCH
    assert code_of(lambda: engine.extend(A, [1] * 8192)) is Code.PREFIX_RANGE
    engine.close(A)
    engine.close(A)  # closing twice is not an error
    assert code_of(lambda: engine.extend(A, [1])) is Code.SESSION_UNKNOWN
    assert code_of(lambda: engine.rollback(A, 1)) is Code.SESSION_UNKNOWN
    assert code_of(lambda: engine.next_weights(A, (), 1.0)) is Code.SESSION_UNKNOWN


def test_sessions_are_bounded() -> None:
    engine = MarkovDraft(4, 0)
    for index in range(limits.SESSIONS_MAX):
        engine.open(index.to_bytes(16, "little"), [0])
    assert code_of(lambda: engine.open(A, [0])) is Code.SESSION_LIMIT


def test_target_rows_are_conditioned_on_the_drafts_before_them() -> None:
    engine = MarkovTarget(16, 1)
    law = engine.law
    engine.open(A, [1, 2], 1.0)
    engine.open(B, [3], 1.0)
    first, other = engine.verify([VerifyItem(A, (5, 6), True), VerifyItem(B, (7,), False)])
    assert first is not None and first.dtype == np.float32 and first.shape == (3, 16)
    assert other is None
    assert (first == np.stack([law.target_logits([t]) for t in (2, 5, 6)])).all()
    engine.commit(A, [5, 9])  # one accepted, corrected at the second
    engine.commit(B, [7, 8])  # not owned, but followed
    after = engine.verify([VerifyItem(A, (), True), VerifyItem(B, (), True)])
    assert [
        row is not None and bool((row[0] == law.target_logits([t])).all())
        for row, t in zip(after, (9, 8), strict=True)
    ] == [True, True]


def test_target_rollback_forgets_drafts() -> None:
    engine = MarkovTarget(16, 1)
    engine.open(A, [2], 1.0)
    engine.verify([VerifyItem(A, (5, 6), True)])
    engine.rollback(A)
    (row,) = engine.verify([VerifyItem(A, (), True)])
    assert row is not None and (row[0] == engine.law.target_logits([2])).all()


def test_target_refuses_misuse() -> None:
    engine = MarkovTarget(16, 1)
    engine.open(A, [2], 1.0)
    item = VerifyItem(A, (5, 6), True)
    assert code_of(lambda: engine.commit(A, [5])) is Code.TARGET_FAILED  # nothing verified
    engine.verify([item])
    assert code_of(lambda: engine.verify([item])) is Code.TARGET_FAILED  # forgot to roll back
    assert code_of(lambda: engine.commit(A, [6, 1])) is Code.TARGET_FAILED  # not the drafts
    assert code_of(lambda: engine.commit(A, [5, 6, 1, 1])) is Code.TARGET_FAILED
    assert code_of(lambda: engine.commit(A, [])) is Code.TARGET_FAILED
    engine.commit(A, [5, 6, 1])
    assert code_of(lambda: engine.verify([VerifyItem(B, (), True)])) is Code.SESSION_UNKNOWN
    assert code_of(lambda: engine.verify([VerifyItem(A, (16,), True)])) is Code.PROMPT_TOKEN


def test_greedy_target_is_one_hot_with_ties_to_the_lowest_id() -> None:
    engine = MarkovTarget(64, 5)
    tied = 0
    for last in range(64):
        session = last.to_bytes(16, "little")
        engine.open(session, [last], 0.0)
        (row,) = engine.verify([VerifyItem(session, (), True)])
        weights = engine.law.target_weights([last])
        tied += weights.count(max(weights)) > 1
        assert row is not None
        assert np.flatnonzero(row[0] > -np.inf).tolist() == [weights.index(max(weights))]
    assert tied  # the tie rule was exercised


@pytest.mark.parametrize(
    ("engine", "field"),
    [("nonsense", "engine"), ("no.such.module:Class", "engine"), ("json:NoSuch", "engine")],
)
@pytest.mark.parametrize("create", [create_draft, create_target])
def test_unknown_engines_are_configuration_errors(
    create: Callable[..., object], engine: str, field: str
) -> None:
    with pytest.raises(ProtocolError) as caught:
        create(engine)
    assert caught.value.code is Code.CONFIG_INVALID and caught.value.field == field


def test_unknown_options_are_configuration_errors() -> None:
    assert code_of(lambda: create_draft("markov", colour=1)) is Code.CONFIG_INVALID
    assert code_of(lambda: create_target("markov", colour=1)) is Code.CONFIG_INVALID


def test_out_of_tree_engines_by_dotted_name() -> None:
    engine: DraftEngine = create_draft("worker.engines.markov:MarkovDraft", seed=4)
    assert engine.identity() == create_draft("markov", seed=4).identity()
    target: TargetEngine = create_target("spark_rank.engines.markov:MarkovTarget", seed=4)
    assert target.identity() == create_target("markov", seed=4).identity()


def test_expected_identities_are_those_stated() -> None:
    options = {"vocabulary_size": 8, "seed": 11}
    target = create_target("markov", **options).identity()
    assert checkpoints.target_checkpoint("markov", options) == target.checkpoint
    assert checkpoints.target_processors("markov") == target.processors
    assert checkpoints.target_vocabulary("markov", options) == target.vocabulary
    draft = create_draft("markov", **options).identity()
    assert checkpoints.draft_checkpoint("markov", options) == draft.checkpoint
    assert checkpoints.draft_native("markov") is draft.native
    assert draft.target_checkpoint == target.checkpoint
    assert draft.processors == target.processors
    assert draft.vocabulary == target.vocabulary
    for ask in (checkpoints.target_checkpoint, checkpoints.draft_checkpoint):
        with pytest.raises(ProtocolError) as caught:
            ask("some.module:Class", {})
        assert caught.value.code is Code.CONFIG_INVALID
