"""A real session, read by ``pp1 inspect``, by tshark and by the Kaitai description alike."""

import importlib.util
import io
import itertools
import json
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import kaitaistruct  # type: ignore[import-untyped]
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from pp1.cli import cli
from pp1.inspect import zmtp
from pp1.inspect.link import Link
from pp1.inspect.message import inspect_message
from proto_v2 import codec
from proto_v2.errors import Code
from proto_v2.messages import KINDS, AnyMessage, Row, Rows
from proto_v2.representation import Representation
from tests.inspect.recording import Packet, pcap, record_session
from tests.inspect.samples import (
    STREAM,
    framed,
    greeting,
    header,
    packets,
)
from tests.inspect.tables import PATHS, snake
from tests.proto_samples import (
    BOOT,
    EPOCH,
    SAMPLES,
    chain,
    deterministic,
    seal_body,
    sparse_entry,
    step_entry,
    values_of,
)

KSY, LUA = PATHS
KAITAI = Path(__file__).parent / "kaitai"

needs_tshark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is not installed (apt package tshark)"
)
needs_compiler = pytest.mark.skipif(
    shutil.which("node") is None or not (KAITAI / "node_modules").is_dir(),
    reason="the Kaitai compiler is not installed (npm ci --prefix tests/inspect/kaitai)",
)


# --- the session -----------------------------------------------------------------------------


@cache
def session() -> tuple[Packet, ...]:
    return tuple(record_session())


def listing(file: bytes) -> list[dict[str, Any]]:
    done = CliRunner().invoke(cli, ["inspect", "-", "--json"], input=file, catch_exceptions=False)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 0, [record for record in records if record.get("broken")]
    return records


@cache
def session_messages() -> list[dict[str, Any]]:
    return [record for record in listing(pcap(session())) if record["type"] == "message"]


def named(record: dict[str, Any], name: str) -> list[Any]:
    """Every value of fields of this name, anywhere in a body."""
    return [
        field["value"]
        for field in record["fields"]
        if field["name"].startswith("body.") and field["name"].rpartition(".")[2] == name
    ]


def test_every_message_of_a_session_parses_and_breaks_no_rule() -> None:
    *records, summary = listing(pcap(session()))
    assert summary == {
        "type": "summary",
        "messages": len(session_messages()),
        "broken": 0,
        "connections": 3,
    }
    assert not [record for record in records if record["type"] == "remark"]
    assert sum(record["type"] == "greeting" for record in records) == 6


def between(source: str, destination: str) -> list[dict[str, Any]]:
    return [record for record in session_messages() if record["roles"] == [source, destination]]


def steps(messages: list[dict[str, Any]], name: str) -> list[int]:
    """The numbers of the steps that messages of a kind are about, in order, each once."""
    numbers = [named(record, "step")[0] for record in messages if record["name"] == name]
    return list(dict.fromkeys(numbers))


def test_the_sequence_of_kinds_is_a_session() -> None:
    count = Counter(record["name"] for record in session_messages())
    assert count["Generate"] == count["Finished"] == 3
    assert count["Open"] == 3
    to_worker, from_worker = between("rank zero", "worker"), between("worker", "rank zero")
    to_rank, from_rank = between("rank zero", "rank one"), between("rank one", "rank zero")
    # Liveness and what is sent again on a slow machine say nothing about the order.
    names = [record["name"] for record in from_worker if record["name"] not in ("Ping", "Pong")]
    assert list(dict.fromkeys(names))[:4] == ["Hello", "TermsAgreed", "Ready", "Rows"]
    asked = steps(to_worker, "Step")
    assert asked and asked == sorted(asked)
    assert steps(from_worker, "Completion") == asked
    assert set(steps(from_worker, "Rows")) == set(asked)
    every = steps(to_rank, "Step")
    for kind in ("Prepare", "Decide", "Decision"):
        assert steps(to_rank, kind) == every
    for kind in ("Prepared", "Verdicts", "Applied"):
        assert steps(from_rank, kind) == every
    assert len(every) > len(asked)  # target-only rounds, and those of a request without drafts
    sessions = {value for record in session_messages() for value in named(record, "session_id")}
    assert len(sessions - {"00" * 16}) == 3
    representations = {
        field["meaning"]
        for record in from_worker
        for field in record["fields"]
        if field["name"].endswith("].representation")
    }
    assert representations == {"dense-f32", "sparse-f32"}


# --- tshark ----------------------------------------------------------------------------------


def tshark(path: Path, file: bytes, *args: str) -> str:
    path.write_bytes(file)
    done = subprocess.run(
        [
            "tshark",
            "-X",
            f"lua_script:{LUA}",
            "-o",
            "tcp.try_heuristic_first:TRUE",
            "-r",
            str(path),
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Lua" not in done.stderr, done.stderr
    return done.stdout


def fields(path: Path, file: bytes, *names: str) -> list[list[str]]:
    """Every value of each field over the whole capture, in order."""
    options = [option for name in names for option in ("-e", name)]
    text = tshark(path, file, "-T", "fields", "-Y", "pp1", "-E", "aggregator=,", *options)
    columns: list[list[str]] = [[] for _ in names]
    for line in text.splitlines():
        for column, cell in zip(columns, line.split("\t"), strict=True):
            column += [value for value in cell.split(",") if value]
    return columns


@needs_tshark
def test_tshark_agrees_on_a_session(tmp_path: Path) -> None:
    kinds, bodies, payloads, boots, steps_, sessions, faults = fields(
        tmp_path / "session.pcap",
        pcap(session()),
        "pp1.kind",
        "pp1.body_bytes",
        "pp1.payload_bytes",
        "pp1.boot_id",
        "pp1.step",
        "pp1.session_id",
        "pp1.fault",
    )
    messages = session_messages()
    assert faults == []
    assert [int(kind) for kind in kinds] == [record["kind"] for record in messages]
    frames = [[*record["frames"], 0] for record in messages]
    assert [int(size) for size in bodies] == [sizes[1] for sizes in frames]
    assert [int(size) for size in payloads] == [sizes[2] for sizes in frames]
    assert boots == [
        field["value"]
        for record in messages
        for field in record["fields"]
        if field["name"] == "header.boot_id"
    ]
    expected = [value for record in messages for value in named(record, "step")]
    assert [int(step) for step in steps_] == expected
    assert sessions == [value for record in messages for value in named(record, "session_id")]


def telling(info: inspect.Type, numbers: Iterator[int]) -> Any:
    """A value of a type that no other field has, as plain data."""
    match info:
        case inspect.StructType(fields=fields):
            tag = [] if info.tag is None else [info.tag]
            return tag + [telling(field.type, numbers) for field in fields]
        case inspect.IntType(ge=low):
            number = next(numbers)
            return -number if low is not None and low < 0 else number
        case inspect.BytesType(min_length=least, max_length=most):
            return bytes([next(numbers)]) * min(max(least or 0, 8), most or 8)
        case inspect.StrType():
            return f"text{next(numbers)}"
        case inspect.BoolType():
            return bool(next(numbers) % 2)
        case inspect.FloatType():
            return next(numbers) + 0.5
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            count = max(least or 0, min(2, most or 2))
            return [telling(item, numbers) for _ in range(count)]
    raise AssertionError(info)


def telling_messages() -> list[AnyMessage]:
    made = []
    for struct in KINDS.values():
        body = telling(inspect.type_info(struct), itertools.count(1))
        made.append(msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=AnyMessage))
    return made


def filtered(value: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Filter name and text of every number, byte string and text in a message."""
    for name in value.__struct_fields__:
        held = getattr(value, name)
        field = f"pp1.{snake(type(value).__name__)}.{name}"
        if isinstance(held, tuple):
            for item in held:
                if isinstance(item, msgspec.Struct):
                    yield from filtered(item)
        elif isinstance(held, bytes):
            yield field, held.hex()
        elif isinstance(held, int) and not isinstance(held, bool):
            yield field, f"0x{held:016x}" if name == "checksum" else str(held)
        elif isinstance(held, str):
            yield field, held


@needs_tshark
def test_tshark_shows_the_fields_of_every_kind(tmp_path: Path) -> None:
    messages = telling_messages()
    expected: dict[str, list[str]] = {}
    for message in messages:
        for name, text in filtered(message):
            expected.setdefault(name, []).append(text)
    stream = greeting() + b"".join(
        framed(codec.encode(message, BOOT, EPOCH, b"" if isinstance(message, Rows) else None))
        for message in messages
    )
    kinds, *found = fields(
        tmp_path / "kinds.pcap", pcap(packets(stream, size=1000)), "pp1.kind", *expected
    )
    assert [int(kind) for kind in kinds] == list(KINDS)
    assert dict(zip(expected, found, strict=True)) == expected
    assert len(expected) > 120


@needs_tshark
def test_tshark_shows_the_rows(tmp_path: Path) -> None:
    rows, payloads = chain(sparse_entry())
    frames = codec.encode(Rows(1, tuple(rows)), BOOT, EPOCH, b"".join(payloads))
    file = pcap(packets(greeting() + framed(frames)))
    tokens, ids, values, faults = fields(
        tmp_path / "rows.pcap", file, "pp1.row.token", "pp1.row.ids", "pp1.row.q", "pp1.fault"
    )
    assert [int(token) for token in tokens] == [row.token for row in rows]
    assert ids == [payload[: len(payload) // 2].hex() for payload in payloads]
    assert values == [payload[len(payload) // 2 :].hex() for payload in payloads]
    assert faults == []


FAULTS = [
    (header(4, b"\x03"), Code.WIRE_VERSION),
    (header(16, b"\xff", sealed=False), Code.HEADER_CHECKSUM),
    (header(7, b"\x01"), Code.NOT_CANONICAL),
    (header(55, b"\x01"), Code.NOT_CANONICAL),
    (header(6, b"\x02"), Code.FRAME_COUNT),
    (header(8, b"\xff\xff\xff\xff"), Code.BODY_LENGTH),
    (header(6, b"\x01"), Code.FRAME_COUNT),
    (header(8, b"\x01\x00\x00\x00"), Code.BODY_LENGTH),
    ((b"PP1q\x02\x04", b""), Code.HEADER_LENGTH),
    ((b"PP2q\x02\x04", b""), Code.NOT_OURS),
    (seal_body(99, b"\x91\x63"), Code.KIND_UNKNOWN),
    (seal_body(4, b"\x92\x05\x01"), Code.KIND_MISMATCH),
    (seal_body(4, b"\x92\x04"), Code.MALFORMED),
    (seal_body(4, b"\x92\x04\x05\x00"), Code.MALFORMED),
    (seal_body(4, b"\x92\x04\xa1x"), Code.MALFORMED),
    (seal_body(4, b"\x92\x04\xc6\xff\xff\xff\xff"), Code.MALFORMED),
    (seal_body(4, b"\x92\x04\x05", b"x"), Code.FRAME_COUNT),
]


def moved(made: list[Packet], port: int) -> list[Packet]:
    """The same connection on other ports."""
    ports = {1000: port, 2000: 2000}
    return [
        Packet(p.time_ns, ports[p.source], ports[p.destination], p.flags, p.sequence,
               p.acknowledged, p.data)
        for p in made
    ]  # fmt: skip


@needs_tshark
def test_tshark_finds_the_faults_that_it_can_find(tmp_path: Path) -> None:
    made: list[Packet] = []
    for index, (frames, code) in enumerate(FAULTS):
        raw = [bytes(frame) for frame in frames]
        assert [fault.code for fault in inspect_message(raw, Link()).broken] == [code]
        made += moved(packets(greeting() + framed(raw), size=1000), 10_000 + index)
    text = tshark(
        tmp_path / "faults.pcap", pcap(made), "-T", "fields", "-Y", "pp1.fault",
        "-e", "tcp.srcport", "-e", "_ws.expert.message",
    )  # fmt: skip
    found = {}
    for line in text.splitlines():
        port, words = line.split("\t")
        found[int(port) - 10_000] = words.split(" ")[0]
    assert found == {index: code.name for index, (_, code) in enumerate(FAULTS)}


@needs_tshark
def test_tshark_survives_bent_captures(tmp_path: Path) -> None:
    seed = 50
    draw = random.Random(seed)
    made: list[Packet] = []
    for port in range(300):
        bent = bytearray(STREAM)
        for _ in range(draw.choice((1, 3, 10))):
            bent[draw.randrange(64, len(bent))] ^= 1 << draw.randrange(8)
        made += moved(packets(bytes(bent), size=draw.choice((50, 400, 1400))), 10_000 + port)
    text = tshark(tmp_path / "bent.pcap", pcap(made), "-V", "-O", "pp1")
    assert "PP1 wire version 2" in text
    assert "Lua Error" not in text, f"seed {seed}"


@needs_tshark
def test_tshark_begins_in_the_middle_of_a_connection(tmp_path: Path) -> None:
    late = STREAM[STREAM.index(b"\x01\x40PP1q") :]
    (kinds,) = fields(tmp_path / "late.pcap", pcap(packets(late)[2:]), "pp1.kind")
    assert kinds == ["1", "12", "13", "4"]


# --- Kaitai ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pp1_v2(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The description, compiled anew."""
    directory = tmp_path_factory.mktemp("kaitai")
    done = subprocess.run(
        ["node", str(KAITAI / "compile.cjs"), str(KSY), str(directory)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    spec = importlib.util.spec_from_file_location("pp1_v2", directory / "pp1_v2.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(pp1_v2: ModuleType, frames: Any) -> Any:
    raw = b"".join(bytes(frame) for frame in frames)
    parsed = pp1_v2.Pp1V2(kaitaistruct.KaitaiStream(io.BytesIO(raw)))
    assert parsed._io.is_eof()
    return parsed


def same(parsed: Any, value: Any) -> None:
    """A Kaitai object and a value of ours say the same."""
    if isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            same(getattr(parsed, name), getattr(value, name))
    elif isinstance(value, tuple):
        assert parsed.head.count == len(value)
        for inner, item in zip(parsed.items, value, strict=True):
            same(inner, item)
    else:
        assert parsed.value == value
        assert type(parsed.value) is type(value)


def compare(pp1_v2: ModuleType, frames: Any) -> int:
    """Parse one message both ways; its kind."""
    received = codec.decode([bytes(frame) for frame in frames])
    parsed = parse(pp1_v2, frames)
    assert parsed.header.boot_id == received.boot_id
    assert parsed.header.link_epoch == received.link_epoch
    assert parsed.header.body_bytes == len(frames[1])
    kind = int(parsed.body.kind.value)
    assert parsed.header.kind.value == kind
    assert type(received.message) is KINDS[kind]
    same(parsed.body.fields, received.message)
    if isinstance(received.message, Rows) and parsed.header.payload_frames:
        for row, shown in zip(received.message.rows, parsed.payload.rows, strict=True):
            compare_row(row, shown)
    return kind


def compare_row(row: Row, shown: Any) -> None:
    raw = shown._raw_q if hasattr(shown, "_raw_q") else b""
    assert len(raw) == row.byte_length
    if row.representation == Representation.SPARSE_F32:
        assert shown.q.ids == np.frombuffer(raw, "<i4", row.entries).tolist()
        raw = raw[4 * row.entries :]
    assert shown.q.values == np.frombuffer(raw, "<f4").tolist()


@needs_compiler
def test_kaitai_agrees_on_every_kind(pp1_v2: ModuleType) -> None:
    for message in SAMPLES.values():
        payload = b"" if isinstance(message, Rows) else None
        compare(pp1_v2, codec.encode(message, BOOT, EPOCH, payload))


@needs_compiler
@deterministic
@given(message=st.one_of(*(values_of(kind) for kind in KINDS.values())))
def test_kaitai_agrees_on_any_values(pp1_v2: ModuleType, message: AnyMessage) -> None:
    if not isinstance(message, Rows):  # whose payload has to fit
        compare(pp1_v2, codec.encode(message, BOOT, EPOCH))


@needs_compiler
@pytest.mark.parametrize("entry", [step_entry(), sparse_entry()])
def test_kaitai_reads_the_rows(pp1_v2: ModuleType, entry: Any) -> None:
    rows, payloads = chain(entry)
    compare(pp1_v2, codec.encode(Rows(1, tuple(rows)), BOOT, EPOCH, b"".join(payloads)))


@needs_compiler
@pytest.mark.parametrize(
    "frames",
    [
        header(0, b"X"),
        header(4, b"\x03"),
        header(7, b"\x01"),
        header(55, b"\x01"),
        header(6, b"\x02"),
        header(8, b"\xff\xff\xff\xff"),
        seal_body(4, b"\x92\x04\xa1x"),
        seal_body(4, b"\x92\x04\x05\x00"),
        seal_body(4, b"\xc4\x00"),
    ],
)
def test_kaitai_refuses(pp1_v2: ModuleType, frames: Any) -> None:
    with pytest.raises(kaitaistruct.KaitaiStructError):
        parse(pp1_v2, frames)


@needs_compiler
def test_kaitai_knows_the_registered_numbers(pp1_v2: ModuleType) -> None:
    assert {kind.value for kind in pp1_v2.Pp1V2.MessageKind} == set(KINDS)
    assert {code.value for code in pp1_v2.Pp1V2.Code} == {int(code) for code in Code}


@needs_compiler
def test_kaitai_agrees_on_a_session(pp1_v2: ModuleType) -> None:
    """Both read the same kinds, steps, session ids and lengths of every direction."""
    streams: dict[tuple[int, int], bytearray] = {}
    for packet in session():
        ends = (packet.source, packet.destination)
        streams.setdefault(ends, bytearray()).extend(packet.data)
    for (source, destination), data in streams.items():
        reader = zmtp.Reader(whole=True)
        found = [e.frames for e in reader.feed(bytes(data)) if isinstance(e, zmtp.Frames)]
        listed = [
            record
            for record in session_messages()
            if record["source"] == f"127.0.0.1:{source}"
            and record["destination"] == f"127.0.0.1:{destination}"
        ]
        assert [compare(pp1_v2, frames) for frames in found] == [r["kind"] for r in listed]
        for frames, record in zip(found, listed, strict=True):
            parsed = parse(pp1_v2, frames)
            assert record["frames"][1] == parsed.header.body_bytes
            assert sum(record["frames"][2:]) == parsed.header.payload_bytes
            for name in ("step", "session_id"):
                value = getattr(parsed.body.fields, name, None)
                if value is not None:
                    shown = value.value if name == "step" else value.value.hex()
                    assert named(record, name)[0] == shown
