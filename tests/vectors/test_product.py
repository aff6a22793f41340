"""The product takes every valid vector and refuses every other one with exactly its code."""

import json
from typing import Any

import pytest

from proto_v2.errors import ProtocolError
from tests.vectors.evaluate import OPERATIONS, Refused, evaluate
from tests.vectors.suite import plain
from tests.vectors.values import files

FILES = files()
CASES = sorted(
    {(name, group["operation"]) for name, file in FILES.items() for group in file["test_groups"]}
)


def difference(operation: str, params: dict[str, Any], test: dict[str, Any]) -> str | None:
    """How the product's answer differs from the vector's, if it does."""
    code, field, output = None, None, None
    try:
        output = evaluate(operation, params, test["input"])
    except ProtocolError as error:
        code, field = error.code.name, error.field
        output = error.output if isinstance(error, Refused) else None
    if code != test.get("code"):
        return f"code {code}, wanted {test.get('code')}"
    if "field" in test and field != test["field"]:
        return f"field {field}, wanted {test['field']}"
    if "output" in test:
        found = json.loads(json.dumps(plain(output)))
        if found != test["output"]:
            return f"output {found}, wanted {test['output']}"
    return None


@pytest.mark.parametrize(("name", "operation"), CASES)
def test_every_vector(name: str, operation: str) -> None:
    wrong = [
        f"{test['tc_id']} {test['comment']}: {found}"
        for group in FILES[name]["test_groups"]
        if group["operation"] == operation
        for test in group["tests"]
        if (found := difference(operation, group["params"], test)) is not None
    ]
    assert not wrong, f"{len(wrong)} vectors, first: {wrong[:5]}"


def test_every_operation_is_evaluated_and_used() -> None:
    assert {operation for _, operation in CASES} == set(OPERATIONS)
