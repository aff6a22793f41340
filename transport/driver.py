"""The event loop around one machine: feed it, carry out its effects, keep its time.

Everything that touches the machine or a link happens in the loop's thread, one
call at a time. After every call the machine's effects are carried out in
order. Slow work runs in threads and comes back as an event. There is one
timer, re-armed only when the earliest deadline has changed.

A bad message is the machine's business and never ends the service. An
exception that leaves the machine, a link or an effect is a broken invariant:
it is logged, readiness ends, and so does the process, with
``ExitCode.INVARIANT``. There is no half-alive state in which a loop is dead
and the process still looks ready.
"""

import asyncio
import logging
import math
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar, assert_never

import uvloop

from proto_v2.effects import Buffer, Count, Effect, Machine, Note, Peer, Run, Send, Stop
from proto_v2.errors import ExitCode, ProtocolError
from transport.clock import monotonic_ns
from transport.link import Down, Link, LinkEvent, Overlong, Received, Refused, SendResult, Up
from transport.logs import Log
from transport.metrics import Metrics

# Messages taken from one link before the others and the timer get their turn.
DRAIN_LIMIT: Final = 64
# What a job that runs at the end gets before the process leaves without it.
JOB_GRACE_S: Final = 2.0
# How long a job's thread may keep the interpreter from the loop. CPython's own
# 5 ms would be added to every message that comes in while an engine computes.
SWITCH_INTERVAL_S: Final = 0.0005
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

RunJob = Callable[[object], object]
T = TypeVar("T")


class _Jobs:
    """Threads that run jobs in the order they came and hand each result on.

    Daemon threads, not an executor: the interpreter would wait at its end for
    an executor's threads, however long their job takes.
    """

    def __init__(
        self, threads: int, run_job: RunJob, deliver: Callable[[int, str, object, float], None]
    ) -> None:
        self._run_job = run_job
        self._deliver = deliver
        self._queue: queue.SimpleQueue[tuple[int, object] | None] = queue.SimpleQueue()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"pp1-job-{index}", daemon=True)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job_id: int, job: object) -> None:
        """Queue one job."""
        self._queue.put((job_id, job))

    def close(self) -> None:
        """Drop what has not begun; wait a little for what has."""
        self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        deadline = monotonic_ns() + int(JOB_GRACE_S * _NS_PER_S)
        for thread in self._threads:
            thread.join(max(0.0, (deadline - monotonic_ns()) / _NS_PER_S))

    def _work(self) -> None:
        while (item := self._queue.get()) is not None and not self._closed:
            job_id, job = item
            began = monotonic_ns()
            result: object
            try:
                result = self._run_job(job)
            except Exception as error:
                result = error
            except BaseException as error:  # a job cannot end its thread either
                result = RuntimeError(f"the job raised {error!r}")
            seconds = (monotonic_ns() - began) / _NS_PER_S
            self._deliver(job_id, type(job).__name__.lower(), result, seconds)


class Driver:
    """Drives one machine over its links until a ``Stop``, a signal or a broken invariant.

    The links are the driver's from here on: it closes them at the end.
    ``run_job`` is called in one of ``job_threads`` threads with the ``job`` of
    each ``Run``. ``signals`` end the process with ``ExitCode.OK``; give none
    when the loop is not the main thread's or serves several drivers.
    """

    def __init__(
        self,
        machine: Machine,
        links: Sequence[Link],
        run_job: RunJob,
        *,
        metrics: Metrics,
        log: Log,
        job_threads: int = 1,
        signals: Sequence[signal.Signals] = _SIGNALS,
    ) -> None:
        self._machine = machine
        self._links = {link.name: link for link in links}
        assert len(self._links) == len(links), "link names are unique"
        self._run_job = run_job
        self._metrics = metrics
        self._log = log
        self._job_threads = job_threads
        self._signals = signals
        self._loop: asyncio.AbstractEventLoop
        self._end: asyncio.Future[int]
        self._jobs: _Jobs
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for: int | None = None
        self._scheduled: set[str] = set()  # links that a call_soon will read
        self._unreachable: dict[Peer, None] = {}
        self.reason = ""  # why the service ended, once it has
        self._ready = False
        self._lines_lost = 0  # as already counted

    @property
    def ready(self) -> bool:
        """Whether the machine is being served. False once anything has ended it."""
        return self._ready

    async def run(self) -> int:
        """Serve, and give the exit code. Once per driver."""
        self._loop = asyncio.get_running_loop()
        self._end = self._loop.create_future()
        self._jobs = _Jobs(self._job_threads, self._run_job, self._job_done)
        try:
            self._set_ready(True)
            for number in self._signals:
                self._loop.add_signal_handler(number, self.stop, ExitCode.OK, number.name)
            for link in self._links.values():
                self._loop.add_reader(link.fileno(), self._read, link)
                self._schedule(link)
            self._step(self._settle)
            return await self._end
        finally:
            self._close()

    def stop(self, exit_code: int = ExitCode.OK, message: str = "stopped") -> None:
        """End the service in an orderly way. From the loop's thread."""
        if self._end.done():
            return
        self._set_ready(False)
        self.reason = message
        level = logging.INFO if exit_code == ExitCode.OK else logging.ERROR
        self._log.note(level, "stop", {"exit_code": int(exit_code), "reason": message})
        self._end.set_result(int(exit_code))

    def call(self, action: Callable[[int], T]) -> T:
        """Let ``action(now_ns)`` use the machine, then carry out the effects.

        From the loop's thread, while the driver is ready. A ``ProtocolError``
        of the action is the caller's to handle; anything else also ends the
        service as a broken invariant.
        """
        try:
            return action(monotonic_ns())
        except ProtocolError:
            raise
        except Exception as error:
            self._fail(error)
            raise
        finally:
            self._step(self._settle)

    # Entry points of the loop: each is one guarded step.

    def _read(self, link: Link) -> None:
        self._scheduled.discard(link.name)
        self._step(partial(self._drain, link))

    def _on_timer(self) -> None:
        self._timer = None
        self._armed_for = None
        self._step(self._expire)

    def _job_done(self, job_id: int, kind: str, result: object, seconds: float) -> None:
        """In a job's thread."""
        try:
            self._loop.call_soon_threadsafe(
                self._step, partial(self._complete, job_id, kind, result, seconds)
            )
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _step(self, action: Callable[[], None]) -> None:
        """Run one action, then see to the links and the timer."""
        if self._end.done():
            return
        try:
            action()
            for link in self._links.values():
                # Sending and polling may both swallow the descriptor's edge.
                if link.pending():
                    self._schedule(link)
            self._arm()
            if self._log.lost != self._lines_lost:
                self._metrics.count("log_lines_lost_total", (), self._log.lost - self._lines_lost)
                self._lines_lost = self._log.lost
        except Exception as error:
            self._fail(error)

    # Actions.

    def _drain(self, link: Link) -> None:
        for event in link.poll(DRAIN_LIMIT):
            if self._end.done():
                return
            self._feed(link, event)
            self._settle()

    def _feed(self, link: Link, event: LinkEvent) -> None:
        now = monotonic_ns()
        peer = Peer(link.name, event.route)
        match event:
            case Received(frames=frames):
                self._count_message(link.name, "received", frames)
                self._machine.receive(peer, frames, now)
            case Overlong(frame_count=count):
                self._count_drop(link.name, "frame_count")
                self._log.note(
                    logging.DEBUG, "message dropped", {"link": link.name, "frames": count}
                )
            case Up():
                self._metrics.gauge("link_up", (("link", link.name),), 1)
                self._machine.link_up(peer, now)
            case Down():
                self._metrics.gauge("link_up", (("link", link.name),), 0)
                self._machine.link_down(peer, now)
            case Refused(reason=reason):
                self._metrics.count("link_refusals_total", (("link", link.name),))
                self._log.note(
                    logging.WARNING, "link_refused", {"link": link.name, "reason": reason}
                )
            case _:
                assert_never(event)

    def _expire(self) -> None:
        now = monotonic_ns()
        for link in self._links.values():
            wake = link.wake_at()
            if wake is not None and wake <= now:
                self._drain(link)
        deadline = self._machine.next_deadline()
        if deadline is not None and deadline <= now and not self._end.done():
            self._machine.expire(now)
            self._settle()

    def _complete(self, job_id: int, kind: str, result: object, seconds: float) -> None:
        labels = (("job", kind),)
        self._metrics.observe("job_seconds", labels, seconds)
        if isinstance(result, Exception):
            self._metrics.count("jobs_failed_total", labels)
            self._log.note(logging.ERROR, "job failed", {"job": kind}, error=result)
        self._machine.completed(job_id, result, monotonic_ns())
        self._settle()

    # Effects.

    def _settle(self) -> None:
        """Carry out effects until there are none.

        A peer found unreachable is told to the machine once per settling, or a
        machine that answers by sending to it again would keep the loop.
        """
        told: set[Peer] = set()
        while not self._end.done():
            effects = self._machine.effects()
            for effect in effects:
                self._carry_out(effect)
                if self._end.done():
                    return
            gone = [peer for peer in self._unreachable if peer not in told]
            self._unreachable.clear()
            for peer in gone:
                told.add(peer)
                self._machine.link_down(peer, monotonic_ns())
            if not effects and not gone:
                return

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(peer, frames):
                self._send(peer, frames)
            case Run(job_id, job):
                self._jobs.submit(job_id, job)
            case Count(name, labels, value):
                self._metrics.count(name, labels, value)
            case Note(level, event, fields):
                self._log.note(level, event, fields)
            case Stop(exit_code, message):
                self.stop(exit_code, message)
            case _:
                assert_never(effect)

    def _send(self, peer: Peer, frames: Sequence[Buffer]) -> None:
        result = self._links[peer.link].send(peer.route, frames)
        if result is SendResult.SENT:
            self._count_message(peer.link, "sent", frames)
            return
        self._count_drop(peer.link, result.value)
        # A connecting link says Down itself; a listener's peer is known to be
        # gone only by this.
        if result is SendResult.UNREACHABLE and peer.route:
            self._unreachable[peer] = None

    def _count_message(self, link: str, direction: str, frames: Sequence[Buffer]) -> None:
        labels = (("link", link), ("direction", direction))
        size = sum(len(frame) if isinstance(frame, bytes) else frame.nbytes for frame in frames)
        self._metrics.count("link_messages_total", labels)
        self._metrics.count("link_bytes_total", labels, size)

    def _count_drop(self, link: str, reason: str) -> None:
        self._metrics.count("link_dropped_total", (("link", link), ("reason", reason)))

    # The loop's bookkeeping.

    def _schedule(self, link: Link) -> None:
        if link.name not in self._scheduled:
            self._scheduled.add(link.name)
            self._loop.call_soon(self._read, link)

    def _arm(self) -> None:
        wanted = [link.wake_at() for link in self._links.values()]
        wanted.append(self._machine.next_deadline())
        due = min((deadline for deadline in wanted if deadline is not None), default=None)
        if due == self._armed_for:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._armed_for = due
        if due is not None:
            # Up to whole milliseconds, the loop's resolution: a timer that
            # rounds down would fire early over and over.
            delay_ms = max(0, math.ceil((due - monotonic_ns()) / _NS_PER_MS))
            self._timer = self._loop.call_at(self._loop.time() + delay_ms / 1000, self._on_timer)

    def _set_ready(self, ready: bool) -> None:
        self._ready = ready
        self._metrics.gauge("ready", (), int(ready))

    def _fail(self, error: Exception) -> None:
        if self._end.done():
            return
        self._set_ready(False)
        self._log.note(logging.CRITICAL, "invariant broken", {"error": repr(error)}, error=error)
        self._end.set_result(int(ExitCode.INVARIANT))

    def _close(self) -> None:
        self._set_ready(False)
        if self._timer is not None:
            self._timer.cancel()
        for number in self._signals:
            self._loop.remove_signal_handler(number)
        for link in self._links.values():
            self._loop.remove_reader(link.fileno())
        if not self._end.done():  # cancelled
            self._end.cancel()
        self._jobs.close()
        for link in self._links.values():
            link.close()


def run_machine(
    machine: Machine,
    links: Sequence[Link],
    run_job: RunJob,
    *,
    metrics: Metrics,
    log: Log,
    job_threads: int = 1,
) -> int:
    """Serve one machine on a loop of its own (uvloop) and give the exit code.

    An end that the machine asked for with another code than OK is also one
    line on standard error, wherever the log goes.
    """
    driver = Driver(machine, links, run_job, metrics=metrics, log=log, job_threads=job_threads)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        exit_code = runner.run(driver.run())
    if exit_code != ExitCode.OK and driver.reason:
        print(f"pp1: {driver.reason}", file=sys.stderr)
    return exit_code
