"""Fault kinds D in the machines: the two ranks disagree."""

import numpy as np
import pytest
from numpy.typing import NDArray

from proto_v2.codec import encode_body
from proto_v2.errors import Code
from proto_v2.messages import (
    Applied,
    Completion,
    Decide,
    Decision,
    Invalidate,
    Message,
    Prepare,
    Prepared,
    Rows,
    Step,
    Verdicts,
    tokens_from_bytes,
    tokens_to_bytes,
)
from tests.support.checks import check_discard, check_done, code_of, reasons, replace
from tests.support.doubles import Bench
from tests.support.wire import Frames, Sent, Wire, change, flip

LENGTH = 30


def test_d01_a_skew_of_one_accepted_token_commits_nothing_on_either_rank() -> None:
    """D1: rank 1 says one accepted token less than its drafts and tokens add up to."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answers = [bench.trio.generate(key, [key], LENGTH, depth=3) for key in range(2)]

    def skew(sent: Sent, message: Verdicts) -> list[Frames]:
        (entry,) = message.entries
        if entry.accepted == 0:
            return [sent.frames]
        short = replace(entry, accepted=entry.accepted - 1, unverified=entry.unverified + 1)
        return [sent.sealed(replace(message, entries=(short,)))]

    wire.when(Verdicts, skew, skip=3, times=1000)
    bench.trio.run()
    ended = [answer for answer in answers if answer.failed]
    assert ended
    assert {code_of(answer) for answer in ended} == {Code.RANK_SPLIT}
    assert bench.trio.committed["rank0"] == bench.trio.committed["rank1"]
    bench.check_rest()


def test_d01_the_record_of_rank_0_is_the_only_authority() -> None:
    """D1: a rank 1 that applied another record is seen by the digest, before anything shows."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)
    wire.when(Applied, change(lambda message: replace(message, digest=bytes(16))), skip=3)
    bench.trio.run()
    assert code_of(answer) is Code.RANK_SPLIT
    shown = list(bench.trio.committed["rank0"].values())
    assert shown == [answer.tokens]
    assert len(wire.of(Decision)) == 4
    bench.check_rest()


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("kind", [Prepare, Decide, Decision])
def test_d02_a_rank_that_stops_after_it_has_q_is_waited_for_in_bounds(
    kind: type[Message], requests: int
) -> None:
    """D2: rank 1 hangs; a named end in time, slots free, and its successor serves."""
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio
    answers = [trio.generate(key, [key], 300, depth=5) for key in range(requests)]
    trio.run(messages=60)
    seen = len(wire.of(kind))
    while len(wire.of(kind)) == seen:
        trio.run(messages=1)
    trio.kill("rank1")
    trio.run(seconds=7)
    assert {code_of(answer) for answer in answers} <= {Code.RANK_LOST, Code.TARGET_LATE}
    assert trio.rank0.slots.free() == len(trio.rank0.slots)
    assert not trio.rank0.actives
    bench.targets[1].__init__(bench.targets[1].law)  # type: ignore[misc]
    trio.start_rank1()
    trio.run(seconds=2)
    answer = trio.generate(9, [1], LENGTH, depth=5)
    trio.run()
    check_done(answer, LENGTH)
    bench.check_rest()


def one_ulp(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.nextafter(logits, np.float32(np.inf), dtype=np.float32)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("depth", [0, 3])
def test_d03_ranks_whose_p_differs_by_an_ulp_commit_the_same_on_every_branch(
    temperature: float, depth: int
) -> None:
    """D3: greedy and sampled, with drafts, without, and after a discard."""
    wire = Wire()
    wire.when(Rows, flip(2, 0), source="worker", skip=5)
    bench = Bench(intercept=wire)
    bench.targets[1].skew = one_ulp
    answers = [
        bench.trio.generate(key, [key], LENGTH, depth=depth, temperature=temperature)
        for key in range(4)
    ]
    bench.trio.run()
    for answer in answers:
        assert answer.finished is not None
    assert bench.trio.committed["rank0"] == bench.trio.committed["rank1"]
    steps = {step.step for step in wire.of(Step, destination="rank1")}
    assert {decision.step for decision in wire.of(Decision)} == steps
    assert {applied.step for applied in wire.of(Applied)} == steps
    bench.check_rest()


def test_d04_ranks_near_the_context_limit_are_told_one_depth() -> None:
    """D4: prefix at the limit; the gate is evaluated once, by rank 0, and travels."""
    wire = Wire()
    bench = Bench(intercept=wire)
    limit = bench.targets[0].identity().context_tokens_max
    answer = bench.trio.generate(1, [1] * (limit - 6), 6, depth=5)
    refused = bench.trio.generate(2, [1] * (limit - 6), 7, depth=5)
    bench.trio.run()
    assert code_of(refused) is Code.PROMPT_RANGE
    assert answer.finished is not None
    for step in wire.of(Step):
        for entry in step.entries:
            assert entry.position + entry.depth < limit
    told = [encode_body(step) for step in wire.of(Step, destination="worker")]
    assert set(told) <= {encode_body(step) for step in wire.of(Step, destination="rank1")}
    bench.check_rest()


def test_d04_a_rank_that_is_told_another_count_applies_nothing() -> None:
    """D4: rank 0 decided n accepted tokens, rank 1 is told n - 1."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=3)

    def fewer(sent: Sent, decision: Decision) -> list[Frames]:
        entry, *others = decision.entries
        if entry.accepted == 0:
            return [sent.frames]
        kept = tokens_from_bytes(entry.tokens[: 4 * entry.token_count], "tokens")[1:]
        other = replace(
            entry,
            accepted=entry.accepted - 1,
            token_count=len(kept),
            tokens=tokens_to_bytes(kept).ljust(24, b"\0"),
        )
        return [sent.sealed(replace(decision, entries=(other, *others)))]

    wire.when(Decision, fewer, skip=2, times=1000)
    bench.trio.run()
    assert code_of(answer) in {Code.DECISION_MISMATCH, Code.RANK_SPLIT}
    assert bench.trio.count("rank1", "pp1_requests_ended_total", code="SESSION_POISONED") == 1
    assert bench.trio.committed["rank0"] == bench.trio.committed["rank1"]
    bench.check_rest()


def test_d04_a_timeout_on_rank_0_alone_discards_on_both() -> None:
    """D4: rank 1 gets the whole proposal, rank 0 runs out of time."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=2)

    def past_rank_0(sent: Sent) -> list[Frames] | None:
        if sent.source != "worker" or not isinstance(sent.message, (Rows, Completion)):
            return None
        if sent.message.step != 3:
            return None
        pair = next(one for one in wire.sent if one.destination == "rank1" and one.link_epoch)
        if sent.message not in forwarded:
            forwarded.append(sent.message)
            bench.trio.inject("rank0", "rank1", pair.sealed(sent.message, sent.payload))
        return []

    forwarded: list[Message] = []
    wire.rules.append(past_rank_0)
    bench.trio.run(seconds=3)
    check_discard(bench, wire, answer, Code.DRAFT_LATE)
    (prepared,) = [message for message in wire.of(Prepared) if message.step == 3]
    assert prepared.entries[0].status == 0, "rank 1 had nothing against it"


def test_d05_a_rank_with_another_budget_is_found_before_anything_is_evaluated() -> None:
    """D5: rank 1's step says depth 4 where rank 0 and the worker have 5."""
    wire = Wire()
    bench = Bench(intercept=wire)
    answer = bench.trio.generate(1, [1], LENGTH, depth=5)

    def other_depth(step: Step) -> Message:
        return Step(step.step, (replace(step.entries[0], depth=4),))

    wire.when(Step, change(other_depth), destination="rank1", skip=2)
    bench.trio.run()
    check_discard(bench, wire, answer, Code.DEPTH_MISMATCH)


def test_d06_every_kind_of_step_has_one_producer_and_one_shape_of_record() -> None:
    """D6: speculative, plain and discarded steps in turn."""
    wire = Wire()
    for skip in range(0, 30, 6):
        wire.when(Rows, flip(2, 0), source="worker", skip=skip)
    bench = Bench(intercept=wire)
    answers = [bench.trio.generate(key, [key], LENGTH, depth=key) for key in range(4)]
    bench.trio.run()
    for answer in answers:
        assert answer.finished is not None
    assert wire.of(Invalidate)
    kinds = set()
    for decision in wire.of(Decision):
        assert len(decision.entries) == 4
        assert {len(entry.tokens) for entry in decision.entries} == {24}
        kinds |= {(entry.kind, entry.depth > 0, entry.reason > 0) for entry in decision.entries}
    assert {(1, True, False), (1, False, False), (1, False, True), (0, False, False)} <= kinds
    producers = {(type(sent.message), sent.source) for sent in wire.sent}
    assert {source for kind, source in producers if kind in (Decision, Decide)} == {"rank0"}
    rows = [sent for sent in wire.sent if isinstance(sent.message, Rows)]
    drafted = {(sent.source, sent.destination) for sent in rows}
    assert drafted == {("worker", "rank0"), ("rank0", "rank1")}
    bench.check_rest()


@pytest.mark.parametrize(
    ("field", "value"),
    [("representations", ()), ("depth_max", 0), ("draft_checkpoint", "none"), ("verifier", "none")],
)
def test_d08_speculation_on_one_side_only_is_refused_before_the_first_step(
    field: str, value: object
) -> None:
    """D8: ranks that are set up differently do not come to share a step."""
    wire = Wire()
    bench = Bench(intercept=wire, hellos={"rank1": lambda hello: replace(hello, **{field: value})})
    assert bench.trio.stopped["rank0"].exit_code == 4
    assert field in bench.trio.stopped["rank0"].message
    assert not wire.of(Step)
    assert code_of(bench.trio.generate(1, [1], 5)) is Code.RANK_LOST


def test_d09_a_rank_that_hangs_and_comes_back_finds_its_requests_ended() -> None:
    """D9: the engine of rank 1 is stuck for longer than an evaluation may take."""
    wire = Wire()
    bench = Bench(intercept=wire)
    trio = bench.trio
    answers = [trio.generate(key, [key], 300, depth=2) for key in range(2)]
    trio.run(messages=80)
    trio.busy = {"rank1"}
    trio.run(seconds=5)
    assert {code_of(answer) for answer in answers} == {Code.TARGET_LATE}
    trio.finish_jobs("rank1")
    trio.run(seconds=1)
    answer = trio.generate(9, [1], LENGTH, depth=2)
    trio.run()
    check_done(answer, LENGTH)
    assert not reasons(answer)
    bench.check_rest()
