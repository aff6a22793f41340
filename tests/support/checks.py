"""What the machine tests ask of requests and of discarded proposals."""

from typing import TypeVar

import msgspec

from proto_v2.errors import Code
from proto_v2.messages import Decide, Invalidate, Invalidated, Reset
from tests.support.doubles import Bench
from tests.support.trio import Answer
from tests.support.wire import Wire

Struct = TypeVar("Struct", bound=msgspec.Struct)


def replace(message: Struct, **fields: object) -> Struct:
    """A copy of a message or part with other fields."""
    return msgspec.structs.replace(message, **fields)


def check_done(answer: Answer, length: int) -> None:
    """The request ended well, and drafts were used."""
    assert answer.failed is None
    assert answer.finished is not None
    assert len(answer.tokens) == length
    assert answer.finished.drafted > 0


def code_of(answer: Answer) -> Code:
    """The code that a request ended with."""
    assert answer.finished is None
    assert answer.failed is not None
    return Code(answer.failed.code)


def reasons(answer: Answer) -> list[int]:
    """Why rounds had no drafts, where something went wrong."""
    return [message.reason for message in answer.rounds if message.reason]


def speculates_after(answer: Answer, reason: Code) -> None:
    """The discarded round committed one target token; a later one had drafts again."""
    place = [message.reason for message in answer.rounds].index(reason)
    assert answer.rounds[place].depth == 0
    assert len(answer.rounds[place].tokens) == 4
    assert any(message.depth for message in answer.rounds[place + 1 :])


def check_discard(bench: Bench, wire: Wire, answer: Answer, code: Code) -> None:
    """One proposal of one request was discarded, whole and on both ranks, for this reason.

    Then a target-only round, a new generation, and speculation again to the end.
    """
    assert answer.failed is None
    assert answer.finished is not None
    assert reasons(answer) == [code]
    speculates_after(answer, code)
    assert bench.trio.count("rank0", "pp1_proposals_discarded_total") == 1
    assert bench.trio.count("rank0", "pp1_proposals_discarded_total", reason=code.name) == 1
    (asked,) = wire.of(Invalidate)
    (ended,) = wire.of(Invalidated)
    assert asked.entries == ended.entries
    (entry,) = asked.entries
    assert (entry.generation, entry.reason) == (1, code)
    session_id = entry.session_id
    (use,) = [decide.uses for decide in wire.of(Decide) if decide.step == asked.step]
    assert not all(use)
    generations = [reset.generation for reset in wire.of(Reset) if reset.session_id == session_id]
    assert generations == [1, 2]
    bench.check_rest()
