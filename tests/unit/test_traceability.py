"""``specs/traceability.md``: nothing blank, and every name in it exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "specs"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (SPECS / "traceability.md").read_text("utf-8").splitlines()
    if re.match(r"\| [AB]\d+ \|", line)
]


def sentences() -> set[str]:
    """Every numbered sentence and rule of the normative texts."""
    text = "\n".join(path.read_text("utf-8") for path in sorted(SPECS.glob("0*.md")))
    return set(re.findall(r"^- \[([A-Z]+-\d+)\]", text, re.MULTILINE)) | set(
        re.findall(r"^\| (V\d+) \|", text, re.MULTILINE)
    )


def test_requirements_are_numbered_without_gaps() -> None:
    numbers = [row[0] for row in ROWS]
    last = {"A": 72, "B": 20}
    assert numbers == [f"{text}{n}" for text, end in last.items() for n in range(1, end + 1)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_name_exists(row: list[str]) -> None:
    _, requirement, specification, code, test = row
    assert requirement
    assert set(specification.split(", ")) <= sentences()
    assert (ROOT / code).is_file()
    file, _, name = test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)
