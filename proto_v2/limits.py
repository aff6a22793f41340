"""Every bound of the contract, once.

A bound is checked against bytes that came from outside *before* memory is
touched on their behalf. Negotiation may lower a bound (see ``negotiate``) but
never raise one. The assertions at the end state how the bounds relate, so that
changing one without the others fails at import.

Source: the transport design's size table and message table (seed 000).
"""

from typing import Final

# Quantisation of q (seed 000, "dyadic categorical q") and of the target.
MASS_BITS: Final = 24
MASS: Final = 1 << MASS_BITS
TARGET_BITS: Final = 48

# Shapes.
VOCABULARY_SIZE_DEFAULT: Final = 129_280
VOCABULARY_SIZE_MAX: Final = 1 << 20
DEPTH_MAX: Final = 5
REQUESTS_MAX: Final = 4
BATCHES_IN_FLIGHT: Final = 2
SLOTS_MAX: Final = REQUESTS_MAX * BATCHES_IN_FLIGHT
SUPPORT_MAX: Final = 16_160
SUPPORTS_NAMED: Final = (16, 32, 64, 256)

# Identities, in bytes.
ID_BYTES: Final = 16
DIGEST_BYTES: Final = 16
SEED_BYTES: Final = 32
KEY_BYTES: Final = 8
VOCABULARY_HASH_BYTES: Final = 32
IDENTITY_CHARS_MAX: Final = 200
TEXT_CHARS_MAX: Final = 400

# Integers that travel.
POSITION_MAX: Final = (1 << 31) - 1
ROUND_MAX: Final = (1 << 32) - 1
GENERATION_MAX: Final = (1 << 63) - 1
PREFIX_TOKENS_MAX: Final = 1 << 17
SESSIONS_MAX: Final = 1024
LINKS_MAX: Final = 1024
REQUESTS_WAITING_MAX: Final = 64
STOP_TOKENS_MAX: Final = 64

# Proposal temperature of a STEP. Zero is not a temperature: greedy targets are
# a property of the target's own law, never of the proposal's.
TEMPERATURE_MIN: Final = 0.01
TEMPERATURE_MAX: Final = 100.0

# Bytes.
SPARSE_ENTRY_BYTES: Final = 8
DENSE_ENTRY_BYTES: Final = 4
HEADER_BYTES: Final = 64
BODY_BYTES_MAX: Final = 1 << 20
PAYLOAD_BYTES_MAX: Final = VOCABULARY_SIZE_MAX * DENSE_ENTRY_BYTES
FRAMES_MAX: Final = 3
DENSE_ROW_BYTES_DEFAULT: Final = VOCABULARY_SIZE_DEFAULT * DENSE_ENTRY_BYTES
STAGING_BYTES_DEFAULT: Final = (
    BATCHES_IN_FLIGHT * REQUESTS_MAX * DEPTH_MAX * DENSE_ROW_BYTES_DEFAULT
)

assert DENSE_ROW_BYTES_DEFAULT == 517_120
assert STAGING_BYTES_DEFAULT == 20_684_800
# A count is written as count / 2**24 in FP32: exact because FP32 has 24 bits.
assert MASS_BITS <= 24
# Target counts and counts shifted to the target's mass must fit int64 sums.
assert MASS_BITS <= TARGET_BITS <= 62
# Full-support sparse never costs more than a quarter of a dense row.
assert SUPPORT_MAX * SPARSE_ENTRY_BYTES * 4 == DENSE_ROW_BYTES_DEFAULT
assert PREFIX_TOKENS_MAX * 4 < BODY_BYTES_MAX
assert PREFIX_TOKENS_MAX <= POSITION_MAX
assert max(SUPPORTS_NAMED) <= SUPPORT_MAX
