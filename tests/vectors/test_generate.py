"""The files are those that the generator makes, and the generator uses nothing of the product."""

import ast
import re
from pathlib import Path

from tests.vectors import families
from tests.vectors.generate import texts
from tests.vectors.values import DIRECTORY

HERE = Path(__file__).parent


def test_the_files_are_what_the_generator_makes() -> None:
    made = texts()
    assert sorted(made) == sorted(path.name for path in DIRECTORY.glob("*.json"))
    for name, text in made.items():
        same = (DIRECTORY / name).read_text() == text
        assert same, f"{name} differs; run make vectors"


def test_the_generator_imports_the_oracle_and_nothing_of_the_product() -> None:
    sources = [*Path(families.__path__[0]).glob("*.py")]
    sources += [
        HERE / f"{name}.py"
        for name in ("generate", "layout", "pack", "philox", "scene", "schema", "suite", "values")
    ]
    ours = re.compile(r"^(proto_v2|transport|worker|spark_rank|pp1|tests)\b")
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                assert not ours.match(node.module), source.name
            elif isinstance(node, ast.Import):
                assert not any(ours.match(name.name) for name in node.names), source.name
