"""Fault kinds G: what a stranger on the network can do.

G1 the decode path knows no pickle; G2 listening for others takes keys or an
explicit flag.
"""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pp1.client import Client
from pp1.keygen import keygen
from pp1.processes import Daemon
from proto_v2.codec import decode
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Finished, Tokens
from tests.unit.test_transport_link import FRAME_BYTES, events_until, frames_of, take
from transport.link import Received, Refused, Up
from transport.security import ConnectKeys, ListenKeys, create_key, read_keys, read_public
from transport.zmq_link import ClientLink, ServerLink
from worker.daemon import main as worker_command

ROOT = Path(__file__).parents[2]
LIMIT_S = 30.0
NAMES = ("worker", "rank1", "rank0", "client", "stranger")


# --- G1 --------------------------------------------------------------------------------


def test_g1_nothing_of_ours_imports_a_format_that_can_run_code() -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}
    for package in ("proto_v2", "transport", "worker", "spark_rank", "pp1"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [alias.name for alias in node.names]
                    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                    assert not forbidden & {name.split(".")[0] for name in names}, path
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in ("eval", "exec"), path


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_g1_a_pickle_that_touches_a_file_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "touched"
    poison = pickle.dumps(_Touch(path))
    for frames in ([poison], [poison, poison], [poison.ljust(64, b".")[:64], poison]):
        with pytest.raises(ProtocolError) as raised:
            decode([memoryview(frame) for frame in frames])
        assert raised.value.code is Code.NOT_OURS
    assert not path.exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "[::]", "192.0.2.1", "spark-1"])
def test_g2_listening_for_other_hosts_needs_to_be_asked_for(host: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        ServerLink("listen", f"tcp://{host}:0", max_frame_bytes=FRAME_BYTES)
    assert (caught.value.code, caught.value.field) == (Code.CONFIG_INVALID, "listen")
    assert "--allow-remote" in str(caught.value)


def test_g2_listening_for_other_hosts_can_be_asked_for() -> None:
    link = ServerLink("listen", "tcp://*:0", max_frame_bytes=FRAME_BYTES, allow_remote=True)
    assert link.address.startswith("tcp://0.0.0.0:")
    link.close()


# --- G2: keys --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate pair of everybody."""
    folder = tmp_path_factory.mktemp("keys")
    for name in NAMES:
        create_key(folder / name)
    return folder


def own(keys: Path, name: str) -> Path:
    return keys / f"{name}.key_secret"


def public(keys: Path, name: str) -> Path:
    return keys / f"{name}.key"


@pytest.fixture
def guarded(keys: Path) -> Iterator[ServerLink]:
    listen = read_keys(own(keys, "worker"), [public(keys, "rank0")]).listen()
    link = ServerLink("leader", "tcp://127.0.0.1:0", max_frame_bytes=FRAME_BYTES, keys=listen)
    yield link
    link.close()


def connect(keys: Path, address: str, name: str | None, server: str = "worker") -> ClientLink:
    trusted = None
    if name is not None:
        trusted = read_keys(own(keys, name), ()).connect("worker-key", public(keys, server))
    return ClientLink("worker", address, max_frame_bytes=FRAME_BYTES, keys=trusted)


def test_g2_the_owner_of_an_allowed_key_gets_in(keys: Path, guarded: ServerLink) -> None:
    link = connect(keys, guarded.address, "rank0")
    try:
        assert take(link) == [Up(b"")]
        link.send(b"", [b"question"])
        (question,) = take(guarded)
        assert frames_of(question) == [b"question"]
        assert isinstance(question, Received)
        guarded.send(question.route, [b"answer"])
        assert frames_of(take(link)[0]) == [b"answer"]
    finally:
        link.close()


@pytest.mark.parametrize(
    ("name", "server", "reason"),
    [
        ("stranger", "worker", "does not accept this public key"),
        ("rank0", "stranger", "another server key"),
        (None, "worker", "CURVE at one end only"),
    ],
    ids=["a key that is not allowed", "a server that is not trusted", "no key"],
)
def test_g2_everybody_else_stays_out_and_is_told(
    keys: Path,
    guarded: ServerLink,
    name: str | None,
    server: str,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = connect(keys, guarded.address, name, server)
    try:
        (event,) = events_until(link, bool)
        assert isinstance(event, Refused)
        assert reason in event.reason
        assert guarded.poll(8) == []
    finally:
        link.close()
    if name == "stranger":
        key = read_public("", public(keys, "stranger")).decode()
        assert f"link leader refused the public key {key}" in caplog.text


def test_g2_keys_stand_for_the_flag(keys: Path) -> None:
    listen = read_keys(own(keys, "worker"), [public(keys, "rank0")]).listen()
    link = ServerLink("leader", "tcp://*:0", max_frame_bytes=FRAME_BYTES, keys=listen)
    link.close()


def test_g2_secrets_are_not_shown(keys: Path) -> None:
    pair = read_keys(own(keys, "worker"), ()).own
    assert pair is not None
    shown = repr((pair, ListenKeys(pair, frozenset()), ConnectKeys(pair, pair.public)))
    assert pair.public.decode() in shown
    assert pair.secret.decode() not in shown


def _bad_keys(folder: Path, keys: Path) -> dict[str, tuple[list[str], str]]:
    loose = folder / "loose.key_secret"
    loose.write_bytes(own(keys, "worker").read_bytes())
    loose.chmod(0o640)
    short = folder / "short.key"
    short.write_text('curve\n    public-key = "abc"\n')
    text = folder / "text.key"
    text.write_text("no key here\n")
    mine, theirs = str(own(keys, "worker")), str(public(keys, "rank0"))
    return {
        "missing": (["--curve-key", str(folder / "none"), "--allow-key", theirs], "curve-key"),
        "readable by others": (["--curve-key", str(loose), "--allow-key", theirs], "0640"),
        "public instead of secret": (["--curve-key", theirs, "--allow-key", theirs], "curve-key"),
        "too short": (["--curve-key", mine, "--allow-key", str(short)], "allow-key"),
        "not a certificate": (["--curve-key", mine, "--allow-key", str(text)], "allow-key"),
        "no own key": (["--allow-key", theirs], "for allow-key"),
        "own key without use": (["--curve-key", mine], "allow-key"),
    }


@pytest.mark.parametrize(
    "case",
    [
        "missing",
        "readable by others",
        "public instead of secret",
        "too short",
        "not a certificate",
        "no own key",
        "own key without use",
    ],
)
def test_g2_a_bad_key_file_is_named_and_nothing_starts(
    case: str, keys: Path, tmp_path: Path
) -> None:
    args, named = _bad_keys(tmp_path, keys)[case]
    result = CliRunner().invoke(worker_command, ["--engine", "markov", *args])
    assert result.exit_code == 3, result.output
    assert result.output.count("\n") == 1
    assert "CONFIG_INVALID" in result.output
    assert named in result.output


def test_keygen_keeps_secrets_and_what_exists(tmp_path: Path) -> None:
    base = tmp_path / "one"
    result = CliRunner().invoke(keygen, ["--name", str(base)])
    assert result.exit_code == 0, result.output
    secret = tmp_path / "one.key_secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    before = secret.read_bytes()
    again = CliRunner().invoke(keygen, ["--name", str(base)])
    assert again.exit_code == 3
    assert "exists" in again.output
    assert secret.read_bytes() == before
    nowhere = CliRunner().invoke(keygen, ["--name", str(tmp_path / "no" / "one")])
    assert nowhere.exit_code == 3


# --- G2: three daemons -------------------------------------------------------------------


def test_g2_three_daemons_and_a_client_with_keys(keys: Path) -> None:
    def key(option: str, *names: str) -> list[str]:
        return [part for name in names for part in (option, str(public(keys, name)))]

    def mine(name: str) -> list[str]:
        return ["--curve-key", str(own(keys, name)), "--engine", "markov"]

    any_port = "tcp://127.0.0.1:*"
    daemons: list[Daemon] = []

    def start(name: str, module: str, *args: str) -> Daemon:
        daemons.append(Daemon(name, module, args))
        return daemons[-1]

    try:
        worker = start(
            "worker", "worker", "--listen", any_port, *mine("worker"), *key("--allow-key", "rank0")
        )
        ranks = ["--draft-engine", "markov"]
        one = start(
            "rank 1", "spark_rank", "--rank", "1", "--pair", any_port,
            *mine("rank1"), *key("--allow-key", "rank0"), *ranks,
        )  # fmt: skip
        zero = start(
            "rank 0", "spark_rank", "--rank", "0", "--requests", any_port,
            "--pair", one.address("pair", LIMIT_S), "--worker", worker.address("leader", LIMIT_S),
            *mine("rank0"), *key("--pair-key", "rank1"), *key("--worker-key", "worker"),
            *key("--allow-key", "client"), *ranks,
        )  # fmt: skip
        address = zero.address("requests", LIMIT_S)
        trusted = read_keys(own(keys, "client"), ()).connect("", public(keys, "rank0"))
        with Client(address, trusted) as client:
            client.wait_ready(LIMIT_S, worker=True)
            stream = list(client.stream(client.start([1], tokens_max=40, temperature=1.0,
                                                     support=0), LIMIT_S))  # fmt: skip
            assert isinstance(stream[-1], Finished)
            assert stream[-1].token_count == 40
            assert any(isinstance(one, Tokens) and one.accepted for one in stream)
        with Client(address) as stranger, pytest.raises(ProtocolError) as raised:
            stranger.wait_ready(LIMIT_S)
        assert raised.value.code is Code.PEER_UNREACHABLE
        assert "CURVE" in str(raised.value)
        assert not zero.events("link_refused")
    finally:
        for daemon in reversed(daemons):
            daemon.stop()
