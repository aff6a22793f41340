"""One target under the fuzzing engine: ``python -m tests.fuzz.loop TARGET [libFuzzer options]``.

Started by ``tests.fuzz.run``. Coverage is taken of the product's packages only.
"""

import sys

import atheris

with atheris.instrument_imports(include=["proto_v2", "worker", "spark_rank"]):
    from tests.fuzz.targets import TARGETS


def native(data: bytes, most: int) -> bytes:
    """The engine's own mutation; the engine only exists once it runs."""
    changed: bytes = atheris.Mutate(data, most)
    return changed


def main() -> None:
    name, *options = sys.argv[1:]
    target = TARGETS[name]
    limit = f"-max_len={target.most_bytes}"
    atheris.Setup(["fuzz", *options, limit], target.run, custom_mutator=target.mutate(native))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
