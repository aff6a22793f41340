"""What the product says when it refuses: one invalid vector for each text.

``refusals.json`` lists the texts for a person to read, and a test compares them.
``python -m tests.vectors.refusals`` writes it anew.
"""

import json
import re
from pathlib import Path
from typing import Any, Final

from proto_v2.errors import Code, ProtocolError

from .evaluate import evaluate
from .values import files

PATH: Final = Path(__file__).with_name("refusals.json")
# Their invalid vectors are values that differ: the test says so, not the product.
_COMPARED: Final = ("digests", "vocabulary")


def refusal(operation: str, params: dict[str, Any], test: dict[str, Any]) -> ProtocolError:
    """The error of an invalid vector."""
    try:
        evaluate(operation, params, test["input"])
    except ProtocolError as error:
        return error
    raise AssertionError(f"{operation} {test['tc_id']} was taken")


def chosen() -> list[list[Any]]:
    """File, number and text of the first vector of every kind of refusal, numbers left aside."""
    known: set[tuple[Any, ...]] = set()
    found = []
    for name, file in files().items():
        if name in _COMPARED:
            continue
        for group in file["test_groups"]:
            for test in group["tests"]:
                if test["result"] == "valid":
                    continue
                error = refusal(group["operation"], group["params"], test)
                wanted = re.sub(r"[0-9a-f]{8,}|[0-9][0-9.e+-]*", "#", str(error.wanted))
                if error.code is Code.MALFORMED:
                    wanted = ""  # the decoder says itself what is wrong
                key = (group["operation"], error.code, error.field, wanted)
                if key not in known:
                    known.add(key)
                    found.append([name, test["tc_id"], str(error)])
    return found


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(entry) for entry in chosen())
    PATH.write_text(f"[\n{lines}\n]\n")
