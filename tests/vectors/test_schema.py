"""The files keep to their schema and cover what they have to cover."""

import json
import re
from collections import Counter
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from proto_v2 import limits
from proto_v2.errors import Code
from proto_v2.messages import KINDS
from tests.support.spec_tables import SPECS
from tests.vectors.schema import OPERATIONS
from tests.vectors.values import DIRECTORY, files

FILES = files()
TESTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (name, group, test)
    for name, file in FILES.items()
    for group in file["test_groups"]
    for test in group["tests"]
]

# Bounds that no message shows: what a process holds, not what a peer may send.
NOT_ON_THE_WIRE = {
    "SLOTS_MAX": "REQUESTS_MAX x BATCHES_IN_FLIGHT, which both are",
    "SUPPORTS_NAMED": "names of usual supports, not a bound",
    "SESSIONS_MAX": "sessions that an engine holds",
    "LINKS_MAX": "connections that a listener holds",
    "REQUESTS_WAITING_MAX": "requests that rank 0 holds",
}
# Codes that do not follow from bytes and the state of one session.
NOT_FROM_BYTES = {
    "SLOT_BUSY": "a consumer still reads the slot",
    "STALE_LEASE": "a use of a slot after its round, inside one process",
    "SESSION_LIMIT": "how many sessions an engine holds",
    "REQUEST_LIMIT": "how many requests wait",
    "DRAFT_LATE": "time",
    "WORKER_DOWN": "a connection is gone",
    "DRAFT_FAILED": "the draft engine raised",
    "BREAKER_OPEN": "earlier steps failed",
    "RESET_PENDING": "an answer has not come yet",
    "RANK_LOST": "a connection is gone",
    "TARGET_FAILED": "the target engine raised",
    "SESSION_POISONED": "an earlier failure",
    "TARGET_LATE": "time",
    "RESIDUAL_EMPTY": "cannot happen for a p and a q of one total (01)",
    "RNG_EXHAUSTED": "happens with probability below 2^-256 (02)",
    "CANCELLED": "somebody asked for it",
    "CONFIG_INVALID": "start-up",
    "ADDRESS_IN_USE": "start-up",
    "MODEL_MISSING": "start-up",
    "MEMORY_SHORT": "start-up",
    "PEER_UNREACHABLE": "start-up",
}


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json.loads((DIRECTORY / "schema.json").read_text())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_file_keeps_to_the_schema(name: str, validator: Draft202012Validator) -> None:
    errors = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in validator.iter_errors(FILES[name])
    ]
    assert errors == []


def test_the_schema_refuses_what_is_no_vector(validator: Draft202012Validator) -> None:
    file = json.loads(json.dumps(FILES["sampling"]))
    first = file["test_groups"][0]["tests"][0]
    changes: tuple[dict[str, Any], ...] = (
        {"result": "acceptable"},
        {"result": "invalid"},
        {"result": "invalid", "code": "NO_SUCH_CODE"},
        {"code": "MASS_WRONG"},
        {"input": {}},
        {"input": {"ticket": 1.5}},
        {"output": {"tokens": [1]}},
        {"flags": []},
        {"tc_id": 0},
    )
    for change in changes:
        file["test_groups"][0]["tests"][0] = {**first, **change}
        assert not validator.is_valid(file), change
    file["test_groups"][0]["tests"][0] = first
    assert validator.is_valid(file)


def test_there_are_enough_of_both() -> None:
    results = Counter(test["result"] for _, _, test in TESTS)
    assert results["valid"] >= 400
    assert results["invalid"] >= 1600


@pytest.mark.parametrize("name", sorted(FILES))
def test_tests_are_numbered_counted_and_distinct(name: str) -> None:
    file = FILES[name]
    groups = file["test_groups"]
    ids = [test["tc_id"] for group in groups for test in group["tests"]]
    assert sorted(ids) == list(range(1, file["number_of_tests"] + 1))
    inputs = Counter(
        json.dumps([group["operation"], group["params"], test["input"]], sort_keys=True)
        for group in groups
        for test in group["tests"]
    )
    assert max(inputs.values()) == 1


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_flag_is_explained_and_used(name: str) -> None:
    file = FILES[name]
    used = {
        flag for group in file["test_groups"] for test in group["tests"] for flag in test["flags"]
    }
    assert used == set(file["notes"])


def test_every_sentence_that_a_note_names_stands_in_its_text() -> None:
    texts = {path.name[:2]: path.read_text() for path in SPECS.glob("0*.md")}
    for file in FILES.values():
        for note in file["notes"].values():
            for reference in note["spec"]:
                text, sentence = reference.split("-", 1)
                marked = f"- [{sentence}] " if "-" in sentence else f"| {sentence} |"
                assert marked in texts[text], reference


def test_every_bound_that_the_wire_shows_has_a_vector_below_at_and_above() -> None:
    found: dict[str, set[int]] = {}
    for _, _, test in TESTS:
        if "limit" in test:
            found.setdefault(test["limit"]["name"], set()).add(test["limit"]["offset"])
    bounds = {name for name in vars(limits) if name.isupper()}
    assert set(found) == bounds - set(NOT_ON_THE_WIRE)
    assert {name: sides for name, sides in found.items() if sides != {-1, 0, 1}} == {}
    assert set(NOT_ON_THE_WIRE) <= bounds


def test_every_code_that_bytes_can_lead_to_is_that_of_a_vector() -> None:
    found = {test["code"] for _, _, test in TESTS if "code" in test}
    assert found == {code.name for code in Code} - set(NOT_FROM_BYTES)
    assert set(NOT_FROM_BYTES) <= {code.name for code in Code}


def test_every_message_is_read_and_refused_in_every_way() -> None:
    flags: dict[str, set[str]] = {message.__name__: set() for message in KINDS.values()}
    for _, group, test in TESTS:
        if group["operation"] == "decode_body" and group["params"]["message"]:
            flags[group["params"]["message"]].update(test["flags"])
    for name, found in flags.items():
        assert {"Typical", "LongerForm", "ElementCount", "Trailing", "WrongType"} <= found, name


def test_every_field_is_read_at_its_bounds_and_refused_beyond() -> None:
    """By the comments, which begin with the path of the field."""
    paths: dict[tuple[str, str], set[str]] = {}
    for _, group, test in TESTS:
        if group["operation"] == "decode_body":
            path = re.sub(r"\[\d+\]", "", test["comment"].split(" is ")[0])
            key = group["params"]["message"], path
            paths.setdefault(key, set()).update([test["result"], *test["flags"]])
    for message in KINDS.values():
        for field in message.__struct_fields__:
            found = paths[message.__name__, field]
            assert {"valid", "invalid", "Bound", "WrongType"} <= found, (message, field)


def test_the_read_me_names_every_file_and_operation() -> None:
    text = (DIRECTORY / "README.md").read_text()
    for name in FILES:
        assert f"`{name}.json`" in text
    for operation in OPERATIONS:
        assert f"`{operation}`" in text
