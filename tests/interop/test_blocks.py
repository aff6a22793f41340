"""Hashes, draws and encodings of the foreign worker, against libraries and the text's examples."""

import json
import random
import re
import shutil
import struct
import subprocess
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

HERE = Path(__file__).parent
SPECS = HERE.parents[1] / "specs"
LENGTHS = [*range(260), 511, 512, 513, 1023, 1024, 1025, 1087, 1088, 1089, 2049, 70_001]
PRELUDE = """
import { readFileSync } from "node:fs";
import { blake2b, xxh3 } from "HERE/hashes.mjs";
import { Reader, Writer } from "HERE/msgpack.mjs";
import { philox, proposalTicket } from "HERE/philox.mjs";
import { allocate, draw, rowBytes } from "HERE/proposal.mjs";
const hex = (text) => Buffer.from(text, "hex");
const answer = (x) => { ANSWER };
const asked = readFileSync(0, "utf8").split("\\n").filter(Boolean).map((line) => JSON.parse(line));
for (const one of asked) console.log(JSON.stringify(answer(one)));
"""


def ask(answer: str, questions: list[Any]) -> list[Any]:
    """What the body of ``answer``, a function of ``x``, gives for each question."""
    script = PRELUDE.replace("HERE", HERE.as_uri()).replace("ANSWER", answer)
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", script],
        input="\n".join(json.dumps(one) for one in questions),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def example(text: str) -> Any:
    """The worked example at the end of a text of the specification."""
    return json.loads(re.findall(r"```json\n(.*?)```", (SPECS / text).read_text(), re.DOTALL)[-1])


def test_xxh3_of_every_length_class() -> None:
    messages = [random.Random(length).randbytes(length) for length in LENGTHS]
    found = ask(
        'return xxh3(hex(x)).toString(16).padStart(16, "0");', [one.hex() for one in messages]
    )
    assert found == [xxhash.xxh3_64_hexdigest(one) for one in messages]


def test_blake2b_with_size_key_and_person() -> None:
    chosen = random.Random(2)
    cases = [
        (chosen.randbytes(length), chosen.randint(1, 64), chosen.randbytes(chosen.choice([0, 1, 32, 64])),  # noqa: E501
         chosen.randbytes(chosen.choice([0, 13, 16])))
        for length in LENGTHS
    ]  # fmt: skip
    found = ask(
        "const [message, size, key, person] = x;"
        'return blake2b(hex(message), size, { key: hex(key), person: hex(person) }).toString("hex");',  # noqa: E501
        [(message.hex(), size, key.hex(), person.hex()) for message, size, key, person in cases],
    )
    assert found == [
        blake2b(message, digest_size=size, key=key, person=person).hexdigest()
        for message, size, key, person in cases
    ]


def test_philox_gives_the_words_of_the_text() -> None:
    table = re.findall(r"^\| ((?:[0-9a-f]{8} ?){4}) \| ((?:[0-9a-f]{8} ?){2}) \| ((?:[0-9a-f]{8} ?){4}) \|$",  # noqa: E501
                       (SPECS / "02-rng-abi.md").read_text(), re.MULTILINE)  # fmt: skip
    rows = [[[int(word, 16) for word in cell.split()] for cell in row] for row in table]
    assert len(rows) == 3
    found = ask("return philox(x[0], x[1]);", [row[:2] for row in rows])
    assert found == [row[2] for row in rows]


def test_a_proposal_ticket_is_that_of_the_worked_example() -> None:
    told = example("02-rng-abi.md")
    key = [told["session_seed"], told["session_id"], told["request_id"], told["generation"]]
    message = bytes.fromhex(told["session_id"]) + struct.pack("<QQB", *key[2:], 0)
    [derived] = ask(
        'return blake2b(hex(x[0]), 8, { key: hex(x[1]), person: "PP1-philox-v1" }).toString("hex");',  # noqa: E501
        [[message.hex(), told["session_seed"]]],
    )
    assert derived == told["worker_key"]
    [ticket] = ask(
        "return proposalTicket(hex(x[0]), x[1], x[2]);",
        [[derived, told["round"], told["position"]]],
    )
    assert ticket == told["proposal"]["ticket24"]


def test_counts_token_and_bytes_are_those_of_the_worked_example() -> None:
    told = example("01-distribution.md")
    [found] = ask(
        "const counts = allocate(Float64Array.from(x.weights), 0);"
        'const bytes = (kind) => rowBytes(counts, kind).payload.toString("hex");'
        "return { counts: [...counts], token: draw(counts, x.proposal_ticket),"
        " dense_f32: bytes(1), sparse_f32: bytes(2) };",
        [told],
    )
    assert found == {name: told[name] for name in found}


@pytest.mark.parametrize(
    ("weights", "code"),
    [([0.5, 0.6], 700), ([1.5, -0.5], 700), ([0.5, 0.5 + 1e-8], 700), ([0.0, 0.0], 700)],
)
def test_weights_that_are_no_distribution_are_refused(weights: list[float], code: int) -> None:
    [found] = ask("try { allocate(x, 0); } catch (fault) { return fault.code; }", [weights])
    assert found == code


def test_top_k_takes_the_lowest_id_among_equal_weights() -> None:
    found = ask(
        "return [...allocate(Float64Array.from([0.25, 0.25, 0.25, 0.25, 0]), x)];", [1, 2, 3, 4, 9]
    )
    third = (1 << 24) // 3
    assert found == [
        [1 << 24, 0, 0, 0, 0],
        [1 << 23, 1 << 23, 0, 0, 0],
        [third + 1, third, third, 0, 0],
        [1 << 22] * 4 + [0],
        [1 << 22] * 4 + [0],
    ]


INTEGERS = sorted(
    {sign * (1 << bits) + delta for bits in (0, 5, 7, 8, 15, 16, 31, 32, 62) for delta in (-1, 0, 1)
     for sign in (1, -1)} | {(1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)}
)  # fmt: skip


def test_messagepack_is_written_in_the_shortest_encoding() -> None:
    values: list[Any] = [str(one) for one in INTEGERS]
    found = ask(
        'const w = new Writer(); w.int(BigInt(x)); return w.bytes().toString("hex");', values
    )
    assert found == [msgspec.msgpack.encode(one).hex() for one in INTEGERS]
    sizes = [0, 1, 15, 16, 31, 32, 255, 256, 65535, 65536]
    found = ask(
        "const heads = [() => { const w = new Writer(); w.bin(Buffer.alloc(x)); return w; },"
        ' () => { const w = new Writer(); w.str("a".repeat(x)); return w; },'
        " () => { const w = new Writer(); w.array(x); return w; }];"
        'return heads.map((head) => head().bytes().subarray(0, 5).toString("hex"));',
        sizes,
    )
    assert found == [
        [msgspec.msgpack.encode(value)[:5].hex()[: len(head)] for value, head in
         zip((bytes(size), "a" * size, [0] * size), heads, strict=True)]
        for size, heads in zip(sizes, found, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "encoded", "canonical"),
    [
        ("int", "7f", True), ("int", "cc7f", False), ("int", "cc80", True), ("int", "cdff00", True),
        ("int", "cd00ff", False), ("int", "ce00010000", True), ("int", "ce0000ffff", False),
        ("int", "cf00000000ffffffff", False), ("int", "cf0000000100000000", True),
        ("int", "e0", True), ("int", "d0e0", False), ("int", "d0df", True), ("int", "d005", False),
        ("int", "d1ff80", False), ("int", "d1ff7f", True), ("int", "d2ffff8000", False),
        ("int", "d3ffffffff80000000", False), ("int", "d3ffffffff7fffffff", True),
        ("str", "a161", True), ("str", "d90161", False), ("bin", "c40161", True),
        ("bin", "c5000161", False), ("array", "93", True), ("array", "dc0003", False),
        ("array", "dc0010", True), ("float", "cb3ff0000000000000", True),
        ("float", "ca3f800000", False), ("bool", "c3", True),
    ],
)  # fmt: skip
def test_a_longer_encoding_is_noticed(method: str, encoded: str, canonical: bool) -> None:
    [found] = ask(
        "const reader = new Reader(hex(x[1])); reader[x[0]](); return reader.canonical;",
        [[method, encoded]],
    )
    assert found is canonical


@pytest.mark.parametrize(
    ("method", "encoded"),
    [("int", ""), ("int", "cd01"), ("int", "c0"), ("int", "c3"), ("int", "cb3ff0000000000000"),
     ("float", "01"), ("bool", "01"), ("str", "a2ff"), ("str", "a1ff"), ("str", "c40161"),
     ("bin", "a161"), ("bin", "c6ffffffff"), ("array", "80"), ("array", "c1"), ("int", "d4010a")],
)  # fmt: skip
def test_another_type_is_refused(method: str, encoded: str) -> None:
    [found] = ask(
        "try { new Reader(hex(x[1]))[x[0]](); } catch (error) { return error.constructor.name; }",
        [[method, encoded]],
    )
    assert found == "WrongType"
