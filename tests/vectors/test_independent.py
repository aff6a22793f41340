"""A second reader that knows nothing of the product agrees with every vector of the wire."""

import ast
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.vectors import reader
from tests.vectors.values import files, integer, unhex

FILES = files()
Test = dict[str, Any]


def vectors_of(*operations: str, result: str) -> list[tuple[str, Test, Test]]:
    """Every test of these operations: a name, the params of its group, and the test."""
    return [
        (f"{name} {test['tc_id']}: {test['comment']}", group["params"], test)
        for name, file in FILES.items()
        for group in file["test_groups"]
        if group["operation"] in operations
        for test in group["tests"]
        if test["result"] == result
    ]


def shown(value: Any) -> Any:
    """A value that was read as a vector writes it, large integers as they are."""
    if isinstance(value, bytes):
        return {"bin": value}
    if isinstance(value, float):
        return {"f64": struct.pack(">d", value).hex()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return value


def expected(read: Any, written: Any) -> Any:
    """What a vector writes, as ``shown`` gives it; ``read`` tells an integer from a text."""
    if isinstance(read, dict) and set(read) == {"bin"}:
        return {"bin": unhex(written["bin"])}
    if isinstance(read, dict):
        assert read.keys() == written.keys()
        return {name: expected(read[name], written[name]) for name in written}
    if isinstance(read, list):
        assert len(read) == len(written)
        return [expected(one, other) for one, other in zip(read, written, strict=True)]
    return integer(written) if type(read) is int else written


def agree(read: tuple[str, Any], output: Test) -> None:
    name, fields = read
    assert name == output["message"]
    found = shown(fields)
    assert found == expected(found, output["fields"])


def test_the_reader_imports_nothing_of_ours() -> None:
    tree = ast.parse(Path(reader.__file__).read_text())
    imported = {
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert imported == {"hashlib", "struct", "collections.abc", "dataclasses", "typing", "xxhash"}


def test_every_envelope() -> None:
    for name, _, test in vectors_of("read_message", result="valid"):
        header, body, payload = reader.read_frames([unhex(f) for f in test["input"]["frames"]])
        found = vars(header) | {"body_length": len(body), "payload_length": len(payload or b"")}
        for field, value in test["output"].items():
            wanted = unhex(value) if field == "boot_id" else integer(value)
            assert found[field] == wanted, name


def test_every_field_of_every_body() -> None:
    for name, params, test in vectors_of("decode_body", result="valid"):
        try:
            agree(reader.read_body(params["kind"], unhex(test["input"]["body"])), test["output"])
        except (AssertionError, reader.Refused) as error:
            raise AssertionError(name) from error


def test_every_message() -> None:
    for _, _, test in vectors_of("decode_message", result="valid"):
        name, fields, payload = reader.read_message([unhex(f) for f in test["input"]["frames"]])
        agree((name, fields), test["output"])
        assert payload == unhex(test["output"]["payload"])


@pytest.mark.parametrize("operation", ["read_message", "decode_body", "decode_message"])
def test_what_is_refused_has_the_same_code(operation: str) -> None:
    read: dict[str, Callable[[Test, Test], object]] = {
        "read_message": lambda p, i: reader.read_frames([unhex(frame) for frame in i["frames"]]),
        "decode_body": lambda p, i: reader.read_body(p["kind"], unhex(i["body"])),
        "decode_message": lambda p, i: reader.read_message([unhex(frame) for frame in i["frames"]]),
    }
    tests = vectors_of(operation, result="invalid")
    assert tests
    for name, params, test in tests:
        with pytest.raises(reader.Refused) as caught:
            read[operation](params, test["input"])
        assert caught.value.code == test["code"], name


BODIES = ("body", "step", "caller", "called", "prepare", "prepared", "findings", "verdicts")


def test_every_other_body_is_canonical() -> None:
    """Whatever else is valid about a message or not: its bytes are those of one."""
    count = 0
    for file in FILES.values():
        for group in file["test_groups"]:
            if group["operation"] in ("decode_body", "read_message", "decode_message"):
                continue
            for given in (group["params"], *(test["input"] for test in group["tests"])):
                if group["operation"] == "answer_rank_zero" and "messages" in given:
                    sent = given["messages"]
                else:
                    sent = [one["body"] for one in given.get("messages", [])]
                named = [given[name] for name in BODIES if isinstance(given.get(name), str | list)]
                for body in (*sent, *given.get("before", []), *named):
                    reader.read_any(unhex(body))
                    count += 1
    assert count > 2000


def q_of(output: Test) -> dict[int, int]:
    return dict(zip(output["ids"], output["counts"], strict=True))


def entry_of(params: Test) -> dict[str, Any]:
    fields = reader.read_any(unhex(params["step"]))[1]
    entry: dict[str, Any] = fields["entries"][params["entry"]]
    return entry


def test_every_payload() -> None:
    for name, _, test in vectors_of("decode_payload", result="valid"):
        given = test["input"]
        found = reader.read_q(given["representation"], given["entries"], unhex(given["payload"]))
        assert found == q_of(test["output"]), name


def test_every_row_and_its_checksum() -> None:
    for name, params, test in vectors_of("read_row", result="valid"):
        given = test["input"]
        (row,) = reader.read_any(unhex(given["body"]))[1]["rows"]
        payload = unhex(given["payload"])
        assert (
            reader.row_checksum(entry_of(params), row, given["preceding"], payload)
            == (row["checksum"])
        ), name
        found = reader.read_q(row["representation"], row["entries"], payload)
        assert found == q_of(test["output"]), name


def test_every_completion_and_its_checksum() -> None:
    for name, params, test in vectors_of("check_completion", result="valid"):
        given = test["input"]
        (made,) = reader.read_any(unhex(given["body"]))[1]["entries"]
        sums = [integer(value) for value in given["row_checksums"]]
        found = reader.completion_checksum(
            entry_of(params), made["status"], given["reply_bytes"], sums
        )
        assert (found, made["status"]) == (made["checksum"], test["output"]["status"]), name


def test_every_proposal_and_its_digest() -> None:
    """Rows are taken as they come, without those that come again; the digest follows."""
    for name, params, test in vectors_of("collect", result="valid"):
        step = unhex(params["step"])
        entries = reader.read_any(step)[1]["entries"]
        rows: list[list[dict[str, Any]]] = [[] for _ in entries]
        for message in test["input"]["messages"]:
            kind, fields = reader.read_any(unhex(message["body"]))
            payload = unhex(message.get("payload", ""))
            for row in fields["rows"] if kind == "Rows" else ():
                bytes_of_row, payload = payload[: row["byte_length"]], payload[row["byte_length"] :]
                earlier = rows[row["entry"]]
                if row in earlier:
                    continue
                preceding = [one["token"] for one in earlier]
                entry = entries[row["entry"]]
                found = reader.row_checksum(entry, row, preceding, bytes_of_row)
                assert found == row["checksum"], name
                earlier.append(row)
        for index, finding in enumerate(test["output"]["findings"]):
            kept = rows[index] if finding["status"] == 0 else []
            digest = reader.proposal_digest(
                reader.entry_bytes(step, index),
                [row["token"] for row in kept],
                [row["checksum"] for row in kept],
            )
            assert digest == unhex(finding["digest"]), name


def test_every_agreement() -> None:
    for name, _, test in vectors_of("derive_terms", result="valid"):
        caller, called = (
            reader.read_any(unhex(test["input"][side]))[1] for side in ("caller", "called")
        )
        output = test["output"]
        terms = [
            unhex(value)
            if field == "vocabulary_hash"
            else integer(value)
            if field in ("staging_bytes",)
            else value
            for field, value in output["terms"].items()
        ]
        digest = reader.terms_digest(terms)
        assert digest == unhex(output["digest"]), name
        epoch = reader.link_epoch(caller["nonce"], called["nonce"], digest)
        assert epoch == integer(output["link_epoch"]), name


def recomputed(operation: str, given: Test) -> tuple[object, object]:
    """The value that the reader computes, and the one that the vector claims."""
    if operation == "row_checksum":
        place = {
            **given,
            "session_id": unhex(given["session_id"]),
            "generation": integer(given["generation"]),
        }
        found: object = reader.row_checksum(
            place, place, given["preceding"], unhex(given["payload"])
        )
        return found, integer(given["checksum"])
    if operation == "completion_checksum":
        place = {
            **given,
            "session_id": unhex(given["session_id"]),
            "generation": integer(given["generation"]),
        }
        sums = [integer(value) for value in given["row_checksums"]]
        size = integer(given["reply_bytes"])
        found = reader.completion_checksum(place, given["status"], size, sums)
        return found, integer(given["checksum"])
    if operation == "proposal_digest":
        sums = [integer(value) for value in given["row_checksums"]]
        entry = reader.entry_bytes(unhex(given["step"]), given["entry"])
        return reader.proposal_digest(entry, given["tokens"], sums), unhex(given["digest"])
    if operation == "decision_digest":
        return reader.decision_digest(unhex(given["body"])), unhex(given["digest"])
    if operation == "prefix_digest":
        found = reader.prefix_digest(unhex(given["session_id"]), given["tokens"])
        return found, unhex(given["digest"])
    if operation == "context_version":
        found = reader.context_version(
            given["target_checkpoint"],
            given["processors"],
            bytes.fromhex(given["temperature"]),
            given["stop_tokens"],
        )
        return found, integer(given["context"])
    assert operation == "vocabulary_hash"
    return reader.vocabulary_hash([unhex(one) for one in given["tokens"]]), unhex(given["hash"])


@pytest.mark.parametrize(
    "operation",
    [
        "row_checksum",
        "completion_checksum",
        "proposal_digest",
        "decision_digest",
        "prefix_digest",
        "context_version",
        "vocabulary_hash",
    ],
)
def test_every_checksum_and_digest(operation: str) -> None:
    for result in ("valid", "invalid"):
        tests = vectors_of(operation, result=result)
        assert tests
        for name, _, test in tests:
            found, claimed = recomputed(operation, test["input"])
            assert (found == claimed) == (result == "valid"), name


def test_every_decision_that_is_applied() -> None:
    for name, _, test in vectors_of("check_decision", result="valid"):
        body = unhex(test["input"]["body"])
        assert reader.decision_digest(body) == unhex(test["output"]["digest"]), name
