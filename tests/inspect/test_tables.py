"""The description files, the rule numbers and the names are those of code and specification."""

import re

import pytest

from pp1.inspect import rules
from pp1.inspect.message import HEADER
from pp1.inspect.output import TOKENS
from proto_v2.errors import Code
from proto_v2.messages import KINDS, Part
from tests.inspect.tables import PATHS, TABLES, regions
from tests.support.spec_tables import SPECS


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_generated_tables_are_current(path) -> None:  # type: ignore[no-untyped-def]
    found = regions(path.read_text())
    assert found
    for name, content in found:
        assert content == TABLES[name](), f"run python -m tests.inspect.tables ({name})"


def test_every_table_stands_somewhere() -> None:
    used = [name for path in PATHS for name, _ in regions(path.read_text())]
    assert sorted(used) == sorted(TABLES)


def test_the_header_is_that_of_the_specification() -> None:
    text = (SPECS / "03-wire.md").read_text().split("## Body")[0]
    places = [(int(at), int(size)) for at, size in re.findall(r"^\| (\d+) \| (\d+) \|", text, re.M)]
    assert places == [(at, size) for _, at, size in HEADER]


def test_packed_tokens_are_the_fields_that_the_specification_says() -> None:
    text = (SPECS / "03-wire.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \| [^|]*i32 each", text, re.M))
    structs = [*KINDS.values(), *Part.__subclasses__()]
    assert named == TOKENS
    assert all(any(name in struct.__struct_fields__ for struct in structs) for name in TOKENS)


def numbered() -> dict[str, tuple[str, str]]:
    """Rule number to (what holds, codes), over both tables of the specification."""
    text = (SPECS / "04-validation.md").read_text()
    rows = re.findall(r"^\| (V\d+) \|(.*)\| ([^|]+) \| [a-z]+ \|$", text, re.M)
    return {number: (holds, codes) for number, holds, codes in rows}


def test_every_rule_function_has_its_number_of_the_specification() -> None:
    table = numbered()
    for function, number in rules.NUMBERED.items():
        assert f"`{function}`" in table[number][0]


@pytest.mark.parametrize("name", ["ROW", "DRAW", "COMPLETION"])
def test_every_code_is_one_of_its_rule(name: str) -> None:
    table = numbered()
    judged: dict[Code, str] = getattr(rules, name)
    for code, number in judged.items():
        assert f"{code.name} ({int(code)})" in table[number][1]


def test_the_rules_of_rows_and_completions_are_all_there() -> None:
    known = {
        *rules.NUMBERED.values(), rules.PAYLOAD, rules.STATUS,
        *rules.ROW.values(), *rules.DRAW.values(), *rules.COMPLETION.values(),
    }  # fmt: skip
    state = {f"V{number}" for number in range(16, 22)}  # these need the session itself
    assert known | state == set(numbered())


@pytest.mark.parametrize(
    "number", [rules.ENVELOPE, *sorted(set(rules.CODEC.values())), rules.REPEATED_ROW]
)
def test_sentences_with_a_number_exist(number: str) -> None:
    texts = [path.read_text() for path in sorted(SPECS.glob("0*.md"))]
    assert sum(text.count(f"- [{number}] ") for text in texts) == 1
