"""The targets without an engine: kept inputs, mutations, and that each can fail."""

import gc
import importlib.util
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from proto_v2 import codec, envelope, limits, negotiate
from proto_v2.codec import decode
from proto_v2.effects import Buffer, Machine
from proto_v2.errors import ProtocolError
from proto_v2.messages import TermsAgreed
from proto_v2.negotiate import Handshake
from proto_v2.peerlink import PeerLink
from proto_v2.slots import SlotTable
from spark_rank.follower import RankOneMachine
from spark_rank.machine import RankZeroMachine
from tests import proto_samples as samples
from worker.machine import WorkerMachine

from . import conversation, parsers
from .conversation import edit
from .frames import join
from .run import ROOT, Result, fuzz
from .targets import CORPUS, TARGETS, name_of

SEED = 20
names = pytest.mark.parametrize("name", TARGETS)


def native(random: Random) -> Callable[[bytes, int], bytes]:
    """A stand-in for the engine's own mutation."""

    def mutate(data: bytes, most: int) -> bytes:
        changed = bytearray(data or b"\0")
        for _ in range(random.randint(1, 3)):
            place = random.randrange(len(changed))
            match random.randrange(4):
                case 0:
                    changed[place] ^= 1 << random.randrange(8)
                case 1:
                    changed[place] = random.choice((0, 1, 127, 128, 255))
                case 2:
                    changed.insert(place, random.randrange(256))
                case 3 if len(changed) > 1:
                    del changed[place]
        return bytes(changed[:most])

    return mutate


def mutated(name: str, count: int) -> list[bytes]:
    """Inputs as the engine would make them, each from an earlier one."""
    random = Random(SEED)
    target = TARGETS[name]
    mutate = target.mutate(native(random))
    found = list(target.seeds())
    for _ in range(count):
        found.append(mutate(random.choice(found), target.most_bytes, random.getrandbits(32)))
    return found[-count:]


@names
def test_every_kept_input_runs(name: str) -> None:
    target = TARGETS[name]
    for data in target.inputs(name):
        target.run(data)


def test_kept_inputs_are_small_and_named_by_their_hash() -> None:
    paths = [path for path in CORPUS.rglob("*") if path.is_file()]
    assert paths
    for path in paths:
        data = path.read_bytes()
        assert path.parent.name in TARGETS
        assert path.name == name_of(data)
        assert len(data) <= TARGETS[path.parent.name].most_bytes


@names
def test_mutated_inputs_run_and_keep_to_the_limit(name: str) -> None:
    print(f"seed {SEED}")
    target = TARGETS[name]
    for data in mutated(name, 60 if name in conversation.MACHINES else 1000):
        assert len(data) <= target.most_bytes
        target.run(data)


def growth(run: Callable[[bytes], None], inputs: Sequence[bytes]) -> float:
    """Bytes that a run leaves behind, once the libraries have filled their caches."""

    def held(rounds: int) -> int:
        for _ in range(rounds):
            for data in inputs:
                run(data)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        return (-held(6) + held(6)) / (6 * len(inputs))
    finally:
        tracemalloc.stop()


@names
def test_memory_stays_flat(name: str) -> None:
    assert growth(TARGETS[name].run, mutated(name, 20)) < 200


# --- each target can fail --------------------------------------------------------------------


def fails(name: str, *inputs: bytes) -> bool:
    """Whether a target finds something in one of these inputs, or in its seeds."""
    target = TARGETS[name]
    for data in inputs or target.seeds():
        try:
            target.run(data)
        except Exception:
            return True
    return False


@pytest.mark.parametrize("name", ["envelope", "codec"])
def test_a_foreign_exception_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(frame: Buffer) -> envelope.Header:
        raise IndexError

    assert not fails(name)
    monkeypatch.setattr(envelope, "read_header", broken)
    assert fails(name)


def test_a_second_form_of_a_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lax(frames: Sequence[Buffer]) -> codec.Received:
        header, body, payload = envelope.unseal(frames)
        message = codec._DECODER.decode(body)
        return codec.Received(header.boot_id, header.link_epoch, message, payload)

    query = join(samples.seal_body(40, b"\xdc\x00\x01\x28"))  # an array of one, not the shortest
    assert not fails("codec", query)
    monkeypatch.setattr(parsers, "decode", lax)
    assert fails("codec", query)


def test_a_q_of_another_mass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    half = bytes([1, 0, 3, 0]) + (3).to_bytes(4, "little") + b"\0\0\0\x3f"
    assert not fails("rows", half)
    monkeypatch.setattr(limits, "MASS", limits.MASS // 2)
    assert fails("rows")


def test_a_slot_that_does_not_return_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not fails("proposal")
    monkeypatch.setattr(SlotTable, "retire", lambda self, lease: None)
    assert fails("proposal")


def test_a_digest_that_is_not_compared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(self: Handshake, theirs: TermsAgreed) -> list[negotiate.Answer]:
        self.agreed = self._pending
        return []

    assert not fails("negotiation")
    monkeypatch.setattr(Handshake, "on_terms", trusting)
    assert fails("negotiation")


GARBAGE, STRANGER, CORRUPT = 6, 8, 12


@pytest.mark.parametrize("name", conversation.MACHINES)
@pytest.mark.parametrize("operation", [GARBAGE, STRANGER, CORRUPT])
def test_an_edit_that_ends_the_agreement_is_found(
    name: str, operation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage that costs the link, and a stranger that costs everybody theirs."""
    if name == "rank0" and operation == STRANGER:
        pytest.skip("rank 0 calls; nobody connects to it but clients")
    place = 8 if name == "rank0" else 4  # a message of worker or rank, after the handshake
    data = edit(operation, place, place, b"" if operation == STRANGER else b"\1\xff")
    assert not fails(name, data)
    honest = PeerLink.receive
    links = []

    def fragile(self: PeerLink, frames: Sequence[Buffer], now_ns: int) -> Any:
        links.append(self)
        try:
            decode(frames)
        except ProtocolError:
            self.down()
        if self.peer.route == b"stranger":
            for link in links:
                link.down()
        return honest(self, frames, now_ns)

    monkeypatch.setattr(PeerLink, "receive", fragile)
    assert fails(name, data)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("worker", WorkerMachine), ("rank0", RankZeroMachine), ("rank1", RankOneMachine)],
)
def test_a_job_that_is_forgotten_is_found(
    name: str, kind: type[Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "completed", lambda self, job_id, result, now_ns: None)
    assert fails(name, b"")


def test_memory_that_grows_is_found() -> None:
    kept = []

    def hoard(data: bytes) -> None:
        kept.append(bytes(300))
        parsers.envelope(data)

    assert growth(hoard, mutated("envelope", 20)) > 300


def test_a_table_that_grows_is_seen() -> None:
    sizes = list(conversation.table_sizes(["x"] * (conversation.TABLE_MOST + 1)))
    assert max(sizes) > conversation.TABLE_MOST


# --- the runner ------------------------------------------------------------------------------


def test_the_figures_of_a_run_are_read() -> None:
    result = Result("codec", seconds=2.0)
    for _ in range(2):
        result.take(
            "#92\tINITED cov: 51 ft: 60 corp: 2/148b exec/s: 0 rss: 74Mb\n"
            "#381\tDONE   cov: 81 ft: 108 corp: 21/1267b lim: 768 exec/s: 34 rss: 75Mb\n"
            "Done 381 runs in 1 second(s)\n"
        )
    found = (result.executions, result.edges, result.features, result.inputs, result.peak_mb)
    assert found == (762, 81, 108, 21, 75)
    assert str(result).split() == ["codec", "762", "381", "81", "108", "21", "75", "none"]


engine = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None, reason="atheris has wheels for x86-64 only"
)


@engine
def test_the_engine_runs_a_target() -> None:
    command = [sys.executable, "-m", "tests.fuzz.run", "--target", "codec", "--runs", "2000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 findings" in done.stdout


@engine
def test_a_process_that_fails_is_a_finding() -> None:
    assert fuzz("no such target", None, 10, 1).finding == "exit code 1"
