"""The specification's tables are the code's, and its sentences are numbered once."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from proto_v2.envelope import MAGIC, WIRE_VERSION
from proto_v2.limits import HEADER_BYTES
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


def test_phase_tables_name_every_phase() -> None:
    text = (SPECS / "06-pair.md").read_text()
    for phase in Phase:
        assert phase.name in text
