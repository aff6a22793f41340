"""Every message in every state: worker, rank 0 and rank 1 under random disturbance.

Three machines serve requests while messages to and from one of them are lost,
repeated, swapped, kept back, damaged, said again later or forged as their
sender would seal them; while links and processes come and go, engines are slow,
clients give up and time passes. Whatever happens,

- no exception leaves a machine, and no process stops,
- rank 1 has committed what rank 0 has, and at most one decision more,
- a client is shown only what both have committed (``Trio`` sees to that), once,
- counts add up, and every slot, request and session is given back in the end,
- every request ends, once, and the service serves on.

``PP1_STATEFUL_EXAMPLES`` asks for more runs than the few of every day.
"""

import os
from collections import Counter
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pp1.models.sessions import SessionTable
from proto_v2 import limits
from proto_v2.codec import decode
from proto_v2.errors import Code
from proto_v2.slots import Lease, SlotTable
from spark_rank.follower import RankOneMachine
from spark_rank.jobs import EngineRunner
from spark_rank.machine import RankZeroMachine
from spark_rank.pair import Phase as Step
from tests.fuzz.fields import at, other, places, put
from tests.fuzz.frames import repaired
from tests.proto_samples import plain
from tests.support.doubles import DENSE, SPARSE, Bench
from tests.support.trio import Answer, Trio
from tests.support.wire import Frames

HISTORY_MOST = 400
REQUESTS_MOST = 12
DECISION_MOST = limits.DEPTH_MAX + 1

lost = "lost"
twice = "twice"
damaged = "damaged"
forged = "forged"
late = "late"
swapped = "swapped"
indices = st.integers(0, (1 << 16) - 1)


class Service(RuleBasedStateMachine):
    """``subject`` is the machine whose messages are disturbed."""

    subject: ClassVar[str]
    trio: Trio

    def __init__(self) -> None:
        super().__init__()
        self.history: list[tuple[str, str, Frames]] = []
        self.kept: list[tuple[str, str, Frames]] = []
        self.disturbance: list[tuple[str, int]] = []
        self.swap: tuple[str, str, Frames] | None = None
        self.answers: list[Answer] = []
        self.calm = False

    @initialize(seed=st.integers(0, 1 << 16))
    def start(self, seed: int) -> None:
        note(f"entropy of the machines: {seed}")
        self.bench = Bench(seed=seed, intercept=self._carry)
        self.trio = self.bench.trio

    # --- the wire ---

    def _carry(self, source: str, destination: str, frames: Frames) -> list[Frames]:
        if self.calm or self.subject not in (source, destination):
            return [frames]
        self.history = [*self.history, (source, destination, frames)][-HISTORY_MOST:]
        if self.swap is not None and self.swap[:2] == (source, destination):
            earlier, self.swap = self.swap[2], None
            return [frames, earlier]
        if not self.disturbance:
            return [frames]
        how, number = self.disturbance.pop(0)
        if how == twice:
            return [frames, frames]
        if how == damaged:
            return [damage(frames, number)]
        if how == forged:
            return [forge(frames, number)]
        if how == late:
            self.kept.append((source, destination, frames))
        elif how == swapped:
            self.swap = (source, destination, frames)
        return []

    # --- rules ---

    @precondition(lambda self: len(self.answers) < REQUESTS_MOST)
    @rule(
        tokens=st.integers(1, 12),
        depth=st.integers(0, limits.DEPTH_MAX),
        representation=st.sampled_from([SPARSE, DENSE]),
        support=st.sampled_from([0, 1, 4]),
        temperature=st.sampled_from([0.0, 1.0]),
    )
    def generate(
        self, tokens: int, depth: int, representation: int, support: int, temperature: float
    ) -> None:
        key = len(self.answers)
        answer = self.trio.generate(
            key,
            [key % 16, 3],
            tokens,
            depth=depth,
            representation=representation,
            support=support,
            temperature=temperature,
        )
        self.answers.append(answer)

    @rule(messages=st.integers(1, 40))
    def deliver(self, messages: int) -> None:
        self.trio.run(messages=messages)

    @rule(how=st.sampled_from([lost, twice, damaged, forged, late, swapped]), number=indices)
    def disturb(self, how: str, number: int) -> None:
        self.disturbance.append((how, number))

    @precondition(lambda self: self.kept)
    @rule()
    def release_kept(self) -> None:
        for item in self.kept:
            self.trio.inject(*item)
        self.kept.clear()

    @precondition(lambda self: self.history)
    @rule(which=indices)
    def say_again(self, which: int) -> None:
        self.trio.inject(*self.history[which % len(self.history)])

    @precondition(lambda self: self.history)
    @rule(which=indices, number=indices)
    def say_damaged(self, which: int, number: int) -> None:
        source, destination, frames = self.history[which % len(self.history)]
        self.trio.inject(source, destination, damage(frames, number))

    @precondition(lambda self: self.history)
    @rule(which=indices, number=indices)
    def say_forged(self, which: int, number: int) -> None:
        source, destination, frames = self.history[which % len(self.history)]
        self.trio.inject(source, destination, forge(frames, number))

    @precondition(lambda self: self.answers)
    @rule(which=indices)
    def abort(self, which: int) -> None:
        self.trio.abort(which % len(self.answers))

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 2.5, 6.0]))
    def let_pass(self, seconds: float) -> None:
        self.trio.run(seconds=seconds)

    @rule(link=st.sampled_from(["worker", "pair"]))
    def reconnect(self, link: str) -> None:
        self.trio.disconnect(link)
        self.trio.connect(link)

    @rule(name=st.sampled_from(["worker", "rank1"]))
    def restart(self, name: str) -> None:
        self._finish(name)
        self.trio.kill(name)
        # The engine was in the process: what it held is gone, too.
        if name == "worker":
            self.bench.draft._sessions = SessionTable()
            self.trio.start_worker()
        else:
            self.bench.targets[1]._sessions = SessionTable()
            self.trio.runners[name] = EngineRunner(self.bench.targets[1])
            self.trio.start_rank1()

    @rule(name=st.sampled_from(["worker", "rank0", "rank1"]))
    def slow(self, name: str) -> None:
        self.trio.busy.add(name)

    @precondition(lambda self: self.trio.busy)
    @rule()
    def catch_up(self) -> None:
        for name in sorted(self.trio.busy):
            self._finish(name)

    def _finish(self, name: str) -> None:
        self.trio.busy.discard(name)
        if self.trio._waiting_jobs.get(name):
            self.trio.finish_jobs(name)

    # --- what must hold ---

    @invariant()
    def rank_1_is_at_most_one_decision_ahead(self) -> None:
        first, second = self.trio.committed["rank0"], self.trio.committed["rank1"]
        for session_id, text in first.items():
            applied = second[session_id]
            assert applied[: len(text)] == text
            assert len(applied) - len(text) <= DECISION_MOST

    @invariant()
    def nothing_stops(self) -> None:
        assert not self.trio.stopped

    @invariant()
    def counts_add_up(self) -> None:
        def count(name: str) -> int:
            return self.trio.count("rank0", f"pp1_{name}_total")

        committed = sum(map(len, self.trio.committed["rank0"].values()))
        assert count("tokens_committed") == committed
        drafts = Counter(
            {
                kind: count(f"spec_decode_num_{kind}_tokens")
                for kind in ("accepted", "rejected", "unverified")
            }
        )
        assert count("spec_decode_num_draft_tokens") == drafts.total()
        assert sum(len(answer.tokens) for answer in self.answers) == committed

    @invariant()
    def every_answer_ends_at_most_once(self) -> None:
        for answer in self.answers:
            assert answer.finished is None or answer.failed is None
            done = answer.finished
            if done is not None:
                assert done.token_count == len(answer.tokens)
                assert done.accepted + done.rejected + done.unverified == done.drafted
                assert (sum(done.accepted_at), sum(done.drafted_at)) == (
                    done.accepted,
                    done.drafted,
                )
                assert len(answer.rounds) == done.rounds_speculative + done.rounds_target_only

    def teardown(self) -> None:
        """Once nothing is disturbed any more, all is as at the start."""
        if not hasattr(self, "trio"):
            return
        self.calm = True
        for name in ("worker", "rank0", "rank1"):
            self._finish(name)
        self.trio.run(seconds=30)
        for answer in self.answers:
            assert (answer.finished is None) != (answer.failed is None), "ended, and once"
        for link in ("worker", "pair"):
            self.reconnect(link)
        self.trio.run()
        more = self.trio.generate(1000, [1, 2], 5, depth=2)
        self.trio.run(seconds=5)
        assert more.failed is None and more.finished is not None, "the service serves on"
        self.answers.append(more)
        self.rank_1_is_at_most_one_decision_ahead()
        self.nothing_stops()
        self.counts_add_up()
        self.every_answer_ends_at_most_once()
        self.bench.check_rest()


def damage(frames: Frames, number: int) -> Frames:
    """One bit of one frame is wrong."""
    index = number % len(frames)
    frame = bytearray(frames[index])
    if frame:
        frame[number // 8 % len(frame)] ^= 1 << number % 8
    return (*frames[:index], bytes(frame), *frames[index + 1 :])


def forge(frames: Frames, number: int) -> Frames:
    """One place of the message has another value; its sender seals it."""
    value = plain(decode(frames).message)
    spots = places(value)
    spot = spots[number % len(spots)]
    body = msgspec.msgpack.encode(put(value, spot, other(at(value, spot), number // len(spots))))
    return tuple(repaired((frames[0], body, *frames[2:])))


class WorkerService(Service):
    subject = "worker"


class RankZeroService(Service):
    subject = "rank0"


class RankOneService(Service):
    subject = "rank1"


EXAMPLES = int(os.environ.get("PP1_STATEFUL_EXAMPLES", "60"))
daily = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=EXAMPLES,
    stateful_step_count=40,
    suppress_health_check=list(HealthCheck),
)
TestWorker = WorkerService.TestCase
TestRankZero = RankZeroService.TestCase
TestRankOne = RankOneService.TestCase
TestWorker.settings = TestRankZero.settings = TestRankOne.settings = daily


# --- that they can fail ----------------------------------------------------------------------


def keep_slot(self: SlotTable, lease: Lease) -> None:
    """A slot is never given back."""


def show_early(self: RankZeroMachine, round_: Any, now_ns: int) -> None:
    """Tokens are shown when rank 0 has decided, not when rank 1 has applied."""
    honest_compose(self, round_, now_ns)
    if round_.leader.phase is Step.APPLYING:
        self._apply(round_, now_ns)


def forget(self: RankOneMachine, session_id: bytes, code: Code | None) -> None:
    """The engine is not told that a request is over."""
    del self._requests[session_id]


honest_compose = RankZeroMachine._compose


@pytest.mark.parametrize(
    ("machine", "owner", "method", "wrong"),
    [
        (WorkerService, SlotTable, "retire", keep_slot),
        (RankZeroService, RankZeroMachine, "_compose", show_early),
        (RankOneService, RankOneMachine, "_close", forget),
    ],
)
def test_a_wrong_rule_is_found(
    machine: type[Service],
    owner: type[object],
    method: str,
    wrong: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, wrong)
    with pytest.raises((AssertionError, KeyError, ExceptionGroup)):
        run_state_machine_as_test(machine, settings=settings(daily, phases=[Phase.generate]))
