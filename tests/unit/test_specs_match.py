"""The specification's tables are the code's, and its sentences are numbered once."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from proto_v2 import binding
from proto_v2.envelope import MAGIC, WIRE_VERSION
from proto_v2.errors import REGISTRY, Code
from proto_v2.limits import HEADER_BYTES
from proto_v2.messages import KINDS, Part
from spark_rank.pair import Phase
from tests.support.spec_tables import SPECS, TABLES, regions

TEXTS = sorted(SPECS.glob("0*.md"))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_generated_tables_are_current(path: Path) -> None:
    for name, content in regions(path.read_text()):
        assert content == TABLES[name](), f"run python -m tests.support.spec_tables ({name})"


def test_every_table_stands_somewhere() -> None:
    used = {name for path in TEXTS for name, _ in regions(path.read_text())}
    assert used == set(TABLES)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_requirement_numbers_are_in_order_without_gaps(path: Path) -> None:
    numbers = [int(n) for n in re.findall(r"^- \[[A-Z]+-(\d+)\]", path.read_text(), re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers


def test_header_table_covers_the_header() -> None:
    text = (SPECS / "03-wire.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ", text, re.MULTILINE)
    places = [(int(offset), int(size)) for offset, size in rows][:12]
    assert places[0][0] == 0
    for (offset, size), (following, _) in pairwise(places):
        assert offset + size == following
    assert sum(places[-1]) == HEADER_BYTES
    assert " ".join(f"{byte:02x}" for byte in MAGIC) in text
    assert f"wire version, {WIRE_VERSION}" in text


def test_every_field_has_a_meaning() -> None:
    text = (SPECS / "03-wire.md").read_text()
    table = text.split("| field | meaning and unit |")[1].split("\n\n")[0]
    described = [
        name for row in table.splitlines() for name in re.findall("`([a-z_0-9]+)`", row[:30])
    ]
    structs = [*KINDS.values(), *Part.__subclasses__()]
    fields = {field for struct in structs for field in struct.__struct_fields__}
    assert sorted(set(described) & fields) == sorted(fields)
    assert len(described) == len(fields)


def test_rules_are_numbered_and_carry_the_registrys_dispositions() -> None:
    text = (SPECS / "04-validation.md").read_text()
    rows = re.findall(r"^\| V(\d+) \|.*\| ([^|]+) \| ([a-z]+) \|$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 41))
    for _, codes, disposition in rows:
        for name, number in re.findall(r"([A-Z_]+) \((\d+)\)", codes):
            assert Code[name] == int(number)
            assert REGISTRY[Code[name]].disposition.name.lower() == disposition


def test_every_code_of_rows_is_the_code_of_a_rule() -> None:
    text = (SPECS / "04-validation.md").read_text()
    rules = set(re.findall(r"([A-Z_]+) \(4\d\d\)", text.split("## Checksums")[0]))
    against_earlier_rows = {Code.ROW_DUPLICATE.name}  # V-4
    assert rules | against_earlier_rows == {code.name for code in Code if 400 <= code < 500}


def test_the_layouts_are_those_of_the_binding() -> None:
    """A row checksum computed from the words of the table alone."""
    text = (SPECS / "04-validation.md").read_text()
    assert (
        "session_id[16], slot u32, generation u64, round u32, position u32, number of preceding "
        "tokens u32, token i32, representation u32, entries u32;" in text
    )
    assert "session_id[16], slot u32, generation u64, round u32, status u32, row count u32," in text
    assert binding._ROW.format == "<16sIQIIIiII"
    assert binding._COMPLETION.format == "<16sIQIIIQ"
    for person in re.findall(r'H128 "(PP1-[a-z]+-v2)"', text):
        assert len(person) <= 16


def test_phase_tables_name_every_phase() -> None:
    text = (SPECS / "06-pair.md").read_text()
    for phase in Phase:
        assert phase.name in text
