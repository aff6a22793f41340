"""Real processes that die, freeze and come back, under one running request.

Every wait has a limit of its own, so nothing here can hang; no test looks at
how long anything took.
"""

import os
import random
import signal
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from pp1.client import Client
from pp1.models.markov import MarkovLaw
from pp1.processes import Daemon, Trio
from proto_v2.codec import encode
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Finished, Ping, Tokens, tokens_from_bytes

LIMIT_S = 30.0
SLOW = "tests.support.slow_engines"
WORKER = ["--engine", f"{SLOW}:SlowDraft", "--engine-option", "delay_ms=10",
          "--ping-ms", "100", "--silence-ms", "2000"]  # fmt: skip
RANKS = ["--engine", f"{SLOW}:SlowTarget", "--engine-option", "delay_ms=5",
         "--draft-engine", "markov", "--ping-ms", "100", "--silence-ms", "2000"]  # fmt: skip
RANK_ZERO = ["--step-ms", "400", "--pair-ms", "4000", "--target-ms", "8000",
             "--breaker-failures", "2", "--breaker-rounds", "8", "--metrics-port", "0"]  # fmt: skip


@pytest.fixture
def trio() -> Iterator[Trio]:
    with Trio(worker=WORKER, ranks=RANKS, rank_zero=RANK_ZERO) as running:
        yield running


@pytest.fixture
def client(trio: Trio) -> Iterator[Client]:
    with Client(trio.address) as connected:
        connected.wait_ready(LIMIT_S, worker=True)
        yield connected


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"no {what} within {LIMIT_S:g} s"
        time.sleep(0.02)


def metrics_of(daemon: Daemon) -> dict[str, float]:
    port = daemon.events("metrics")[0]["port"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        text = response.read().decode()
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}


def total(metrics: dict[str, float], name: str, label: str = "") -> float:
    return sum(
        value for key, value in metrics.items() if key.split("{")[0] == name and label in key
    )


class Request:
    """One request, read round by round."""

    def __init__(self, client: Client, tokens_max: int = 100_000) -> None:
        self.key = client.start([1], tokens_max=min(tokens_max, 8000), temperature=1.0, depth=5,
                                support=0, seed=bytes(32))  # fmt: skip
        self.client = client
        self.rounds: list[Tokens] = []
        self.text = [1]
        self._stream = client.stream(self.key, LIMIT_S)

    def until(self, condition: Callable[[Tokens], bool], what: str) -> Tokens:
        """Read rounds until one meets the condition."""
        deadline = time.monotonic() + LIMIT_S
        for message in self._stream:
            assert not isinstance(message, Finished), f"ended before {what}"
            self.rounds.append(message)
            assert message.index == len(self.text) - 1, "no token is lost or doubled"
            self.text += tokens_from_bytes(message.tokens, "tokens")
            if condition(message):
                return message
            assert time.monotonic() < deadline, f"no {what} within {LIMIT_S:g} s"
        raise AssertionError(f"ended before {what}")

    def until_speculative(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            self.until(lambda message: message.depth > 0 and message.reason == 0, "speculation")

    def until_discard(self) -> Tokens:
        return self.until(lambda message: message.reason != 0, "discard")

    def check_possible(self) -> None:
        """Every transition that was shown has mass under the target."""
        law = MarkovLaw()
        for last, token in zip(self.text[:-1], self.text[1:], strict=True):
            assert law.target_law([last])[token] > 0

    def abort(self) -> None:
        self.client.abort(self.key)


def port_of(address: str) -> str:
    return "tcp://127.0.0.1:" + address.rsplit(":", 1)[1]


def test_killed_worker_costs_drafts_only_and_its_successor_is_used(
    trio: Trio, client: Client
) -> None:
    worker = trio.daemons["worker"]
    address = worker.address("leader", LIMIT_S)
    request = Request(client)
    request.until_speculative()
    worker.signal(signal.SIGKILL)
    assert request.until_discard().reason == Code.WORKER_DOWN
    for _ in range(5):
        assert request.until(lambda message: True, "a round").depth == 0
    worker.stop()
    trio.start_worker(port_of(address))
    request.until_speculative()
    request.check_possible()
    request.abort()
    metrics = metrics_of(trio.daemons["rank 0"])
    assert total(metrics, "pp1_generations_invalidated_total", "WORKER_DOWN") >= 1
    assert trio.daemons["rank 1"].process.poll() is None


def test_frozen_worker_is_late_and_its_late_reply_is_dropped(trio: Trio, client: Client) -> None:
    worker = trio.daemons["worker"]
    request = Request(client)
    request.until_speculative()
    worker.signal(signal.SIGSTOP)
    late = request.until_discard()
    assert late.reason == Code.DRAFT_LATE
    assert late.depth == 0
    for _ in range(5):
        request.until(lambda message: message.depth == 0, "target-only round")
    worker.signal(signal.SIGCONT)
    request.until_speculative()
    request.check_possible()
    request.abort()
    metrics = metrics_of(trio.daemons["rank 0"])
    assert total(metrics, "pp1_proposals_discarded_total", "DRAFT_LATE") >= 1
    assert total(metrics, "pp1_late_replies_total") >= 1


def test_killed_rank_one_ends_the_request_with_a_named_error(trio: Trio, client: Client) -> None:
    rank_one = trio.daemons["rank 1"]
    address = rank_one.address("pair", LIMIT_S)
    request = Request(client)
    request.until_speculative()
    rank_one.signal(signal.SIGKILL)
    with pytest.raises(ProtocolError) as raised:
        request.until(lambda message: False, "end")
    assert raised.value.code is Code.RANK_LOST
    request.check_possible()
    wait_for(lambda: bool(trio.daemons["worker"].process.poll() is None), "worker alive")
    # Without a rank 1 a request is refused with the same name, not left waiting.
    refused = Request(client)
    with pytest.raises(ProtocolError) as raised:
        refused.until(lambda message: False, "end")
    assert raised.value.code is Code.RANK_LOST
    rank_one.stop()
    trio.start_rank_one(port_of(address))
    client.wait_ready(LIMIT_S, worker=True)
    again = Request(client)
    again.until_speculative()
    again.check_possible()
    again.abort()


def test_frozen_rank_one_ends_the_request_within_its_silence(trio: Trio, client: Client) -> None:
    rank_one = trio.daemons["rank 1"]
    request = Request(client)
    request.until_speculative()
    rank_one.signal(signal.SIGSTOP)
    with pytest.raises(ProtocolError) as raised:
        request.until(lambda message: False, "end")
    assert raised.value.code is Code.RANK_LOST
    rank_one.signal(signal.SIGCONT)
    client.wait_ready(LIMIT_S, worker=True)
    again = Request(client)
    again.until_speculative()
    again.abort()
    request.check_possible()


def test_killed_rank_zero_ends_everything_on_the_other_two(trio: Trio, client: Client) -> None:
    request = Request(client)
    request.until_speculative()
    trio.daemons["rank 0"].signal(signal.SIGKILL)
    with pytest.raises(ProtocolError) as raised:
        request.until(lambda message: False, "end")
    assert raised.value.code is Code.PEER_UNREACHABLE
    rank_one = trio.daemons["rank 1"]
    wait_for(
        lambda: any(line["code"] == "RANK_LOST" for line in rank_one.events("request_ended")),
        "RANK_LOST on rank 1",
    )


def test_client_that_goes_away_frees_its_lane(trio: Trio, client: Client) -> None:
    with Client(trio.address) as other:
        other.wait_ready(LIMIT_S, worker=True)
        request = Request(other)
        request.until_speculative()
    zero = trio.daemons["rank 0"]
    wait_for(
        lambda: total(metrics_of(zero), "pp1_requests_ended_total", "CANCELLED") == 1,
        "cancellation of the lost client's request",
    )
    mine = Request(client)
    mine.until_speculative()
    mine.abort()


def test_strangers_disturb_nobody(trio: Trio, client: Client) -> None:
    """Raw TCP noise, ZeroMQ noise and half-true messages at every port while a request runs."""
    ports = [
        trio.daemons["worker"].address("leader", LIMIT_S),
        trio.daemons["rank 1"].address("pair", LIMIT_S),
        trio.daemons["rank 0"].address("requests", LIMIT_S),
    ]
    seed = 20261130
    print(f"seed {seed}")
    noise = random.Random(seed)
    request = Request(client)
    request.until_speculative()
    context = zmq.Context()
    try:
        for number in range(20):
            for address in ports:
                host, port = address.removeprefix("tcp://").split(":")
                with socket.create_connection((host, int(port)), timeout=5) as raw:
                    raw.sendall(noise.randbytes(noise.randrange(1, 400)))
                stranger = context.socket(zmq.DEALER)
                stranger.setsockopt(zmq.LINGER, 200)
                stranger.connect(address)
                for _ in range(10):
                    for frames in noises(noise):
                        stranger.send_multipart(frames)
                stranger.close()
            request.until(lambda message: True, f"a round after {number + 1} bursts")
    finally:
        context.destroy(linger=200)
    request.until_speculative()
    request.check_possible()
    request.abort()
    assert trio.failure() is None
    metrics = metrics_of(trio.daemons["rank 0"])
    assert total(metrics, "pp1_messages_rejected_total") > 0
    assert total(metrics, "pp1_proposals_discarded_total") == 0


def noises(noise: random.Random) -> Iterator[list[bytes]]:
    """Random frames, a valid message of somebody else's link, and one with a wrong body."""
    yield [noise.randbytes(noise.randrange(200)) for _ in range(noise.randrange(1, 6))]
    header, body = encode(Ping(noise.getrandbits(60)), noise.randbytes(16), noise.getrandbits(60))
    yield [bytes(header), bytes(body)]
    yield [bytes(header), noise.randbytes(len(body))]
    yield [noise.randbytes(64), b"", b""]


def test_orderly_stop_gives_clean_exit_codes(trio: Trio, client: Client) -> None:
    request = Request(client, tokens_max=40)
    request.until_speculative(2)
    for daemon in trio.daemons.values():
        assert os.path.exists(f"/proc/{daemon.process.pid}")
    assert trio.stop() == {"rank 0": 0, "worker": 0, "rank 1": 0}


def ended(module: str, *args: str) -> tuple[int, str]:
    """Exit code and last line of a daemon that is expected to end by itself."""
    daemon = Daemon("daemon under test", module, args)
    deadline = time.monotonic() + LIMIT_S
    while daemon.process.poll() is None:
        assert time.monotonic() < deadline, "the daemon goes on"
        time.sleep(0.02)
    failure = daemon.failure()
    daemon.stop()
    return failure.exit_code, str(failure)


MARKOV = ["--engine", "markov"]
ONE = ["--rank", "1", "--pair", "tcp://127.0.0.1:*", *MARKOV, "--draft-engine", "markov"]


@pytest.mark.parametrize(
    ("module", "args", "exit_code", "words"),
    [
        ("worker", ["--listen", "nonsense", *MARKOV], 3, ["CONFIG_INVALID", "leader"]),
        ("worker", ["--listen", "tcp://0.0.0.0:*", *MARKOV], 3, ["CONFIG_INVALID", "loopback"]),
        ("worker", ["--engine", "nothing"], 3, ["CONFIG_INVALID", "engine", "nothing"]),
        ("worker", [*MARKOV, "--engine-option", "seed"], 3, ["CONFIG_INVALID", "KEY=VALUE"]),
        ("worker", [*MARKOV, "--engine-option", "seed=x"], 3, ["CONFIG_INVALID", "seed"]),
        ("worker", ["--engine", "smollm2", "--engine-option", "path=/no/such.gguf"], 6,
         ["MODEL_MISSING", "/no/such.gguf"]),
        ("worker", [*MARKOV, "--depth-max", "6"], 2, ["depth-max"]),
        ("worker", [*MARKOV, "--silence-ms", "5"], 3, ["CONFIG_INVALID", "silence-ms"]),
        ("spark_rank", ["--rank", "2"], 2, ["rank"]),
        ("spark_rank", ["--rank", "0", "--pair", "tcp://127.0.0.1:9", "--worker",
                        "tcp://127.0.0.1:9", "--requests", "tcp://127.0.0.1:*", *MARKOV,
                        "--draft-engine", "markov", "--connect-ms", "300"], 5,
         ["PEER_UNREACHABLE", "pair"]),
    ],
)  # fmt: skip
def test_bad_start_is_one_line_and_its_exit_code(
    module: str, args: list[str], exit_code: int, words: list[str]
) -> None:
    code, text = ended(module, *args)
    assert code == exit_code, text
    for word in words:
        assert word in text, text


def test_port_in_use(trio: Trio) -> None:
    taken = port_of(trio.daemons["worker"].address("leader", LIMIT_S))
    code, text = ended("worker", "--listen", taken, *MARKOV)
    assert code == 6, text
    assert "ADDRESS_IN_USE" in text
    assert taken in text


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (["--draft-option", "seed=5"], "draft_checkpoint"),
        (["--engine-option", "seed=5"], "target_checkpoint"),
        (["--engine-option", "vocabulary_size=12"], "vocabulary_size"),
        (["--draft-checkpoint", "markov-draft-v1/V16/seed0"], "draft_native"),
        (["--staging-bytes", "100"], "staging_bytes"),
    ],
)
def test_identity_mismatch_refuses_rank_zero_by_field(changed: list[str], field: str) -> None:
    one = Daemon("rank 1", "spark_rank", ONE)
    try:
        zero = ["--rank", "0", "--pair", one.address("pair", LIMIT_S), "--worker",
                "tcp://127.0.0.1:9", "--requests", "tcp://127.0.0.1:*", *MARKOV,
                "--draft-engine", "markov"]  # fmt: skip
        code, text = ended("spark_rank", *zero, *changed)
        assert code == 4, text
        assert field in text
        refusals: list[dict[str, Any]] = one.events("negotiation_refused")
        assert refusals
        assert field in refusals[-1]["error"]
    finally:
        assert one.stop() == 0


def test_worker_of_another_model_is_refused_and_nothing_is_half_started() -> None:
    other = [*MARKOV, "--engine-option", "seed=9"]
    with Trio(worker=other, ranks=[*MARKOV, "--draft-engine", "markov"]) as running:
        zero = running.daemons["rank 0"]
        wait_for(lambda: zero.process.poll() is not None, "end of rank 0")
        failure = zero.failure()
        assert failure.exit_code == 4
        assert "DRAFT_MISMATCH" in str(failure)
        assert "draft_checkpoint" in str(failure)
        worker = running.daemons["worker"]
        assert worker.process.poll() is None  # it may serve others
        assert worker.events("negotiation_refused")


def test_peers_without_a_common_representation_are_refused() -> None:
    sparse, dense = ["--representation", "sparse-f32"], ["--representation", "dense-f32"]
    ranks = [*MARKOV, "--draft-engine", "markov", *sparse]
    with Trio(worker=[*MARKOV, *dense], ranks=ranks) as running:
        zero = running.daemons["rank 0"]
        wait_for(lambda: zero.process.poll() is not None, "end of rank 0")
        assert "NO_COMMON_REPRESENTATION" in str(zero.failure())
        assert zero.failure().exit_code == 4
