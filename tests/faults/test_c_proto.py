"""Fault kinds C (staleness, slots, generations), as far as values alone decide them."""

from typing import Any

import msgspec
import pytest

from proto_v2.codec import encode_body
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Rows, check_legal, tokens_from_bytes, tokens_to_bytes
from proto_v2.validate import check_row
from tests.proto_samples import chain, decode_body, plain, step, step_entry, terms

TERMS = terms()


@pytest.mark.parametrize("field", ["position", "round", "generation", "depth", "slot"])
def test_c08_a_negative_anchor_does_not_decode(field: str) -> None:
    """C8: -1 as an anchor, round, generation, depth or slot is no value of the wire."""
    body: list[Any] = plain(step(step_entry()))
    fields = step_entry().__struct_fields__
    body[2][0][fields.index(field)] = -1
    with pytest.raises(ProtocolError) as caught:
        decode_body(12, msgspec.msgpack.encode(body))
    assert caught.value.code is Code.MALFORMED


def test_c08_a_negative_draft_id_is_refused_before_its_q_is_read() -> None:
    """C8: a row with token -1 fails on its descriptor; nothing is looked up with it."""
    rows, _ = chain(step_entry())
    wrong = msgspec.structs.replace(rows[0], token=-1)
    received = decode_body(13, encode_body(Rows(1, (wrong,))), b"").message
    assert isinstance(received, Rows)
    with pytest.raises(ProtocolError) as caught:
        check_row(TERMS, step_entry(), 0, received.rows[0])
    assert caught.value.code is Code.TOKEN_RANGE


@pytest.mark.parametrize("where", [0, 1, 2])
def test_c08_a_placeholder_in_a_prefix_or_commit_is_refused(where: int) -> None:
    """C8: -1 anywhere in a list of committed tokens is refused, and its place is named."""
    tokens = [5, 6, 7]
    tokens[where] = -1
    with pytest.raises(ProtocolError) as caught:
        check_legal(
            tokens_from_bytes(tokens_to_bytes(tokens), "suffix"), 10, Code.TOKEN_RANGE, "suffix"
        )
    assert (caught.value.code, caught.value.field) == (Code.TOKEN_RANGE, f"suffix[{where}]")
