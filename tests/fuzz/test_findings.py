"""Defects that fuzzing and reading for it found, each as small as it gets."""

from msgspec.structs import replace

from proto_v2.codec import decode, encode
from proto_v2.errors import Code
from proto_v2.messages import (
    Completion,
    Invalidate,
    Invalidation,
    Nak,
    Ping,
    Ready,
    Reset,
    Rows,
    Step,
)
from tests.support.checks import code_of
from tests.support.doubles import SEED, Bench
from tests.support.wire import Frames, Sent, Wire, change

from .conversation import Stage, Told, script


def test_a_reset_that_is_refused_leaves_the_other_session_of_its_slot_alone() -> None:
    """V-1: what is refused changes the state of no other session."""
    stage = Stage("worker")
    told = script("worker")
    first = next(index for index, one in enumerate(told) if _is(one, Step))
    for one in told[:first]:
        stage.tell(one)
    reset = next(one for one in told if _is(one, Reset))
    received = decode(reset.frames)
    assert isinstance(received.message, Reset)
    stranger = replace(received.message, session_id=bytes(16))  # its digest is another's
    stage.tell(Told("rank0", encode(stranger, received.boot_id, received.link_epoch)))
    _, answer = stage.said[-1]
    assert isinstance(answer, Nak)
    assert answer.code == Code.PREFIX_UNKNOWN
    stage.tell(told[first])
    _, completion = stage.said[-1]
    assert isinstance(completion, Completion)
    assert [entry.status for entry in completion.entries] == [0]


def _is(told: Told, kind: type[object]) -> bool:
    return isinstance(decode(told.frames).message, kind)


def test_an_invalidate_that_is_refused_is_refused_by_its_step() -> None:
    """Rank 0 then ends the round by the code, and not when its patience is over."""

    def elsewhere(message: Invalidate) -> Invalidate:
        (entry,) = message.entries
        return Invalidate(message.step, (Invalidation(bytes(16), 1, entry.reason),))

    def spoil(sent: Sent, message: Rows) -> list[Frames]:
        return [sent.sealed(message, bytes(len(sent.payload or b"")))]

    wire = Wire()
    bench = Bench(intercept=wire)
    wire.when(Rows, spoil, source="worker")
    wire.when(Invalidate, change(elsewhere))
    answer = bench.trio.generate(1, [1], 8, depth=2)
    bench.trio.run(seconds=9)
    assert wire.of(Nak)[0].step == wire.of(Invalidate)[0].step
    assert code_of(answer) is Code.DECISION_MISMATCH


def test_a_worker_that_refuses_every_reset_is_not_asked_without_end() -> None:
    """A whole prefix has no base that could be unknown."""

    def refuse(sent: Sent, message: Ready) -> list[Frames]:
        nak = Nak(int(Code.PREFIX_UNKNOWN), "base_digest", "", "", 0, message.session_id)
        return [sent.sealed(nak)]

    wire = Wire()
    bench = Bench(intercept=wire)
    wire.when(Ready, refuse, times=100)
    bench.trio.generate(1, [1], 4, depth=2)
    bench.trio.run()
    assert len(wire.of(Reset)) <= 8


def test_a_client_message_without_a_key_ends_no_request() -> None:
    """W-8: no field has a placeholder, and 0 is a key like any other."""
    bench = Bench()
    answer = bench.trio.generate(0, [1], 8, depth=2, seed=SEED)
    bench.trio.run(messages=8)
    bench.trio.from_client(Ping(1))
    bench.trio.run()
    assert len(answer.tokens) == 8
    assert answer.failed is None
    assert [nak.code for nak in bench.trio.client_naks] == [Code.KIND_UNEXPECTED]
