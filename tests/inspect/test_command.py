"""``pp1 inspect`` as a person or a script runs it: inputs, listing, exit codes."""

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pp1.cli import cli
from proto_v2.codec import encode
from proto_v2.messages import Ping, Rows
from tests.inspect.recording import pcap
from tests.inspect.samples import (
    MESSAGES,
    NAMES,
    STREAM,
    packets,
)
from tests.proto_samples import BOOT, EPOCH, chain, hello, sparse_entry, step

PING = b"".join(bytes(frame) for frame in encode(Ping(5), BOOT, EPOCH))


def run(*args: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["inspect", *args], input=stdin, catch_exceptions=False)


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def test_the_listing_of_one_message() -> None:
    done = run("--hex", PING.hex())
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "message 1: Ping (4), 64 + 3 bytes",
        "       0  header.magic                       b'PP1q'",
        "       4  header.version                     2",
        "       5  header.kind                        4 Ping",
        "       6  header.payload_frames              0",
        "       7  header.reserved                    0",
        "       8  header.body_bytes                  3",
        "      12  header.payload_bytes               0",
        "      16  header.boot_id                     000102030405060708090a0b0c0d0e0f",
        "      32  header.link_epoch                  0123456789abcdef",
        f"      40  header.body_checksum               {PING[47:39:-1].hex()}",
        "      48  header.reserved_tail               0",
        f"      56  header.checksum                    {PING[63:55:-1].hex()}",
        "      64  body                               array of 2",
        "      65  body.kind                          4 Ping",
        "      66  body.token                         5",
        "messages: 1, rules broken: 0",
    ]


@pytest.mark.parametrize(
    "data",
    [
        PING,
        PING.hex().encode(),
        PING.hex(" ", 16).upper().encode() + b"\n",
        STREAM,
        STREAM[STREAM.index(b"\x01\x40") :],
        STREAM.hex().encode(),
        pcap(packets(STREAM)),
        pcap(packets(STREAM)).hex().encode(),
    ],
    ids=["bin", "hex", "HEX", "stream", "late stream", "hex stream", "pcap", "hex pcap"],
)
def test_every_form_of_input_is_recognised(data: bytes, tmp_path: Path) -> None:
    by_file = run(write(tmp_path / "input", data), "--brief")
    by_pipe = run("-", "--brief", stdin=data)
    assert by_file.exit_code == by_pipe.exit_code == 0, by_file.output
    assert by_file.output == by_pipe.output
    names = ["Ping"] if len(data) < 300 else NAMES
    assert [name for name in names if f": {name} (" in by_file.output] == names


def test_a_capture_says_when_and_between_whom() -> None:
    done = run("-", "--brief", stdin=pcap(packets(STREAM)))
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "+0.000000 s  127.0.0.1:1000 -> 127.0.0.1:2000  ZMTP 3.1 greeting: NULL, as client"
    )
    assert lines[1].endswith("ZMTP command: READY Socket-Type='DEALER'")
    assert lines[2].endswith(
        "127.0.0.1:1000 (rank zero) -> 127.0.0.1:2000  message 1: Hello (1), 64 + 169 bytes"
    )
    assert lines[-1] == "TCP connections: 1, messages: 4, rules broken: 0"


def records(done: Result) -> list[dict[str, object]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_json_is_one_object_a_line() -> None:
    rows, payloads = chain(sparse_entry())
    frames = encode(Rows(1, tuple(rows)), BOOT, EPOCH, b"".join(payloads))
    done = run("-", "--json", stdin=b"".join(bytes(frame) for frame in frames))
    message, summary = records(done)
    assert summary == {"type": "summary", "messages": 1, "broken": 0}
    assert (message["type"], message["name"], message["kind"]) == ("message", "Rows", 13)
    assert message["frames"] == [64, 84, 120]
    fields = message["fields"]
    assert isinstance(fields, list)
    by_name = {field["name"]: field for field in fields}
    assert by_name["payload.rows[0].ids"]["value"] == [1, 2, 9]
    assert by_name["payload.rows[0].counts"]["value"] == [1 << 22, (1 << 24) - (1 << 22) - 1, 1]
    assert by_name["body.rows[0].representation"]["meaning"] == "sparse-f32"
    assert by_name["payload.rows[0].ids"]["offset"] == 64 + 84
    captured = records(run("-", "--json", "--brief", stdin=pcap(packets(STREAM))))
    assert [record["type"] for record in captured] == [
        "greeting", "command", *["message"] * 4, "summary",
    ]  # fmt: skip
    assert captured[2]["time_ns"] == 2_000_300_000
    assert captured[2]["source"] == "127.0.0.1:1000"


def test_a_broken_rule_is_on_the_line_of_its_field() -> None:
    frames = encode(step(sparse_entry(slot=9)), BOOT, EPOCH)
    data = b"".join(bytes(frame) for frame in frames)
    done = run("-", stdin=data)
    assert done.exit_code == 1
    assert (
        "      87  body.entries[0].slot               9"
        "  ! V04 SLOT_RANGE (312): wanted below 4, got 9\n"
    ) in done.stdout
    brief = run("-", "--brief", stdin=data).stdout.splitlines()
    assert len(brief) == 3
    message, summary = records(run("-", "--json", "--brief", stdin=data))
    assert message["broken"] == [
        {
            "rule": "V04",
            "code": 312,
            "name": "SLOT_RANGE",
            "field": "body.entries[0].slot",
            "wanted": "below 4",
            "got": "9",
        }
    ]
    assert summary["broken"] == 1


def test_a_broken_rule_about_what_is_not_there_has_its_own_line() -> None:
    done = run("--hex", PING[:64].hex())
    assert done.exit_code == 1
    assert any(
        line.split()[:5] == ["-", "body", "!", "W-2", "BODY_LENGTH"]
        for line in done.stdout.splitlines()
    ), done.stdout


def test_texts_of_a_peer_stay_on_their_line() -> None:
    frames = encode(hello(draft_checkpoint='a\n\x1b[2J"'), BOOT, 0)
    done = run("-", stdin=b"".join(bytes(frame) for frame in frames))
    assert "\x1b" not in done.stdout
    assert r'"a\\n\\x1b[2J\""' in done.stdout


def test_terms_take_the_place_of_what_was_not_seen() -> None:
    frames = encode(step(sparse_entry()), BOOT, EPOCH)
    data = b"".join(bytes(frame) for frame in frames)
    assert run("-", stdin=data).exit_code == 0
    done = run("-", "--terms", "depth_max=2,requests_max=1", stdin=data)
    assert done.exit_code == 1
    assert "V05 DEPTH_RANGE (308): wanted 0..2, got 5" in done.stdout
    several = run("-", "--terms", "depth_max=2", "--terms", "vocabulary_size=12", stdin=data)
    assert "V05" in several.stdout


@pytest.mark.parametrize(
    ("args", "stdin", "words"),
    [
        ([], b"", "one of FILE (- for standard input) and --hex is needed"),
        (["-", "--hex", "00"], b"", "one of FILE"),
        (["-"], b"", "input: wanted a PP1 message, got no bytes"),
        (["--hex", ""], b"", "got no bytes"),
        (["--hex", "0x00"], b"", "wanted pairs of hexadecimal digits"),
        (["--hex", "abc"], b"", "wanted pairs of hexadecimal digits"),
        (["-", "--format", "hex"], PING, "wanted pairs of hexadecimal digits"),
        (["-", "--format", "pcap"], PING, "wanted a pcap or pcapng file"),
        (["-"], pcap([]), "wanted a PP1 message, got none"),
        (["-"], STREAM[:64], "wanted a PP1 message, got none"),
        (["-"], pcap(packets(STREAM))[:-1], "wanted 56 bytes of a packet, got 55"),
        (["no such file"], b"", "no such file: No such file or directory"),
        (["."], b"", ".: Is a directory"),
        (["-", "--terms", "x=1"], PING, "wanted one of vocabulary_size"),
        (["-", "--terms", "depth_max=6"], PING, "depth_max: wanted 1..5, got '6'"),
        (["-", "--terms", "depth_max=" + "9" * 9000], PING, "depth_max: wanted 1..5"),
        (["-", "--terms", "vocabulary_size=4,legal_size=5"], PING, "legal_size: wanted 1..4"),
        (["-", "--format", "xml"], PING, "'xml' is not one of"),
    ],
)
def test_input_that_cannot_be_read(args: list[str], stdin: bytes, words: str) -> None:
    done = run(*args, stdin=stdin)
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_long_text_of_digits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pp1.inspect.command._HEX_BYTES_MAX", 100)
    done = run("-", stdin=b"0" * 101)
    assert done.exit_code == 2
    assert "hex: wanted at most 100 characters, got more" in done.stderr


def test_any_bytes_end_with_an_exit_code_and_no_traceback() -> None:
    seed = 40
    draw = random.Random(seed)
    whole = [PING, STREAM, pcap(packets(STREAM)), b"".join(bytes(f) for f in MESSAGES[2])]
    for _ in range(150):
        bent = bytearray(draw.choice(whole))
        for _ in range(draw.choice((1, 4))):
            bent[draw.randrange(len(bent))] = draw.randrange(256)
        data = draw.randbytes(draw.randrange(300)) if draw.random() < 0.2 else bytes(bent)
        args = draw.choice((["--json"], [], ["--format", "bin"], ["--format", "pcap"]))
        done = run("-", *args, stdin=data)
        assert done.exit_code in (0, 1, 2), f"seed {seed}"
