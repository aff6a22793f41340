"""Fault kinds met in the numbers themselves: A5, A9, A16, A17, A18, B3, E10, F4, F6.

What the messages and the verifier do about the same kinds stands in the
neighbouring files; here it is counts, bytes and tickets.
"""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from numpy.typing import NDArray

from proto_v2 import limits
from proto_v2.dyadic import Categorical, full_support, top_k
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Row, StepEntry
from proto_v2.representation import Representation, decode, encode, row_entries
from proto_v2.rng import Domain, KeyedTickets, Owner, TicketSource, derive_key
from proto_v2.validate import check_step, read_row
from spark_rank.verify import verify_chain
from tests.proto_samples import row, step, step_entry, terms
from tests.support.chains import dense_row, logits_of
from tests.support.enumerate_tickets import enumerate_runs

DENSE, SPARSE = Representation.DENSE_F32, Representation.SPARSE_F32
V = limits.VOCABULARY_SIZE_DEFAULT
SEED = 20250805


def code_of(
    representation: Representation, payload: bytes, entries: int, size: int, legal: int = 0
) -> Code:
    with pytest.raises(ProtocolError) as refusal:
        decode(representation, payload, entries, vocabulary_size=size, legal_size=legal or size)
    return refusal.value.code


def sparse_payload(ids: list[int], counts: list[int]) -> bytes:
    values = np.array(counts) / limits.MASS
    return np.array(ids, dtype="<i4").tobytes() + values.astype("<f4").tobytes()


def as_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of the bits, rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def sampled_row(size: int = 64) -> Categorical:
    weights = np.exp(2 * np.random.default_rng(SEED).normal(size=size))
    return full_support(weights / weights.sum())


# --- A5 ------------------------------------------------------------------------------------


def test_a05_what_a_padded_row_holds_is_not_a_q() -> None:
    """A5: nothing, zeros and -1 ids, the usual padding, are refused by value."""
    assert code_of(SPARSE, b"", 0, 8) is Code.ROW_ENTRIES
    assert code_of(DENSE, bytes(32), 8, 8) is Code.MASS_WRONG
    assert code_of(SPARSE, sparse_payload([-1], [limits.MASS]), 1, 8) is Code.ID_RANGE


@pytest.mark.parametrize("representation", list(Representation))
def test_a05_a_write_over_the_buffer_does_not_reach_a_q_already_read(
    representation: Representation,
) -> None:
    """A5: a padded row that lands in a live request's memory finds its q copied out."""
    sent = sampled_row()
    buffer = bytearray(encode(sent, representation))
    entries = row_entries(representation, bytes(buffer))
    live = decode(representation, memoryview(buffer), entries, vocabulary_size=64, legal_size=64)
    buffer[:] = b"\xff" * len(buffer)
    assert live.dense().tolist() == sent.counts.tolist()


# --- A9 ------------------------------------------------------------------------------------


def test_a09_half_precision_between_sender_and_receiver_is_seen() -> None:
    """A9: one ticket flushed to zero leaves a row of the right total; its token gives it away."""
    entry = step_entry()
    counts = np.zeros(12, dtype=np.int64)
    counts[[1, 2]] = limits.MASS - 1, 1
    payload = encode(Categorical(12, None, counts), DENSE)
    honest = row(entry, 0, payload)
    assert honest.token == 2
    assert read_row(terms(), entry, 0, (), honest, payload).count_of(2) == 1

    values = np.frombuffer(payload, dtype="<f4").astype(np.float16)
    flushed = np.where(np.abs(values) < np.finfo(np.float16).smallest_normal, 0, values)
    for staged, code in ((values, Code.MASS_WRONG), (flushed, Code.TOKEN_ZERO_Q)):
        changed = staged.astype("<f4").tobytes()
        with pytest.raises(ProtocolError) as refusal:
            read_row(terms(), entry, 0, (), honest, changed)
        assert refusal.value.code is Code.ROW_CHECKSUM
        with pytest.raises(ProtocolError) as refusal:
            read_row(terms(), entry, 0, (), row(entry, 0, changed), changed)
        assert refusal.value.code is code, "also when the stage came before the checksum"


def test_a09_no_count_is_near_the_subnormals() -> None:
    """A9: one ticket is 2**-24, a hundred binades above FP32's; what lies below is refused."""
    one = np.frombuffer(encode(dense_row((limits.MASS - 1, 1), 24), DENSE), dtype="<f4")[1]
    assert one == 2.0**-24 > 2.0**100 * np.finfo(np.float32).smallest_normal
    for bits in (1, 0x7FFFFF, 0x800000):
        payload = np.array([0x3F800000, bits], dtype="<u4").tobytes()
        assert code_of(DENSE, payload, 2, 2) is Code.VALUE_DYADIC


# --- A16 -----------------------------------------------------------------------------------

P, Q, BITS = (4, 2, 2), (2, 2, 4), 3


def output_law(token: int, claimed: Categorical) -> dict[int, Fraction]:
    """The law of what comes out when ``token`` is always proposed and ``claimed`` is its q."""
    logits = np.stack([logits_of(P, BITS)] * 2)

    def run(tickets: TicketSource) -> int:
        return verify_chain(
            position=0,
            round_=1,
            drafts=(token,),
            rows=(claimed,),
            logits=logits,
            tickets=tickets,
            stop_tokens=frozenset(),
            room=1,
            legal_size=3,
            target_bits=BITS,
        ).tokens[0]

    return enumerate_runs(run)


def test_a16_a_greedy_token_has_a_point_mass_and_the_exact_law() -> None:
    """A16: a drafter that always takes the mode is k = 1, and its q says so on every ticket."""
    weights = np.array(Q) / 8
    greedy = top_k(weights, 1, BITS)
    assert {greedy.token_at(ticket) for ticket in range(8)} == {2}
    assert greedy.dense().tolist() == [0, 0, 8]
    target = {token: Fraction(count, 8) for token, count in enumerate(P)}
    assert output_law(2, greedy) == target

    conflated = output_law(2, full_support(weights, BITS))
    assert conflated == {0: Fraction(1, 2), 2: Fraction(1, 2)}, "the planted fault must be seen"


def test_a16_nothing_on_the_wire_can_call_a_proposal_greedy() -> None:
    """A16: no kind beside q that could contradict it, and no temperature that means greedy."""
    fields = {*Row.__struct_fields__, *StepEntry.__struct_fields__}
    assert not [name for name in fields if "greedy" in name or "kind" in name or "mode" in name]
    with pytest.raises(ProtocolError) as refusal:
        check_step(terms(), step(step_entry(temperature=0.0)))
    assert refusal.value.code is Code.TEMPERATURE_RANGE


# --- A17 -----------------------------------------------------------------------------------


@pytest.mark.parametrize("support", [0, 1, 32, 256])
@pytest.mark.parametrize("representation", list(Representation))
def test_a17_sender_and_receiver_draw_alike_at_the_full_vocabulary(
    representation: Representation, support: int
) -> None:
    """A17: at every edge between two tokens, both sides of the wire name the same token."""
    print(f"seed {SEED}")
    logits = 3 * np.random.default_rng(SEED).normal(size=V) / 0.6
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    sent = top_k(weights, support) if support else full_support(weights)
    payload = encode(sent, representation)
    arrived = decode(
        representation, payload, row_entries(representation, payload), vocabulary_size=V,
        legal_size=V,
    )  # fmt: skip
    edges = np.cumsum(sent.counts[sent.counts > 0])[:-1]
    for edge in [*edges[:40].tolist(), *edges[-40:].tolist()]:
        for ticket in (edge - 1, edge):
            token = sent.token_at(ticket)
            assert arrived.token_at(ticket) == token
            assert arrived.count_of(token) == sent.count_of(token) > 0
    assert arrived.token_at(limits.MASS - 1) == sent.token_at(limits.MASS - 1)


# --- A18 -----------------------------------------------------------------------------------


def test_a18_uniform_probabilities_are_not_a_row() -> None:
    """A18: 1/V is no whole number of tickets, so the claim does not even decode."""
    payload = np.full(V, 1 / V, dtype="<f4").tobytes()
    assert code_of(DENSE, payload, V, V) is Code.VALUE_DYADIC


def test_a18_a_uniform_row_draws_each_token_on_its_own_tickets_only() -> None:
    """A18: in the nearest legal row, token 0 is drawn on 130 of 2**24 tickets and on no more."""
    uniform = full_support(np.full(V, 1 / V))
    share, extra = divmod(limits.MASS, V)
    assert uniform.count_of(0) == share + 1 == 130
    assert uniform.count_of(V - 1) == share
    assert int((uniform.counts == share + 1).sum()) == extra
    for ticket, token in ((0, 0), (129, 0), (130, 1), (limits.MASS - 1, V - 1)):
        assert uniform.token_at(ticket) == token


# --- B3 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", list(Owner))
@pytest.mark.parametrize("field", ["session_seed", "session_id", "request_id"])
def test_b03_two_requests_of_one_prompt_have_unrelated_draws(field: str, owner: Owner) -> None:
    """B3: fresh seeds, or one seed and another session or request: no common stream."""
    keys = []
    for change in (1, 2):
        values = {
            "session_seed": bytes(32),
            "session_id": bytes(16),
            "request_id": 1,
            field: change if field == "request_id" else bytes([change]) * (
                32 if field == "session_seed" else 16
            ),
        }  # fmt: skip
        keys.append(derive_key(generation=1, owner=owner, **values))  # type: ignore[arg-type]
    draws = 3000
    first, second = (
        np.array([KeyedTickets(key).ticket(4, Domain.PROPOSAL, at, 1) for at in range(draws)])
        for key in keys
    )
    expected = draws / 16
    agreements = int((first == second).sum())
    assert abs(agreements - expected) <= 6 * sqrt(expected * 15 / 16) + 1
    assert keys[0] != keys[1]


# --- E10 -----------------------------------------------------------------------------------


def test_e10_bf16_values_are_refused_however_they_are_laid_out() -> None:
    """E10: at half the length, as half the entries, and widened to four bytes again."""
    payload = encode(sampled_row(), DENSE)
    halves = as_bf16(np.frombuffer(payload, dtype="<f4"))
    assert code_of(DENSE, halves.tobytes(), 64, 64) is Code.ROW_BYTES
    assert code_of(DENSE, halves.tobytes(), 32, 64) is Code.ROW_ENTRIES
    widened = (halves.astype("<u4") << 16).tobytes()
    assert code_of(DENSE, widened, 64, 64) is Code.MASS_WRONG


def test_e10_bf16_in_a_sparse_row_is_refused_at_every_entry_count() -> None:
    """E10: six bytes an entry never read as eight."""
    payload = encode(sampled_row(), SPARSE)
    halves = as_bf16(np.frombuffer(payload[256:], dtype="<f4").copy())
    changed = payload[:256] + halves.tobytes()
    for entries in range(1, 65):
        assert 400 <= code_of(SPARSE, changed, entries, 64) < 500


# --- F4, F6 --------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [6, 7, 8, -1, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize("representable", [True, False])
def test_f04_an_id_outside_is_refused_before_its_value_is_looked_at(
    bad: int, representable: bool
) -> None:
    """F4: padding, V, negative and huge ids; also beside values that are wrong themselves."""
    counts = [limits.MASS // 2, limits.MASS // 2 if representable else 3]
    ids = [bad, 2] if bad < 0 else [2, bad]
    assert code_of(SPARSE, sparse_payload(ids, counts), 2, 8, legal=6) is Code.ID_RANGE


@pytest.mark.parametrize(
    "counts", [[limits.MASS // 2] * 2, [limits.MASS, 0], [0, limits.MASS], [0, 0]]
)
def test_f06_one_id_twice_is_refused_whatever_its_masses(counts: list[int]) -> None:
    """F6: neither the first nor the last of two [5, 5] wins; no scatter ever sees them."""
    assert code_of(SPARSE, sparse_payload([5, 5], counts), 2, 8) is Code.ID_ORDER
    control = decode(
        SPARSE, sparse_payload([4, 5], [1, limits.MASS - 1]), 2, vocabulary_size=8, legal_size=8
    )
    assert (control.count_of(4), control.count_of(5)) == (1, limits.MASS - 1)
