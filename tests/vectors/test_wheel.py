"""The wheel carries the vectors, and they are read from where they are installed."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from pp1 import vectors
from tests.vectors.values import DIRECTORY, files

ROOT = Path(__file__).parents[2]
READ = """
import sys
sys.path.insert(0, sys.argv[1])
from pp1 import vectors
print(vectors.__file__)
print(sum(vectors.load(name)["number_of_tests"] for name in vectors.names()))
print(vectors.load("schema")["title"])
"""


def test_the_tree_gives_the_files_of_the_specification() -> None:
    assert {name: vectors.load(name) for name in vectors.names()} == files()


def test_a_wheel_holds_every_file_and_gives_them_back(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "specs").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for package in ("proto_v2", "transport", "worker", "spark_rank", "pp1", "specs/vectors"):
        shutil.copytree(
            ROOT / package,
            tree / package,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", str(tmp_path), str(tree)],
        check=True,
        capture_output=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with ZipFile(wheel) as archive:
        for path in DIRECTORY.glob("*.json"):
            assert archive.read(f"pp1/vectors/data/{path.name}") == path.read_bytes()
    read = subprocess.run(
        [sys.executable, "-I", "-c", READ, str(wheel)],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    place, count, title = read.stdout.splitlines()
    assert place.startswith(str(wheel))
    assert int(count) == sum(file["number_of_tests"] for file in files().values())
    assert title == "PP1 test vectors"
