"""Every bound of every field, and the small helpers around token lists and texts."""

import msgspec
import pytest

from proto_v2 import limits
from proto_v2.codec import encode_body
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import (
    KINDS,
    Message,
    Nak,
    check_legal,
    clip_text,
    kind_of,
    refusal_fields,
    tokens_from_bytes,
    tokens_to_bytes,
)
from tests.proto_samples import SAMPLES, Bound, bounds_of, decode_body

PACK = msgspec.msgpack.encode
BOUNDS = [bound for message in KINDS.values() for bound in bounds_of(message)]
U64_MAX = (1 << 64) - 1


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_a_field_is_taken_at_its_bound_and_refused_beyond(bound: Bound) -> None:
    payload = b"" if bound.kind == 13 else None
    inside = decode_body(bound.kind, PACK(bound.inside), payload)
    assert kind_of(inside.message) == bound.kind
    with pytest.raises(ProtocolError) as caught:
        decode_body(bound.kind, PACK(bound.beyond), payload)
    assert caught.value.code is Code.MALFORMED


def test_every_field_has_a_bound() -> None:
    bounded = {bound.name.split(">")[0].split("<")[0] for bound in BOUNDS}
    assert len(bounded) > 150  # each of them asserts its own kind of bound while it is listed
    assert {bound.kind for bound in BOUNDS} == set(KINDS) - {40}  # Query has no field


def test_kinds_are_distinct_bytes() -> None:
    assert len(KINDS) == 29
    for kind, message in KINDS.items():
        assert 0 < kind < 256
        assert message.__struct_config__.tag == kind
        assert kind_of(SAMPLES[kind]) == kind


@pytest.mark.parametrize("message", KINDS.values())
def test_messages_are_immutable_strict_arrays(message: type[Message]) -> None:
    config = message.__struct_config__
    assert config.frozen
    assert config.array_like
    assert config.forbid_unknown_fields
    assert not config.gc
    assert message.__doc__


def test_a_whole_batch_fits_every_list() -> None:
    assert limits.REQUESTS_MAX * limits.DEPTH_MAX == 20
    rows = next(bound for bound in BOUNDS if bound.name == "Rows.len(rows)<=20")
    assert len(PACK(rows.inside)) < limits.BODY_BYTES_MAX


def test_the_longest_prompt_fits_a_body() -> None:
    at_limit = next(bound for bound in BOUNDS if bound.name == "Open.len(prompt)<=524288")
    assert len(PACK(at_limit.inside)) < limits.BODY_BYTES_MAX


@pytest.mark.parametrize("tokens", [[], [0], [1, -1, (1 << 31) - 1, -(1 << 31)], list(range(100))])
def test_tokens_are_packed_little_endian(tokens: list[int]) -> None:
    packed = tokens_to_bytes(tokens)
    assert packed == b"".join(token.to_bytes(4, "little", signed=True) for token in tokens)
    assert tokens_from_bytes(packed, "prompt") == tokens
    assert tokens_from_bytes(memoryview(packed), "prompt") == tokens


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 401])
def test_tokens_are_whole(size: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        tokens_from_bytes(bytes(size), "prompt")
    assert (caught.value.code, caught.value.field) == (Code.PREFIX_RANGE, "prompt")


def test_legal_ids() -> None:
    check_legal([0, 9], 10, Code.TOKEN_RANGE, "last")
    for token in (-1, 10, (1 << 31) - 1, -(1 << 31)):
        with pytest.raises(ProtocolError) as caught:
            check_legal([9, token], 10, Code.PROMPT_TOKEN, "prompt")
        assert (caught.value.code, caught.value.field, caught.value.got) == (
            Code.PROMPT_TOKEN,
            "prompt[1]",
            token,
        )


def test_texts_fit_their_messages() -> None:
    most = limits.TEXT_CHARS_MAX
    assert clip_text("x" * most) == "x" * most
    assert clip_text("x" * (most + 1)) == "x" * (most - 3) + "..."
    assert clip_text("a\nb\x1b[2J\u202e") == "a\\nb\\x1b[2J\\u202e"
    error = ProtocolError(Code.MALFORMED, "f" * 500, b"\xff" * 500, None)
    fields = refusal_fields(error)
    assert fields[0] == 120
    nak = Nak(*fields, step=0, session_id=b"")
    assert decode_body(6, encode_body(nak)).message == nak


def test_integers_of_64_bits_survive() -> None:
    nak = msgspec.structs.replace(SAMPLES[6], step=U64_MAX)
    assert decode_body(6, encode_body(nak)).message == nak
