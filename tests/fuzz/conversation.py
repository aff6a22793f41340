"""The machine targets: edits of a recorded conversation, told to one machine.

A conversation of two requests is recorded once between worker, rank 0 and rank
1; one proposal of it is spoiled under way, so that a generation ends and
another begins. What one of the three was told is then told again, with edits,
to a fresh machine whose peers cannot hear it. Whatever it was told,

- no exception leaves it,
- what it holds stays within the bounds, and its engine holds no more than it does,
- edits that are not valid (bytes that do not decode; messages that are refused;
  anything said on another connection) change nothing that it says to its peers and clients,
- fresh peers on fresh connections then get the text that the seed gives, and
  after that no slot, request or session is held anywhere.
"""

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from typing import Final, TypeVar

import msgspec

from proto_v2 import limits
from proto_v2.codec import Received, decode, encode
from proto_v2.effects import Peer
from proto_v2.errors import ProtocolError
from proto_v2.messages import (
    AnyMessage,
    Commit,
    Decide,
    Decision,
    Failed,
    Hello,
    Invalidate,
    Nak,
    Prepare,
    Refuse,
    Reset,
    TermsAgreed,
)
from spark_rank.breaker import Breaker, BreakerState
from spark_rank.engines.markov import MarkovTarget
from tests.proto_samples import plain
from tests.support.doubles import DENSE, SEED, V
from tests.support.trio import CLIENT, Trio
from tests.support.wire import Frames
from worker.engines.markov import MarkovDraft

from .fields import at, other, places, put
from .frames import repaired, split
from .parsers import operations, patch

MACHINES: Final = ("worker", "rank0", "rank1")
OPERATIONS: Final = 15
EDITS_MOST: Final = 16
EVENTS_MOST: Final = 128
# More than any table needs here, texts included, and far less than there are inputs.
TABLE_MOST: Final = 512
_PRODUCT: Final = ("proto_v2.", "worker.", "spark_rank.")
_HANDSHAKE: Final = 2  # events of it at the start of the worker's and rank 1's recording
_SECONDS: Final = (0.06, 0.25, 0.6, 1.1, 2.1, 4.1, 6.0, 11.0)
# What a peer is told about its own faults, and so may be told more often.
_COMPLAINTS: Final = (Nak, Refuse, Failed)
# Refusing one of these may cost what it is about: a link, a generation, a step. A Commit
# may be refused in part.
_COSTLY: Final = (
    *(Hello, TermsAgreed, Refuse, Nak, Reset, Commit),
    *(Prepare, Invalidate, Decide, Decision),
)
# The link of rank 0 that leads to a machine, and of that machine's own.
_LINKS: Final = {"worker": "worker", "rank1": "pair"}
_STRANGERS: Final = {
    "worker": Peer("leader", b"stranger"),
    "rank1": Peer("pair", b"stranger"),
}

_DRAFT: Final = MarkovDraft(V)
_TARGET: Final = MarkovTarget(V)
Engine = TypeVar("Engine", MarkovDraft, MarkovTarget)


def _fresh(engine: Engine) -> Engine:
    """The same engine without sessions; its law takes longer to make than an input to run."""
    made = copy(engine)
    made._sessions = type(engine._sessions)()
    return made


@dataclass(frozen=True)
class Told:
    """One message to the machine, and who says it.

    ``extra`` is one that was not recorded: where it is refused, nothing comes of it.
    """

    source: str
    frames: Frames
    extra: bool = False


def table_sizes(root: object) -> Iterator[int]:
    """The length of every table, queue and list that a machine holds on to."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            yield len(value)
            stack += [*value, *value.values()]
        elif isinstance(value, (list, tuple, set, deque)):
            yield len(value)
            stack += value
        elif type(value).__module__.startswith(_PRODUCT):
            names = {
                name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())
            }
            stack += [getattr(value, name) for name in names if hasattr(value, name)]
            stack += getattr(value, "__dict__", {}).values()


Event = Told | Callable[["Stage"], None]


def _nonces(name: str) -> Callable[[Hello], Hello]:
    """Nonces by count of one node, whatever the others do, so that a recording fits again."""
    count = 0

    def change(hello: Hello) -> Hello:
        nonlocal count
        count += 1
        nonce = blake2b(f"{name}/{count}".encode(), digest_size=limits.ID_BYTES).digest()
        return msgspec.structs.replace(hello, nonce=nonce)

    return change


class Stage(Trio):
    """Three machines, of which ``alone`` is cut off: what it says is noted, not delivered.

    Without one that is alone it notes what everybody is told.
    """

    def __init__(self, alone: str = "") -> None:
        self.alone = alone
        self.told: list[tuple[str, Told]] = []
        self.said: list[tuple[str, AnyMessage]] = []
        self.spoilt: set[int] = set()
        self.breaker = Breaker()
        self.drafter, self.targets = _fresh(_DRAFT), (_fresh(_TARGET), _fresh(_TARGET))
        super().__init__(
            self.drafter,
            self.targets,
            intercept=self._carry,
            hellos={name: _nonces(name) for name in MACHINES},
            breaker=self.breaker,
        )

    def _carry(self, source: str, destination: str, frames: Frames) -> list[Frames]:
        if self.alone:
            if source == self.alone:
                self.said.append((destination, decode(frames).message))
            return []
        if len(self.told) in self.spoilt:
            frames = (*frames[:-1], bytes(len(frames[-1])))
        self.told.append((destination, Told(source, frames)))
        return [frames]

    def from_client(self, message: AnyMessage) -> None:
        if not self.alone:
            frames = encode(message, bytes(limits.ID_BYTES), 0)
            self.told.append(("rank0", Told("client", frames)))
        super().from_client(message)

    def _to_client(self, received: Received) -> None:
        if self.alone:
            self.said.append(("client", received.message))
        else:
            super()._to_client(received)

    # --- what the machine that is alone is told ---

    def tell(self, told: Told) -> None:
        """One message on the connections of the recording."""
        if told.source == "client":
            self._deliver("rank0", CLIENT, told.frames)
        else:
            self.inject(told.source, self.alone, told.frames)
        self.run()

    def only_complained(self, before: int) -> bool:
        """Whether what it said since then is that it refuses something."""
        new = self.said[before:]
        return bool(new) and all(isinstance(message, _COMPLAINTS) for _, message in new)

    def tell_as_stranger(self, frames: Frames) -> None:
        """One message on a connection of its own."""
        self._deliver(self.alone, _STRANGERS[self.alone], frames)

    def let_pass(self, seconds: float) -> None:
        """Time passes, and nothing is said."""
        self.run(seconds=seconds)

    def break_off(self, choice: int) -> None:
        """A connection is lost, and for rank 0 stands again."""
        if self.alone == "rank0":
            link = ("worker", "pair")[choice % 2]
            self.disconnect(link)
            self.connect(link)
        else:
            self._lose(self._recorded_peer())

    def hold_jobs(self) -> None:
        """Its engine takes its time from here on."""
        self.busy.add(self.alone)

    def finish(self) -> None:
        """Its engine gets through what is waiting."""
        self.busy.clear()
        if self._waiting_jobs.get(self.alone):
            self.finish_jobs(self.alone)

    def _recorded_peer(self) -> Peer:
        _, peer = self._routes["rank0", _LINKS[self.alone]]
        return peer

    def _lose(self, peer: Peer) -> None:
        self.machines[self.alone].link_down(peer, self.now)
        self.settle(self.alone)

    # --- what must hold, whatever it was told ---

    def check_bounds(self) -> None:
        """No table or queue is longer than its bound, and no job is forgotten."""
        assert not any(self._waiting_jobs.values())
        for machine in (self.worker, self.rank0, self.rank1):
            assert not machine._jobs
            assert not machine.effects()
            assert max(table_sizes(machine)) <= TABLE_MOST
        drafter, first, second = (len(e._sessions) for e in (self.drafter, *self.targets))
        assert drafter == self.worker.sessions <= 2 * limits.REQUESTS_MAX
        assert first <= len(self.rank0.actives) <= limits.REQUESTS_MAX
        assert second == len(self.rank1.requests) <= limits.REQUESTS_MAX
        assert len(self.rank1.candidates) <= 2, "no more than there are connections"

    def serve_afresh(self) -> None:
        """Fresh peers on fresh connections are served, and the text is the seed's."""
        if self.alone == "rank0":
            self.start_worker()
            self.start_rank1()
        else:
            self._lose(self._recorded_peer())
            self._lose(_STRANGERS[self.alone])
            self.reroute(_LINKS[self.alone], b"fresh")
        self.alone = ""
        self.connect("worker")
        self.connect("pair")
        self.run()
        # An open breaker is state of the service: it costs drafts, and so other draws.
        greedy = self.breaker.state is BreakerState.OPEN
        answer = self.ask(greedy)
        assert answer == _expected(greedy), "the text of the seed"
        self.check_rest()
        self.check_bounds()

    def ask(self, greedy: bool) -> list[int]:
        """The text of a request that is always the same."""
        temperature = 0.0 if greedy else 1.0
        answer = self.generate(1000, [5], 3, depth=2, seed=SEED, temperature=temperature)
        self.run()
        assert answer.failed is None, answer.failed
        assert answer.finished is not None, "served"
        assert greedy or answer.finished.drafted > 0, "with drafts"
        return answer.tokens


@cache
def _expected(greedy: bool) -> list[int]:
    return Stage().ask(greedy)


@cache
def recording() -> tuple[tuple[str, Told], ...]:
    """Everything that was told in the conversation, and to whom, in order."""

    def converse(spoilt: set[int]) -> Stage:
        stage = Stage()
        stage.spoilt = spoilt
        stage.generate(1, [1, 2], 4, depth=2, seed=SEED)
        stage.generate(2, [3], 3, depth=1, seed=SEED, representation=DENSE)
        stage.run()
        assert all(answer.finished for answer in stage.answers.values())
        stage.check_rest()
        return stage

    whole = [told.frames for _, told in converse(set()).told]
    payloads = [index for index, frames in enumerate(whole) if len(frames) == limits.FRAMES_MAX]
    return tuple(converse({payloads[0]}).told)


@cache
def script(name: str) -> tuple[Told, ...]:
    """What one machine was told."""
    return tuple(told for destination, told in recording() if destination == name)


@cache
def _undisturbed(name: str) -> list[tuple[str, AnyMessage]]:
    stage = Stage(name)
    for told in script(name):
        stage.tell(told)
    said = _without_complaints(stage)
    assert not any(isinstance(message, _COMPLAINTS) for _, message in stage.said)
    stage.serve_afresh()
    return said


def _without_complaints(stage: Stage) -> list[tuple[str, AnyMessage]]:
    return [(to, message) for to, message in stage.said if not isinstance(message, _COMPLAINTS)]


def _message(frames: Frames) -> AnyMessage | None:
    try:
        return decode(frames).message
    except ProtocolError:
        return None


def _patched(frames: Frames, where: int, blob: bytes) -> Frames:
    """The blob written over one frame; its first byte says which, and adds 256 to ``where``."""
    if not blob:
        return frames
    index = blob[0] % len(frames)
    changed = patch(bytes(frames[index]), where + 2 * (blob[0] & 128), blob[1:])
    return (*frames[:index], changed, *frames[index + 1 :])


def _field(frames: Frames, where: int, blob: bytes) -> Frames:
    """Another value in one place of the body, as its sender would seal it."""
    value = plain(decode(frames).message)
    spots = places(value)
    spot = spots[where % len(spots)]
    choice = blob[0] if blob else 0
    body = msgspec.msgpack.encode(put(value, spot, other(at(value, spot), choice, blob[1:])))
    return tuple(repaired((frames[0], body, *frames[2:])))


class _Script:
    """The events to come, and whether every edit of them was one that cannot be valid."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Event] = list(script(name))
        self.harmless = True

    def edit(self, operation: int, which: int, where: int, blob: bytes) -> None:
        """Apply one edit; one about a message has no effect where there is none."""
        events = self.events
        place = where % (len(events) + 1)
        match operation % OPERATIONS:
            case 9:
                seconds = _SECONDS[which % len(_SECONDS)]
                self._insert(place, lambda stage: stage.let_pass(seconds))
                return
            case 10:
                self._insert(place, lambda stage: stage.break_off(which))
                return
            case 11:
                self._insert(place, Stage.finish if which & 1 else Stage.hold_jobs)
                return
        if not events:
            return
        index = which % len(events)
        event = events[index]
        if not isinstance(event, Told):
            return
        source, frames = event.source, event.frames
        match operation % OPERATIONS:
            case 0:
                del events[index]
                self.harmless = False
            case 1:
                self._insert(place, event)
            case 2:
                place %= len(events)
                events[index], events[place] = events[place], event
                self.harmless = False
            case 3:
                events[index] = Told(source, _patched(frames, where, blob))
                self.harmless = False
            case 4:
                events[index] = Told(source, tuple(repaired(_patched(frames, where, blob))))
                self.harmless = False
            case 5 if _message(frames) is not None:
                events[index] = Told(source, _field(frames, where, blob))
                self.harmless = False
            case 6:
                self._insert(place, Told(source, tuple(map(bytes, split(blob)))))
            case 7:
                kind = blob[1] if len(blob) > 1 else 0
                self._insert(place, Told(source, tuple(repaired((frames[0], blob), kind))))
            case 8 if self.name in _STRANGERS:
                said = _patched(frames, where, blob)
                place = max(place, _HANDSHAKE)  # before it, one more hello changes the nonces
                events.insert(place, lambda stage: stage.tell_as_stranger(said))
            case 12:
                self._insert(place, Told(source, _patched(frames, where, blob)))
            case 13:
                told = recording()[(which + 256 * (blob[0] & 1 if blob else 0)) % len(recording())]
                _, foreign = told
                header, body, *rest = foreign.frames
                kind = bytes(header)[5]
                self._insert(place, Told(source, tuple(repaired((frames[0], body, *rest), kind))))
            case 14 if _message(frames) is not None:
                self._insert(index + (which > 127), Told(source, _field(frames, where, blob)))

    def _insert(self, place: int, event: Event) -> None:
        if isinstance(event, Told):
            message = _message(event.frames)
            event = replace(event, extra=message is not None)
            self.harmless &= not isinstance(message, _COSTLY)
        else:
            self.harmless = False
        self.events.insert(place, event)


def machine(name: str, data: bytes) -> None:
    """Tell one machine the recording with the edits of the input, and check everything."""
    edits = _Script(name)
    for operation, which, where, blob in list(operations(data[:4096]))[:EDITS_MOST]:
        edits.edit(operation, which, where, blob)
    stage = Stage(name)
    harmless = edits.harmless
    for event in edits.events[:EVENTS_MOST]:
        before = len(stage.said)
        if isinstance(event, Told):
            stage.tell(event)
            if event.extra:
                harmless &= stage.only_complained(before)
        else:
            event(stage)
    stage.finish()
    stage.check_bounds()
    if harmless:
        assert _without_complaints(stage) == _undisturbed(name), "nothing valid was lost"
    stage.serve_afresh()


def edit(operation: int, which: int, where: int = 0, blob: bytes = b"") -> bytes:
    """One edit as input."""
    return bytes([operation, which, where, len(blob)]) + blob
