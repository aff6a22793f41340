"""Every validation rule is needed: it alone keeps out vectors that nothing else refuses."""

from typing import Any

import pytest

from proto_v2 import validate
from proto_v2.errors import ProtocolError
from tests.vectors.evaluate import evaluate
from tests.vectors.values import files
from tests.vectors.without import RULES, without

Case = tuple[str, dict[str, Any], dict[str, Any]]

ALONE: dict[str, list[Case]] = {rule: [] for rule in RULES}
for _file in files().values():
    for _group in _file["test_groups"]:
        for _test in _group["tests"]:
            if "only_rule" in _test:
                case = (_group["operation"], _group["params"], _test)
                ALONE[_test["only_rule"]].append(case)


def code_of(case: Case) -> str | None:
    operation, params, test = case
    try:
        evaluate(operation, params, test["input"])
    except ProtocolError as error:
        return error.code.name
    return None


def test_every_rule_of_the_text_has_vectors_that_only_it_refuses() -> None:
    assert [f"V{number:02}" for number in range(1, 41)] == RULES
    assert [rule for rule in RULES if not ALONE[rule]] == []


@pytest.mark.parametrize("rule", RULES)
def test_without_one_rule_exactly_its_own_vectors_pass(rule: str) -> None:
    with without(rule):
        for other, cases in ALONE.items():
            for case in cases:
                wanted = None if other == rule else case[2]["code"]
                assert code_of(case) == wanted, f"{other}: {case[2]['comment']}"


def test_the_rules_are_back_afterwards() -> None:
    before = validate.STEP_RULES, validate.ROW_RULES, validate.check_completion
    for rule in ("V01", "V15", "V37"):
        with without(rule):
            pass
    assert before == (validate.STEP_RULES, validate.ROW_RULES, validate.check_completion)
    for case in (cases[0] for cases in ALONE.values()):
        assert code_of(case) == case[2]["code"]
