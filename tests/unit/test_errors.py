"""The registry is complete, its groups hold, and errors read as one safe line."""

import copy

import pytest

from proto_v2.errors import (
    REGISTRY,
    Code,
    Disposition,
    ExitCode,
    ProtocolError,
    Scope,
    known_code,
    one_line,
)


def test_every_code_has_one_row() -> None:
    assert set(REGISTRY) == set(Code)
    assert len({int(code) for code in Code}) == len(Code)
    assert len({entry.text for entry in REGISTRY.values()}) == len(REGISTRY)
    for entry in REGISTRY.values():
        assert isinstance(entry.scope, Scope)
        assert isinstance(entry.disposition, Disposition)
        assert entry.text.isprintable()
        assert not entry.text.endswith(".")


@pytest.mark.parametrize("code", Code)
def test_groups_have_the_dispositions_of_their_layer(code: Code) -> None:
    allowed = {
        1: {Disposition.DROP, Disposition.NAK},
        2: {Disposition.REFUSE, Disposition.NAK},
        3: {Disposition.NAK, Disposition.DISCARD, Disposition.DROP},
        4: {Disposition.DISCARD},
        5: {Disposition.DISCARD, Disposition.DROP},
        6: {Disposition.END, Disposition.DROP, Disposition.DISCARD},
        7: {Disposition.DISCARD, Disposition.END},
        8: {Disposition.REFUSE, Disposition.END},
        9: {Disposition.EXIT},
    }
    assert REGISTRY[code].disposition in allowed[code // 100]
    assert ProtocolError(code, "f", 1, 2).entry is REGISTRY[code]


def test_an_error_says_code_field_wanted_and_got() -> None:
    error = ProtocolError(Code.DEPTH_RANGE, "depth", "0..5", 6)
    assert str(error) == (
        "DEPTH_RANGE (308): the depth is outside the terms; field depth: wanted 0..5, got 6"
    )
    assert error.args == (Code.DEPTH_RANGE, "depth", "0..5", 6)


def test_an_error_can_be_rebuilt_from_its_arguments() -> None:
    error = copy.copy(ProtocolError(Code.DEPTH_RANGE, "depth", "0..5", 6))
    assert isinstance(error, ProtocolError)
    assert error.args == (Code.DEPTH_RANGE, "depth", "0..5", 6)


def test_an_error_is_one_line_whatever_a_peer_wrote() -> None:
    text = str(ProtocolError(Code.REQUEST_LIMIT, "a\nb", "\x1b[31m", "\r\u2028\u202e"))
    assert text.isprintable()
    assert "a\\nb" in text
    assert "\\x1b[31m" in text


def test_one_line_leaves_printable_text_alone() -> None:
    assert one_line("größe 世界 'x' \\n") == "größe 世界 'x' \\n"
    assert one_line(b"\n\xff") == "0aff"
    assert one_line(None) == "None"


def test_known_codes() -> None:
    assert known_code(400, Code.MALFORMED) is Code.Q_MISSING
    for number in (-1, 0, 110, 399, 999, 1 << 40):
        assert known_code(number, Code.MALFORMED) is Code.MALFORMED


def test_exit_codes_are_fixed() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "CHECK_FAILED": 1,
        "USAGE": 2,
        "CONFIG": 3,
        "REFUSED": 4,
        "UNREACHABLE": 5,
        "PREFLIGHT": 6,
        "INVARIANT": 70,
    }
