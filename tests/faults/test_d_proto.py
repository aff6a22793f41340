"""Fault kinds D (ranks disagree), as far as negotiation alone decides them."""

from typing import Any

import pytest

from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Role
from proto_v2.negotiate import Handshake, derive_terms
from tests.proto_samples import hello


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("draft_checkpoint", "", Code.DRAFT_MISMATCH),
        ("draft_native", False, Code.DRAFT_MISMATCH),
        ("representations", (), Code.NO_COMMON_REPRESENTATION),
        ("depth_max", 0, Code.BOUND_TOO_SMALL),
        ("verifier", "", Code.VERIFIER_MISMATCH),
    ],
)
def test_d08_speculation_on_one_rank_only_is_refused_at_hello(
    field: str, value: Any, code: Code
) -> None:
    """D8: ranks with different speculation settings never reach a common step."""
    one = Handshake(hello(Role.RANK_ONE, **{field: value}), calling=False)
    zero = Handshake(hello(), calling=True)
    one.on_hello(bytes(16), zero.hello)
    zero.on_hello(bytes(16), one.hello)
    for side in (zero, one):
        assert side.agreed is None
        assert side.refused is not None
        assert (side.refused.code, side.refused.field) == (code, field)


def test_d08_ranks_that_differ_in_a_bound_share_the_lower_one() -> None:
    """D8: depth and batch are part of the terms, so no rank can have its own."""
    agreed = derive_terms(hello(), hello(Role.RANK_ONE, depth_max=2, requests_max=3))
    assert (agreed.depth_max, agreed.requests_max) == (2, 3)
    with pytest.raises(ProtocolError):
        derive_terms(hello(), hello(Role.RANK_ONE, depth_max=2, draft_checkpoint=""))
