"""Every kind of refusal says field, wanted and got as listed in ``refusals.json``."""

import json

from .refusals import PATH, chosen


def test_the_texts_of_refusals_are_the_listed_ones() -> None:
    listed = json.loads(PATH.read_text())
    found = chosen()
    wrong = [pair for pair in zip(listed, found, strict=False) if pair[0] != pair[1]]
    assert not wrong, f"{len(wrong)}, first: {wrong[0]}; python -m tests.vectors.refusals"
    assert len(listed) == len(found)
