"""Worker, rank 0 and rank 1 in one process, over in-memory links and virtual time.

The machines are the product's own; only sockets, clocks, threads and entropy
are replaced. Messages of one direction stay in order. ``intercept`` sees every
message before it is delivered and may drop, change, repeat or hold it; the
engine jobs of a node in ``busy`` wait until ``finish_jobs``.

Every run checks one rule by itself: when a client is shown tokens, both ranks
have committed exactly the text that the client then has.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from proto_v2 import limits
from proto_v2.codec import Received, decode, encode
from proto_v2.effects import Buffer, Count, Effect, Machine, Note, Peer, Run, Send, Stop
from proto_v2.messages import (
    Abort,
    AnyMessage,
    Failed,
    Finished,
    Generate,
    Hello,
    Info,
    Nak,
    Role,
    Tokens,
    tokens_from_bytes,
    tokens_to_bytes,
)
from proto_v2.negotiate import build_hello
from proto_v2.peerlink import LinkTiming
from proto_v2.representation import Representation
from proto_v2.rng import KeyedTickets, TicketSource
from spark_rank.breaker import Breaker
from spark_rank.clients import Identity
from spark_rank.engine import TargetEngine
from spark_rank.follower import RankOneMachine
from spark_rank.jobs import CommitTarget, EngineRunner
from spark_rank.machine import RankZeroMachine, Timing
from worker.engine import DraftEngine
from worker.machine import WorkerMachine
from worker.proposal import execute

MS = 1_000_000
CLIENT = Peer("requests", b"client")
# (source, destination, frames) -> the messages to deliver in its place.
Intercept = Callable[[str, str, tuple[Buffer, ...]], list[tuple[Buffer, ...]]]
# A node's hello as it would be, to the hello that it sends.
ChangeHello = Callable[[Hello], Hello]

# Which link of which node leads to which node, and under which peer it is seen there.
_ROUTES = {
    ("rank0", "worker"): ("worker", Peer("leader", b"rank0")),
    ("worker", "leader"): ("rank0", Peer("worker")),
    ("rank0", "pair"): ("rank1", Peer("pair", b"rank0")),
    ("rank1", "pair"): ("rank0", Peer("pair")),
}

TIMING = Timing(
    link=LinkTiming(hello_retry_ns=50 * MS, ping_every_ns=1_000 * MS, silence_max_ns=5_000 * MS),
    step_ns=1_000 * MS,
    retry_ns=200 * MS,
    pair_ns=2_000 * MS,
    target_ns=4_000 * MS,
    pair_connect_ns=3_000 * MS,
)


@dataclass
class Answer:
    """What a client has been told about one request."""

    tokens: list[int] = field(default_factory=list)
    rounds: list[Tokens] = field(default_factory=list)
    finished: Finished | None = None
    failed: Failed | None = None


class Entropy:
    """Deterministic bytes: the same seed gives the same session ids and nonces."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._count = 0

    def __call__(self, count: int) -> bytes:
        self._count += 1
        message = f"{self._seed}/{self._count}".encode()
        return blake2b(message, digest_size=count).digest()


class Trio:
    """The three machines and one client. ``run`` delivers until nothing is left to do."""

    def __init__(
        self,
        draft: DraftEngine,
        targets: tuple[TargetEngine, TargetEngine],
        *,
        seed: int = 0,
        intercept: Intercept | None = None,
        make_tickets: Callable[[bytes], TicketSource] = KeyedTickets,
        mass_bits: int = limits.MASS_BITS,
        target_bits: int = limits.TARGET_BITS,
        breaker: Breaker | None = None,
        timing: Timing = TIMING,
        representations: Sequence[Representation] = tuple(Representation),
        hellos: Mapping[str, ChangeHello] | None = None,
    ) -> None:
        self.now = 1
        self.intercept = intercept or (lambda source, destination, frames: [frames])
        self.counts: dict[tuple[str, str, tuple[tuple[str, str], ...]], int] = {}
        self.notes: list[tuple[str, str, dict[str, object]]] = []
        self.stopped: dict[str, Stop] = {}
        self.answers: dict[int, Answer] = {}
        self.infos: list[Info] = []
        self.client_naks: list[Nak] = []
        self.busy: set[str] = set()
        self.committed: dict[str, dict[bytes, list[int]]] = {"rank0": {}, "rank1": {}}
        self._waiting_jobs: dict[str, deque[Run]] = {}
        self._hellos = dict(hellos or {})
        self.entropy = Entropy(seed)
        self.draft = draft
        self.runners = {
            "rank0": EngineRunner(targets[0], target_bits),
            "rank1": EngineRunner(targets[1], target_bits),
        }
        self._targets = targets
        self._make_tickets = make_tickets
        self._mass_bits = mass_bits
        self._representations = representations
        self._timing = timing
        self._queue: deque[tuple[str, Peer, tuple[Buffer, ...]]] = deque()
        self._down: set[str] = set()
        self._routes = dict(_ROUTES)
        self.machines: dict[str, Machine] = {}
        self.rank0 = self._make_rank0(breaker)
        self.machines["rank0"] = self.rank0
        self.start_worker()
        self.start_rank1()
        self.connect("worker")
        self.connect("pair")
        self.run()

    # --- parts ---

    def _hello(self, name: str, role: Role) -> Callable[[], Hello]:
        draft, target = self.draft.identity(), self._targets[0].identity()

        def make() -> Hello:
            hello = build_hello(
                role,
                self.entropy(limits.ID_BYTES),
                target.vocabulary,
                draft_checkpoint=draft.checkpoint,
                draft_native=draft.native,
                target_checkpoint=target.checkpoint,
                processors=target.processors,
                representations=self._representations,
                mass_bits=self._mass_bits,
            )
            change = self._hellos.get(name)
            return hello if change is None else change(hello)

        return make

    def hello(self, name: str, role: Role) -> Hello:
        """A fresh hello as the named machine would say it."""
        return self._hello(name, role)()

    def _make_rank0(self, breaker: Breaker | None) -> RankZeroMachine:
        target = self._targets[0].identity()
        return RankZeroMachine(
            boot_id=self.entropy(limits.ID_BYTES),
            make_hello=self._hello("rank0", Role.RANK_ZERO),
            make_staging=_heap_slots,
            entropy=self.entropy,
            identity=Identity(
                target_checkpoint=target.checkpoint,
                processors=target.processors,
                vocabulary=target.vocabulary,
                context_tokens_max=target.context_tokens_max,
                stop_tokens=target.stop_tokens,
                requests_max=limits.REQUESTS_MAX,
            ),
            timing=self._timing,
            start_ns=self.now,
            breaker=breaker,
            make_tickets=self._make_tickets,
            mass_bits=self._mass_bits,
        )

    def kill(self, name: str) -> None:
        """The process is gone: it takes nothing and says nothing any more."""
        self.machines.pop(name)
        self._waiting_jobs.pop(name, None)

    def start_worker(self) -> None:
        """A fresh worker process: another boot id, no memory."""
        self.worker = WorkerMachine(
            boot_id=self.entropy(limits.ID_BYTES),
            make_hello=self._hello("worker", Role.WORKER),
            timing=self._timing.link,
            tickets=self._make_tickets,
        )
        self.machines["worker"] = self.worker

    def start_rank1(self) -> None:
        """A fresh rank 1 process."""
        target = self._targets[1].identity()
        self.rank1 = RankOneMachine(
            boot_id=self.entropy(limits.ID_BYTES),
            make_hello=self._hello("rank1", Role.RANK_ONE),
            make_staging=_heap_slots,
            context_tokens_max=target.context_tokens_max,
            timing=self._timing.link,
            make_tickets=self._make_tickets,
            mass_bits=self._mass_bits,
        )
        self.machines["rank1"] = self.rank1

    # --- links ---

    def connect(self, link: str) -> None:
        """Rank 0's connection ``worker`` or ``pair`` comes up."""
        self._down.discard(link)
        self.rank0.link_up(Peer(link), self.now)
        self._settle("rank0")

    def disconnect(self, link: str) -> None:
        """Rank 0's connection goes down; what is under way on it is lost."""
        self._down.add(link)
        other = {"worker": "worker", "pair": "rank1"}[link]
        self._queue = deque(
            item for item in self._queue if not self._on_link(item[0], item[1], link, other)
        )
        self.rank0.link_down(Peer(link), self.now)
        self._settle("rank0")

    def reroute(self, link: str, route: bytes) -> None:
        """Rank 0's next connection is another one to the listener, which keeps the old."""
        node, peer = self._routes["rank0", link]
        self._routes["rank0", link] = (node, Peer(peer.link, route))

    @staticmethod
    def _on_link(destination: str, peer: Peer, link: str, other: str) -> bool:
        return destination == other or (destination == "rank0" and peer.link == link)

    # --- client ---

    def generate(
        self, key: int, prompt: Sequence[int], tokens_max: int, **params: object
    ) -> Answer:
        """Send one request; its answers collect in the returned object."""
        fields: dict[str, object] = {
            "temperature": 1.0,
            "draft_temperature": 1.0,
            "seed": b"",
            "stop_tokens": (),
            "depth": 2,
            "representation": int(Representation.SPARSE_F32),
            "support": 0,
            **params,
        }
        message = Generate(
            key=key,
            prompt=tokens_to_bytes(prompt),
            tokens_max=tokens_max,
            **fields,  # type: ignore[arg-type]
        )
        self.answers[key] = Answer()
        self.from_client(message)
        return self.answers[key]

    def abort(self, key: int) -> None:
        """The client gives a request up."""
        self.from_client(Abort(key))

    def from_client(self, message: AnyMessage) -> None:
        """Deliver one client message now."""
        self._deliver("rank0", CLIENT, encode(message, bytes(16), 0))

    # --- the loop ---

    def run(self, *, seconds: float = 0.0, messages: int = 1_000_000) -> None:
        """Deliver queued messages, at most ``messages``; then let virtual time pass."""
        end = self.now + int(seconds * 1e9)
        for _ in range(1_000_000):
            if self._queue:
                if messages == 0:
                    return
                messages -= 1
                destination, peer, frames = self._queue.popleft()
                self._deliver(destination, peer, frames)
                continue
            due = min(
                (at for m in self.machines.values() if (at := m.next_deadline()) is not None),
                default=end + 1,
            )
            if due > end:
                self.now = max(self.now, end)
                return
            self.now = max(self.now, due)
            for name, machine in list(self.machines.items()):
                at = machine.next_deadline()
                if at is not None and at <= self.now:
                    machine.expire(self.now)
                    self._settle(name)
        raise AssertionError("the machines do not come to rest")

    def _deliver(self, destination: str, peer: Peer, frames: tuple[Buffer, ...]) -> None:
        machine = self.machines.get(destination)
        if machine is not None:
            self.now += 1_000
            machine.receive(peer, [memoryview(frame) for frame in frames], self.now)
            self._settle(destination)

    def settle(self, name: str) -> None:
        """Carry out effects that a test caused by calling a machine itself."""
        self._settle(name)

    def _settle(self, name: str) -> None:
        machine = self.machines[name]
        while effects := machine.effects():
            for effect in effects:
                self._carry_out(name, machine, effect)

    def _carry_out(self, name: str, machine: Machine, effect: Effect) -> None:
        if isinstance(effect, Send):
            self._send(name, effect)
        elif isinstance(effect, Run):
            if isinstance(effect.job, CommitTarget):
                text = self.committed[name].setdefault(effect.job.session_id, [])
                text += effect.job.tokens
            waiting = self._waiting_jobs.setdefault(name, deque())
            if name in self.busy or waiting:
                waiting.append(effect)  # one engine thread: jobs stay in order
            else:
                self._run_job(name, machine, effect)
        elif isinstance(effect, Count):
            key = (name, effect.name, effect.labels)
            self.counts[key] = self.counts.get(key, 0) + effect.value
        elif isinstance(effect, Note):
            self.notes.append((name, effect.event, dict(effect.fields)))
        else:
            self.stopped[name] = effect

    def _run_job(self, name: str, machine: Machine, run: Run) -> None:
        result: object
        try:
            if name == "worker":
                result = execute(self.draft, run.job, self._mass_bits)
            else:
                result = self.runners[name].run(run.job)
        except Exception as error:
            result = error
        machine.completed(run.job_id, result, self.now)

    def finish_jobs(self, name: str) -> None:
        """The engine of a busy node gets through what is waiting."""
        self.busy.discard(name)
        machine, waiting = self.machines[name], self._waiting_jobs[name]
        while waiting:
            run = waiting.popleft()
            self._run_job(name, machine, run)
            self._settle(name)

    def _send(self, name: str, effect: Send) -> None:
        if name == "rank0" and effect.peer == CLIENT:
            self._to_client(decode(effect.frames))
            return
        destination, peer = self._routes[name, effect.peer.link]
        link = effect.peer.link if name == "rank0" else {"worker": "worker", "rank1": "pair"}[name]
        if link in self._down:
            return
        if name != "rank0" and effect.peer != self._routes["rank0", link][1]:
            return  # to a connection that is gone
        frozen = tuple(bytes(frame) for frame in effect.frames)
        for frames in self.intercept(name, destination, frozen):
            self._queue.append((destination, peer, frames))

    def inject(self, source: str, destination: str, frames: tuple[Buffer, ...]) -> None:
        """Queue a message as if ``source`` had sent it."""
        link = {"worker": "leader", "rank1": "pair", "rank0": "worker"}[source]
        if source == "rank0" and destination == "rank1":
            link = "pair"
        _, peer = self._routes[source, link]
        self._queue.append((destination, peer, frames))

    def _to_client(self, received: Received) -> None:
        message = received.message
        if isinstance(message, Info):
            self.infos.append(message)
            return
        if isinstance(message, Nak):
            self.client_naks.append(message)
            return
        assert isinstance(message, (Tokens, Finished, Failed))
        answer = self.answers.setdefault(message.key, Answer())
        if isinstance(message, Tokens):
            assert message.index == len(answer.tokens), "no token is lost or doubled"
            answer.tokens += tokens_from_bytes(message.tokens, "tokens")
            for rank, texts in self.committed.items():
                assert answer.tokens in texts.values(), f"shown before {rank} committed it"
            answer.rounds.append(message)
        elif isinstance(message, Finished):
            answer.finished = message
        else:
            answer.failed = message

    # --- what tests ask ---

    def count(self, name: str, metric: str, **labels: str) -> int:
        """Total of a counter of one machine, over the series that have these labels."""
        return sum(
            value
            for (machine, series, found), value in self.counts.items()
            if machine == name and series == metric and labels.items() <= dict(found).items()
        )

    def check_rest(self) -> None:
        """Nothing is held when nothing is going on."""
        for machine in (self.rank0, self.rank1):
            assert machine.slots.free() == len(machine.slots), "every slot is free"
        assert not self.rank0.actives
        assert not self.rank1.requests
        assert not self.worker.sessions
        assert not any(self._waiting_jobs.values())


def _heap_slots(terms: object) -> Callable[[int], memoryview]:
    slots = [bytearray(terms.slot_bytes) for _ in range(terms.slots)]  # type: ignore[attr-defined]
    return lambda index: memoryview(slots[index])
