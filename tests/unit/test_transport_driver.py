"""The driver with toy machines: messages, timers, jobs, failures, fairness and the end."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Context
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from proto_v2.effects import Buffer, Count, Effect, Note, Peer, Run, Send, Stop
from proto_v2.errors import Code, ExitCode, ProtocolError
from transport import driver as driver_module
from transport.clock import monotonic_ns
from transport.driver import DRAIN_LIMIT, Driver
from transport.link import Link, LinkEvent, Received, SendResult
from transport.logs import Log
from transport.metrics import Metrics
from transport.zmq_link import ClientLink, ServerLink

FRAME_BYTES = 1 << 20
PATIENCE_S = 20
ROOT = Path(__file__).parents[2]
T = TypeVar("T")


class Toy:
    """A machine that keeps its calls and answers through overridable methods."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.todo: list[Effect] = []
        self.deadline: int | None = None

    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        self.calls.append(("receive", source.link, [bytes(frame) for frame in frames]))

    def link_up(self, peer: Peer, now_ns: int) -> None:
        self.calls.append(("up", peer.link))

    def link_down(self, peer: Peer, now_ns: int) -> None:
        self.calls.append(("down", peer.link))

    def completed(self, job_id: int, result: object, now_ns: int) -> None:
        self.calls.append(("completed", job_id, result))

    def expire(self, now_ns: int) -> None:
        self.calls.append(("expire",))

    def next_deadline(self) -> int | None:
        return self.deadline

    def effects(self) -> list[Effect]:
        done, self.todo = self.todo, []
        return done


class Echo(Toy):
    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        super().receive(source, frames, now_ns)
        self.todo.append(Send(source, tuple(frames)))


class Asker(Toy):
    """Sends ``count`` numbered messages when its link is up; stops at the last answer."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.answers: list[bytes] = []

    def link_up(self, peer: Peer, now_ns: int) -> None:
        for index in range(self.count):
            self.todo.append(Send(peer, (b"%d" % index, bytes(5_000))))

    def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
        self.answers.append(bytes(frames[0]))
        if len(self.answers) == self.count:
            self.todo.append(Stop(ExitCode.OK, "all answered"))


class FakeLink:
    """A link in memory: a queue of messages and a descriptor that is always readable."""

    def __init__(self, name: str, messages: Iterator[bytes], result: SendResult) -> None:
        self.name = name
        self.messages = messages
        self.result = result
        self.waiting = next(messages, None)
        self.taken = 0
        self.sent: list[Sequence[Buffer]] = []
        self.descriptor = os.eventfd(1)
        self.wake: int | None = None

    def fileno(self) -> int:
        return self.descriptor

    def poll(self, limit: int) -> list[LinkEvent]:
        events: list[LinkEvent] = []
        while self.waiting is not None and len(events) < limit:
            events.append(Received(b"route", [memoryview(self.waiting)]))
            self.waiting = next(self.messages, None)
        self.taken += len(events)
        return events

    def pending(self) -> bool:
        return self.waiting is not None

    def wake_at(self) -> int | None:
        return self.wake

    def send(self, route: bytes, frames: Sequence[Buffer]) -> SendResult:
        self.sent.append(frames)
        return self.result

    def close(self) -> None:
        os.close(self.descriptor)


def fake(*messages: bytes, name: str = "fake", result: SendResult = SendResult.SENT) -> FakeLink:
    return FakeLink(name, iter(messages), result)


def no_job(job: object) -> object:
    raise AssertionError(f"no job was expected, got {job}")


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log("test", file=tmp_path / "log", format="json")
    yield made
    made.close()


@pytest.fixture
def make(log: Log) -> Callable[..., Driver]:
    def build(
        machine: Toy,
        *links: Link,
        run_job: Callable[[object], object] = no_job,
        metrics: Metrics | None = None,
    ) -> Driver:
        return Driver(machine, links, run_job, metrics=metrics or Metrics(), log=log, signals=())

    return build


def run(work: Coroutine[Any, Any, T]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(bounded())


def test_two_machines_talk_over_real_sockets(make: Callable[..., Driver]) -> None:
    server = ServerLink("listen", "tcp://127.0.0.1:0", max_frame_bytes=FRAME_BYTES)
    client = ClientLink("connect", server.address, max_frame_bytes=FRAME_BYTES)
    # More than one drain, so that the rest depends on re-checking the edge.
    asker = Asker(2 * DRAIN_LIMIT - 10)
    metrics = Metrics()
    serving = make(Echo(), server, metrics=metrics)
    asking = make(asker, client)

    async def both() -> tuple[int, int]:
        task = asyncio.ensure_future(serving.run())
        code = await asking.run()
        serving.stop()
        return code, await task

    assert run(both()) == (ExitCode.OK, ExitCode.OK)
    assert asker.answers == [b"%d" % index for index in range(asker.count)]
    counts = metrics.snapshot()
    for direction in ("received", "sent"):
        labels = f'{{link="listen",direction="{direction}"}}'
        assert counts[f"pp1_link_messages_total{labels}"] == asker.count
        assert counts[f"pp1_link_bytes_total{labels}"] > asker.count * 5_000
    assert not serving.ready
    assert not asking.ready


def test_a_lost_server_is_down_and_a_new_one_is_up(make: Callable[..., Driver]) -> None:
    first = ServerLink("listen", "tcp://127.0.0.1:0", max_frame_bytes=FRAME_BYTES)
    second: list[ServerLink] = []
    client = ClientLink("connect", first.address, max_frame_bytes=FRAME_BYTES)

    class Watcher(Toy):
        def link_up(self, peer: Peer, now_ns: int) -> None:
            super().link_up(peer, now_ns)
            if len(self.calls) == 1:
                first.close()
            else:
                self.todo.append(Stop(ExitCode.OK, "seen"))

        def link_down(self, peer: Peer, now_ns: int) -> None:
            super().link_down(peer, now_ns)
            second.append(ServerLink("listen", first.address, max_frame_bytes=FRAME_BYTES))

    watcher = Watcher()
    assert run(make(watcher, client).run()) == ExitCode.OK
    assert watcher.calls == [("up", "connect"), ("down", "connect"), ("up", "connect")]
    second[0].close()


def test_a_deadline_expires_never_early_and_every_new_one_counts(
    make: Callable[..., Driver],
) -> None:
    class Clockwork(Toy):
        steps_ns = (0, 300_000, 3_000_000, 1_000, 20_000_000)

        def __init__(self) -> None:
            super().__init__()
            self.left = list(self.steps_ns)
            self.deadline = monotonic_ns() + self.left.pop()
            self.early: list[int] = []

        def expire(self, now_ns: int) -> None:
            assert self.deadline is not None
            self.early.append(max(0, self.deadline - now_ns))
            if self.left:
                self.deadline = now_ns + self.left.pop()
            else:
                self.deadline = None
                self.todo.append(Stop(ExitCode.OK, "done"))

    machine = Clockwork()
    assert run(make(machine).run()) == ExitCode.OK
    assert machine.early == [0] * len(Clockwork.steps_ns)


def test_a_link_is_polled_when_it_asked_for_it(make: Callable[..., Driver]) -> None:
    class Sleeper(FakeLink):
        """Has its messages one by one, each only some time after the last."""

        def poll(self, limit: int) -> list[LinkEvent]:
            if self.wake is None or monotonic_ns() < self.wake:
                return []
            self.wake = monotonic_ns() + 5_000_000
            return [Received(b"", [memoryview(next(self.messages))])]

    class Woken(Toy):
        def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
            super().receive(source, frames, now_ns)
            if len(self.calls) == 2:
                self.todo.append(Stop(ExitCode.OK, "both"))

    link = Sleeper("sleeper", iter(()), SendResult.SENT)
    link.messages = iter((b"one", b"two"))
    link.wake = monotonic_ns() + 5_000_000
    os.read(link.descriptor, 8)  # silent from here on
    machine = Woken()
    machine.deadline = 1 << 62  # never due when the link is
    assert run(make(machine, link).run()) == ExitCode.OK
    assert machine.calls == [("receive", "sleeper", [b"one"]), ("receive", "sleeper", [b"two"])]


def test_the_timer_is_armed_anew_only_for_another_deadline(make: Callable[..., Driver]) -> None:
    class Still(Toy):
        def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
            match bytes(frames[0]):
                case b"sooner":
                    self.deadline = 1 << 61
                case b"stop":
                    self.todo.append(Stop(ExitCode.OK, "done"))

    machine = Still()
    machine.deadline = 1 << 62
    driver = make(machine, *(fake(word, name=word.decode()) for word in (b"a", b"sooner", b"stop")))
    armed: list[float] = []

    class CountingLoop(asyncio.SelectorEventLoop):
        def call_at(  # type: ignore[override]  # typeshed's variadic callback
            self,
            when: float,
            callback: Callable[..., object],
            *args: Any,
            context: Context | None = None,
        ) -> asyncio.TimerHandle:
            armed.append(when)
            return super().call_at(when, callback, *args, context=context)

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        assert runner.run(driver.run()) == ExitCode.OK
    assert len(armed) == 2


@pytest.mark.parametrize("failure", [ValueError("bad"), SystemExit(3), KeyboardInterrupt()])
def test_a_job_comes_back_as_its_result_or_its_exception(
    make: Callable[..., Driver], failure: BaseException
) -> None:
    class Boss(Toy):
        def completed(self, job_id: int, result: object, now_ns: int) -> None:
            super().completed(job_id, result, now_ns)
            assert threading.current_thread() is threading.main_thread()
            if job_id == 2:
                self.todo.append(Stop(ExitCode.OK, "done"))

    def run_job(job: object) -> object:
        assert threading.current_thread() is not threading.main_thread()
        if job == "fail":
            raise failure
        return f"{job} done"

    boss = Boss()
    boss.todo += [Run(1, "fail"), Run(2, "work")]
    metrics = Metrics()
    assert run(make(boss, run_job=run_job, metrics=metrics).run()) == ExitCode.OK
    (_, first, error), (_, second, result) = boss.calls
    assert (first, second, result) == (1, 2, "work done")
    if isinstance(failure, Exception):
        assert error is failure
    else:
        assert isinstance(error, RuntimeError)
        assert type(failure).__name__ in str(error)
    counts = metrics.snapshot()
    assert counts['pp1_jobs_failed_total{job="str"}'] == 1
    assert counts['pp1_job_seconds_count{job="str"}'] == 2


def test_the_end_does_not_wait_for_a_job(
    make: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "JOB_GRACE_S", 0.01)
    begun, release, ran = threading.Event(), threading.Event(), []

    class Hasty(Toy):
        def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
            assert begun.wait(PATIENCE_S)
            self.todo.append(Stop(ExitCode.OK, "leaving"))

    def run_job(job: object) -> object:
        ran.append(job)
        begun.set()
        release.wait(PATIENCE_S)
        return None

    hasty = Hasty()
    hasty.todo += [Run(1, "long"), Run(2, "never begun")]
    assert run(make(hasty, fake(b"go"), run_job=run_job).run()) == ExitCode.OK
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("pp1-job"):
            thread.join(PATIENCE_S)
    assert ran == ["long"]
    assert hasty.calls == []


def test_an_unreachable_route_is_down_once_even_for_a_stubborn_machine(
    make: Callable[..., Driver],
) -> None:
    class Stubborn(Echo):
        def link_down(self, peer: Peer, now_ns: int) -> None:
            super().link_down(peer, now_ns)
            self.todo.append(Send(peer, (b"are you there?",)))
            if len(self.calls) == 4:
                self.todo.append(Stop(ExitCode.OK, "done"))

    stubborn = Stubborn()
    metrics = Metrics()
    link = fake(b"one", b"two", result=SendResult.UNREACHABLE)
    assert run(make(stubborn, link, metrics=metrics).run()) == ExitCode.OK
    assert [call[0] for call in stubborn.calls] == ["receive", "down", "receive", "down"]
    dropped = metrics.snapshot()['pp1_link_dropped_total{link="fake",reason="unreachable"}']
    assert dropped == 4  # each time the answer and the question after it


def test_a_full_route_is_counted_and_stays_up(make: Callable[..., Driver]) -> None:
    class Ends(Echo):
        def effects(self) -> list[Effect]:
            done = super().effects()
            return [*done, Stop(ExitCode.OK, "done")] if done else done

    ends = Ends()
    metrics = Metrics()
    assert run(make(ends, fake(b"x", result=SendResult.FULL), metrics=metrics).run()) == 0
    assert [call[0] for call in ends.calls] == ["receive"]
    assert metrics.snapshot()['pp1_link_dropped_total{link="fake",reason="full"}'] == 1


def test_a_flood_on_one_link_starves_neither_the_others_nor_the_timer(
    make: Callable[..., Driver],
) -> None:
    def flood() -> Iterator[bytes]:
        while True:
            yield b"flood"

    class Patient(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.deadline = monotonic_ns()
            self.seen: set[str] = set()

        def receive(self, source: Peer, frames: Sequence[memoryview], now_ns: int) -> None:
            if source.link == "quiet":
                self.saw("quiet")

        def expire(self, now_ns: int) -> None:
            self.deadline = None
            self.saw("timer")

        def saw(self, what: str) -> None:
            self.seen.add(what)
            if self.seen == {"quiet", "timer"}:
                self.todo.append(Stop(ExitCode.OK, "both"))

    loud = FakeLink("loud", flood(), SendResult.SENT)
    quiet = fake(b"hello", name="quiet")
    assert run(make(Patient(), loud, quiet).run()) == ExitCode.OK
    assert quiet.taken == 1
    assert loud.taken <= 4 * DRAIN_LIMIT


def test_counts_and_notes_arrive(make: Callable[..., Driver], log: Log, tmp_path: Path) -> None:
    toy = Toy()
    toy.todo += [
        Count("proposals_total", (("outcome", "used"),), 3),
        Note(logging.WARNING, "odd", {"field": "depth"}),
        Stop(ExitCode.REFUSED, "not my protocol"),
        Count("never_total"),
    ]
    metrics = Metrics()
    assert run(make(toy, metrics=metrics).run()) == ExitCode.REFUSED
    counts = metrics.snapshot()
    assert counts['pp1_proposals_total{outcome="used"}'] == 3
    assert counts["pp1_ready"] == 0
    assert "pp1_never_total" not in counts
    text = (tmp_path / "log").read_text()
    assert '"event":"odd","field":"depth"' in text
    assert "not my protocol" in text


def test_a_call_from_outside_is_driven_like_an_event(make: Callable[..., Driver]) -> None:
    toy = Toy()
    link = fake()
    driver = make(toy, link)

    def refuse(now_ns: int) -> None:
        toy.todo.append(Send(Peer("fake"), (b"and an effect",)))
        raise ProtocolError(Code.PROMPT_RANGE, "prompt", "some tokens", "none")

    async def scene() -> int:
        task = asyncio.ensure_future(driver.run())
        await asyncio.sleep(0)
        assert driver.ready
        assert driver.call(lambda now_ns: now_ns) > 0
        with pytest.raises(ProtocolError):
            driver.call(refuse)
        assert driver.ready
        assert link.sent == [(b"and an effect",)]
        with pytest.raises(ZeroDivisionError):
            driver.call(lambda now_ns: 1 // 0)
        assert not driver.ready
        return await task

    assert run(scene()) == ExitCode.INVARIANT


@pytest.mark.parametrize(
    "effect",
    [
        Send(Peer("no such link"), (b"x",)),
        Count("Not A Name"),
        Count("backwards_total", (), -1),
    ],
)
def test_an_effect_that_cannot_be_carried_out_breaks_an_invariant(
    make: Callable[..., Driver], effect: Effect
) -> None:
    toy = Toy()
    toy.todo.append(effect)
    assert run(make(toy).run()) == ExitCode.INVARIANT


def test_a_cancelled_run_leaves_nothing_open(make: Callable[..., Driver]) -> None:
    link = fake()
    driver = make(Toy(), link)

    async def scene() -> None:
        task = asyncio.ensure_future(driver.run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scene())
    assert not driver.ready
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(link.descriptor)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_an_orderly_stop(number: signal.Signals) -> None:
    program = (
        "from transport.driver import run_machine\n"
        "from transport.logs import Log\n"
        "from transport.metrics import Metrics\n"
        "class Idle:\n"
        "    def effects(self): return []\n"
        "    def next_deadline(self): print('serving', flush=True)\n"
        "log = Log('idle', format='json')\n"
        "raise SystemExit(run_machine(Idle(), [], print, metrics=Metrics(), log=log))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.OK, errors
    assert f'"reason":"{number.name}"' in errors
