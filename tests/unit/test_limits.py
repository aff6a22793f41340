"""The numbers of the design, and that the bounds that meet on the wire fit each other."""

import struct

from proto_v2 import limits


def test_the_size_table_of_the_design() -> None:
    assert limits.VOCABULARY_SIZE_DEFAULT == 129_280
    assert limits.DEPTH_MAX == 5
    assert limits.REQUESTS_MAX == 4
    dense = limits.DENSE_ROW_BYTES_DEFAULT * limits.DEPTH_MAX
    assert dense == 2_585_600
    assert dense * limits.REQUESTS_MAX == 10_342_400
    assert limits.STAGING_BYTES_DEFAULT == 20_684_800
    sparse = [k * limits.SPARSE_ENTRY_BYTES * limits.DEPTH_MAX for k in limits.SUPPORTS_NAMED]
    assert sparse == [640, 1_280, 2_560, 10_240]


def test_every_count_is_exact_in_fp32() -> None:
    for count in (1, limits.MASS - 1, limits.MASS):
        q = count / limits.MASS
        assert struct.unpack("<f", struct.pack("<f", q))[0] == q


def test_bounds_fit_their_fields() -> None:
    assert limits.SLOTS_MAX == 8
    assert limits.REQUESTS_MAX * limits.DEPTH_MAX <= 255
    assert limits.VOCABULARY_SIZE_MAX <= 1 << 31
    assert limits.PAYLOAD_BYTES_MAX < 1 << 32
    assert limits.BODY_BYTES_MAX < 1 << 32
    assert limits.SUPPORT_MAX * limits.SPARSE_ENTRY_BYTES <= limits.PAYLOAD_BYTES_MAX
    assert limits.PREFIX_TOKENS_MAX + limits.DEPTH_MAX + 1 <= limits.POSITION_MAX
    assert limits.GENERATION_MAX < 1 << 63
    assert limits.ROUND_MAX < 1 << 32
    assert 0 < limits.TEMPERATURE_MIN < 1 < limits.TEMPERATURE_MAX
    assert limits.FRAMES_MAX == 3
