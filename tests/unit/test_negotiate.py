"""HELLO to Terms: every identity by its own code, every bound at its edge, every lost message."""

import itertools
from hashlib import blake2b
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proto_v2 import limits
from proto_v2.codec import encode_body
from proto_v2.dyadic import semantics_id
from proto_v2.errors import Code, ProtocolError
from proto_v2.messages import Hello, Refuse, Role, TermsAgreed
from proto_v2.negotiate import Handshake, Terms, build_hello, derive_terms, link_epoch
from proto_v2.representation import Representation
from proto_v2.vocabulary import Vocabulary
from tests.proto_samples import SUPPORT_MAX, VOCABULARY, decode_body, deterministic, hello, terms

BOOT_A, BOOT_B = b"a" * 16, b"b" * 16
DENSE_ROW = VOCABULARY.size * 4
NEEDED = limits.REQUESTS_MAX * limits.BATCHES_IN_FLIGHT * limits.DEPTH_MAX * DENSE_ROW

IDENTITIES: dict[str, tuple[Any, Code]] = {
    "semantics": (semantics_id(23), Code.SEMANTICS_MISMATCH),
    "verifier": ("standard-int47-v1", Code.VERIFIER_MISMATCH),
    "rng_abi": ("philox4x32-7/blake2b-v1", Code.RNG_ABI_MISMATCH),
    "precision": ("bf16-le", Code.PRECISION_MISMATCH),
    "vocabulary_size": (VOCABULARY.size + 1, Code.VOCABULARY_SIZE_MISMATCH),
    "legal_size": (VOCABULARY.legal_size - 1, Code.VOCABULARY_SIZE_MISMATCH),
    "vocabulary_hash": (b"h" * 32, Code.VOCABULARY_HASH_MISMATCH),
    "draft_checkpoint": ("draft-b", Code.DRAFT_MISMATCH),
    "draft_native": (False, Code.DRAFT_MISMATCH),
    "target_checkpoint": ("target-b", Code.TARGET_MISMATCH),
    "processors": ("policy-b", Code.PROCESSORS_MISMATCH),
}


def refused(ours: Hello, theirs: Hello) -> ProtocolError:
    """The refusal, after checking that the other side refuses the same field."""
    errors = []
    for first, second in ((ours, theirs), (theirs, ours)):
        with pytest.raises(ProtocolError) as caught:
            derive_terms(first, second)
        errors.append(caught.value)
    assert errors[0].code is errors[1].code
    assert errors[0].field == errors[1].field
    return errors[0]


# --- identities ------------------------------------------------------------------------------


@pytest.mark.parametrize("field", IDENTITIES)
def test_one_identity_that_differs_is_refused_by_name(field: str) -> None:
    value, code = IDENTITIES[field]
    error = refused(hello(), hello(Role.WORKER, **{field: value}))
    assert (error.code, error.field) == (code, field)
    shown = value.hex() if isinstance(value, bytes) else value
    ours = getattr(hello(), field)
    assert error.got == shown
    assert error.wanted == (ours.hex() if isinstance(ours, bytes) else ours)


def test_every_field_is_an_identity_a_bound_or_part_of_the_opening() -> None:
    opening = {"role", "wire_min", "wire_max", "nonce", "representations"}
    bounds = {"requests_max", "depth_max", "support_max", "frame_bytes_max", "staging_bytes"}
    assert set(Hello.__struct_fields__) == opening | bounds | set(IDENTITIES)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        pair
        for pair in itertools.product([1, 2, 3, 0, 4, 255], repeat=2)
        if set(pair) not in ({1, 2}, {2, 3})
    ],
)
def test_only_partners_negotiate(ours: int, theirs: int) -> None:
    error = refused(hello(role=ours), hello(role=theirs))
    assert (error.code, error.field) == (Code.ROLE_MISMATCH, "role")


def test_roles_are_named() -> None:
    error = refused(hello(Role.RANK_ZERO), hello(Role.RANK_ZERO))
    assert (error.wanted, error.got) == ("worker or rank one", "rank zero")


@pytest.mark.parametrize("role", [Role.WORKER, Role.RANK_ONE])
def test_partners_agree_whichever_side_computes(role: Role) -> None:
    assert derive_terms(hello(), hello(role)) == derive_terms(hello(role), hello())


@pytest.mark.parametrize(("low", "high"), [(1, 1), (0, 1), (3, 3), (3, 255), (3, 1), (0, 0)])
def test_v1_and_v3_peers_are_refused(low: int, high: int) -> None:
    error = refused(hello(), hello(Role.WORKER, wire_min=low, wire_max=high))
    assert (error.code, error.field) == (Code.WIRE_RANGE, "wire_version")
    assert (error.wanted, error.got) == ("2..2", f"{low}..{high}")


@pytest.mark.parametrize(("low", "high"), [(2, 2), (1, 2), (2, 3), (0, 255)])
def test_any_range_that_holds_version_2_agrees_on_it(low: int, high: int) -> None:
    agreed = derive_terms(hello(), hello(Role.WORKER, wire_min=low, wire_max=high))
    assert agreed.wire_version == 2


# --- representations -------------------------------------------------------------------------


@pytest.mark.parametrize("offered", [(), (3,), (0, 3, 255)])
def test_no_common_representation(offered: tuple[int, ...]) -> None:
    error = refused(hello(), hello(Role.WORKER, representations=offered))
    assert (error.code, error.field) == (Code.NO_COMMON_REPRESENTATION, "representations")


def test_two_peers_never_agree_on_what_neither_of_us_knows() -> None:
    unknown = {"representations": (3,)}
    assert refused(hello(**unknown), hello(Role.WORKER, **unknown)).code is (
        Code.NO_COMMON_REPRESENTATION
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "common", "row_bytes"),
    [
        ((1, 2), (2, 1), (1, 2), max(DENSE_ROW, SUPPORT_MAX * 8)),
        ((1, 2), (1,), (1,), DENSE_ROW),
        ((2, 3), (1, 2, 3), (2,), SUPPORT_MAX * 8),
        ((2, 2), (2,), (2,), SUPPORT_MAX * 8),
    ],
)
def test_common_representations_and_their_largest_row(
    ours: tuple[int, ...], theirs: tuple[int, ...], common: tuple[int, ...], row_bytes: int
) -> None:
    agreed = derive_terms(hello(representations=ours), hello(Role.WORKER, representations=theirs))
    assert (agreed.representations, agreed.row_bytes_max) == (common, row_bytes)


def test_a_sparse_row_never_exceeds_the_vocabulary() -> None:
    wide = {
        "representations": (2,),
        "support_max": 1000,
        "frame_bytes_max": 1000,
        "staging_bytes": 1 << 40,
    }
    agreed = derive_terms(hello(**wide), hello(Role.WORKER, **wide))
    assert agreed.row_bytes_max == VOCABULARY.size * 8


# --- bounds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "lower"), [("requests_max", 3), ("depth_max", 4), ("support_max", 5)]
)
def test_the_lower_offer_holds(field: str, lower: int) -> None:
    for ours, theirs in (({field: lower}, {}), ({}, {field: lower})):
        agreed = derive_terms(hello(**ours), hello(Role.WORKER, **theirs))
        assert getattr(agreed, field) == lower


@pytest.mark.parametrize(
    ("field", "floor"),
    [
        ("requests_max", 1),
        ("depth_max", 1),
        ("support_max", 1),
        ("frame_bytes_max", 8),
        ("staging_bytes", 8),
    ],
)
def test_a_bound_below_its_floor_is_refused(field: str, floor: int) -> None:
    error = refused(hello(), hello(Role.WORKER, **{field: floor - 1}))
    assert (error.code, error.field, error.got) == (Code.BOUND_TOO_SMALL, field, floor - 1)


@pytest.mark.parametrize("field", ["requests_max", "depth_max", "support_max"])
def test_the_floor_itself_is_enough(field: str) -> None:
    assert getattr(derive_terms(hello(), hello(Role.WORKER, **{field: 1})), field) == 1


@pytest.mark.parametrize(
    ("field", "ceiling"),
    [
        ("requests_max", limits.REQUESTS_MAX),
        ("depth_max", limits.DEPTH_MAX),
        ("support_max", limits.SUPPORT_MAX),
        ("frame_bytes_max", limits.PAYLOAD_BYTES_MAX),
    ],
)
def test_two_large_offers_stop_at_the_contract(field: str, ceiling: int) -> None:
    large = {"frame_bytes_max": 1000, "staging_bytes": 1 << 40, field: (1 << 32) - 1}
    agreed = derive_terms(hello(**large), hello(Role.WORKER, **large))
    assert getattr(agreed, field) == ceiling


def test_a_frame_holds_one_row() -> None:
    assert derive_terms(hello(), hello(Role.WORKER, frame_bytes_max=DENSE_ROW))
    error = refused(hello(), hello(Role.WORKER, frame_bytes_max=DENSE_ROW - 1))
    assert (error.code, error.field) == (Code.BOUND_TOO_SMALL, "frame_bytes_max")


def test_staging_holds_every_batch_in_flight() -> None:
    assert derive_terms(hello(), hello(Role.WORKER, staging_bytes=NEEDED)).staging_bytes == NEEDED
    error = refused(hello(), hello(Role.WORKER, staging_bytes=NEEDED - 1))
    assert (error.code, error.field) == (Code.STAGING_TOO_SMALL, "staging_bytes")


@pytest.mark.parametrize(
    ("size", "legal"), [(0, 0), (12, 0), (12, 13), (limits.VOCABULARY_SIZE_MAX + 1, 10)]
)
def test_vocabulary_sizes_that_no_side_can_mean(size: int, legal: int) -> None:
    same = {"vocabulary_size": size, "legal_size": legal}
    error = refused(hello(**same), hello(Role.WORKER, **same))
    assert (error.code, error.field) == (Code.VOCABULARY_SIZE_MISMATCH, "vocabulary_size")


@pytest.mark.parametrize("size", [1, limits.VOCABULARY_SIZE_MAX])
def test_the_smallest_and_the_largest_vocabulary(size: int) -> None:
    same = {
        "vocabulary_size": size,
        "legal_size": size,
        "frame_bytes_max": limits.PAYLOAD_BYTES_MAX,
        "staging_bytes": 1 << 40,
    }
    assert derive_terms(hello(**same), hello(Role.WORKER, **same)).vocabulary_size == size


# --- both sides, property --------------------------------------------------------------------


def _offers(role: st.SearchStrategy[int]) -> st.SearchStrategy[Hello]:
    """Offers that differ from the sample in a few fields, also to useless values."""
    wild: dict[str, st.SearchStrategy[Any]] = {
        "wire_min": st.integers(0, 4),
        "wire_max": st.integers(0, 4),
        "representations": st.lists(st.integers(0, 4), max_size=4).map(tuple),
        "requests_max": st.integers(0, 6),
        "depth_max": st.integers(0, 7),
        "support_max": st.integers(0, 20) | st.just((1 << 32) - 1),
        "frame_bytes_max": st.integers(0, 200) | st.just((1 << 32) - 1),
        "staging_bytes": st.integers(0, 4000) | st.just((1 << 64) - 1),
        **{field: st.just(value) for field, (value, _) in IDENTITIES.items()},
    }
    changes = st.lists(st.sampled_from(sorted(wild)), max_size=3, unique=True).flatmap(
        lambda fields: st.fixed_dictionaries({field: wild[field] for field in fields})
    )
    return st.builds(lambda role, changes: hello(**changes, role=role), role, changes)


@deterministic
@given(
    _offers(st.sampled_from([2, 2, 2, 2, 0, 1])),
    _offers(st.sampled_from([1, 1, 1, 3, 3, 2, 9])),
)
def test_both_sides_derive_equal_terms_or_refuse_the_same_field(ours: Hello, theirs: Hello) -> None:
    outcomes: list[Any] = []
    for first, second in ((ours, theirs), (theirs, ours)):
        try:
            outcomes.append(derive_terms(first, second))
        except ProtocolError as error:
            outcomes.append((error.code, error.field))
            assert 200 <= error.code < 300
    assert outcomes[0] == outcomes[1]
    if isinstance(outcomes[0], Terms):
        assert outcomes[0].digest() == outcomes[1].digest()
        assert outcomes[0].slots * outcomes[0].slot_bytes <= outcomes[0].staging_bytes
        assert outcomes[0].row_bytes_max <= outcomes[0].frame_bytes_max


# --- terms and epochs ------------------------------------------------------------------------


def test_every_field_of_the_terms_is_in_their_digest() -> None:
    base = terms()
    assert base.digest() == terms().digest()
    assert len(base.digest()) == 32
    seen = {base.digest()}
    for field in Terms.__struct_fields__:
        value: Any = getattr(base, field)
        match value:
            case bool():
                value = not value
            case int():
                value += 1
            case str():
                value += "x"
            case bytes():
                value = value[::-1] + b"x"
            case tuple():
                value = (*value, 3)
        seen.add(terms(**{field: value}).digest())
    assert len(seen) == 1 + len(Terms.__struct_fields__)


def test_terms_size_the_staging() -> None:
    assert terms().slots == 8
    assert terms().slot_bytes == 5 * DENSE_ROW
    defaults = build_hello(
        Role.WORKER,
        bytes(16),
        Vocabulary(limits.VOCABULARY_SIZE_DEFAULT, limits.VOCABULARY_SIZE_DEFAULT, bytes(32)),
        draft_checkpoint="d",
        draft_native=True,
        target_checkpoint="t",
        processors="p",
    )
    assert defaults.staging_bytes == limits.STAGING_BYTES_DEFAULT
    agreed = derive_terms(defaults, msgspec.structs.replace(defaults, role=2))
    assert agreed.slots * agreed.slot_bytes == 20_684_800


def test_the_epoch_names_both_nonces_their_order_and_the_terms() -> None:
    digest = terms().digest()
    epoch = link_epoch(b"a" * 16, b"b" * 16, digest)
    data = b"a" * 16 + b"b" * 16 + digest
    expected = blake2b(data, digest_size=8, person=b"PP1-epoch-v2\0\0\0\0").digest()
    assert epoch == int.from_bytes(expected, "little")
    others = [
        link_epoch(b"b" * 16, b"a" * 16, digest),
        link_epoch(b"a" * 16, b"c" * 16, digest),
        link_epoch(b"a" * 16, b"b" * 16, bytes(32)),
    ]
    assert len({epoch, *others}) == 4


def test_an_epoch_is_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    class Zero:
        def digest(self) -> bytes:
            return bytes(8)

    monkeypatch.setattr("proto_v2.negotiate.blake2b", lambda *_, **__: Zero())
    assert link_epoch(bytes(16), bytes(16), bytes(32)) == 1


def test_an_offer_of_nothing_is_an_offer() -> None:
    empty = build_hello(
        Role.WORKER,
        bytes(16),
        VOCABULARY,
        draft_checkpoint="d",
        draft_native=True,
        target_checkpoint="t",
        processors="p",
        representations=(),
        staging_bytes=77,
    )
    assert (empty.representations, empty.frame_bytes_max, empty.staging_bytes) == ((), 8, 77)
    assert decode_body(1, encode_body(empty)).message == empty


# --- the handshake ---------------------------------------------------------------------------


def sides(**changes: Any) -> tuple[Handshake, Handshake]:
    """Caller (rank 0) and callee (worker)."""
    caller = Handshake(hello(), calling=True)
    return caller, Handshake(hello(Role.WORKER, **changes), calling=False)


def agree(caller: Handshake, callee: Handshake) -> None:
    opening = caller.opening()
    assert opening is not None
    [answer] = callee.on_hello(BOOT_A, opening)
    assert isinstance(answer, Hello)
    [digest] = caller.on_hello(BOOT_B, answer)
    assert isinstance(digest, TermsAgreed)
    assert caller.agreed is None
    [last] = callee.on_terms(digest)
    assert isinstance(last, TermsAgreed)
    assert caller.on_terms(last) == []


def test_four_messages_agree() -> None:
    caller, callee = sides()
    assert callee.opening() is None
    agree(caller, callee)
    assert caller.agreed is not None
    assert callee.agreed is not None
    assert caller.agreed.terms == callee.agreed.terms
    assert caller.agreed.link_epoch == callee.agreed.link_epoch != 0
    assert (caller.agreed.peer_boot_id, callee.agreed.peer_boot_id) == (BOOT_B, BOOT_A)
    assert caller.refused is callee.refused is None


def test_after_the_agreement_nothing_changes_it() -> None:
    caller, callee = sides()
    agree(caller, callee)
    before = caller.agreed, callee.agreed
    other = hello(nonce=b"n" * 16, depth_max=1)
    assert caller.on_hello(BOOT_B, callee.hello) == []
    assert callee.on_hello(BOOT_A, other) == []
    wrong = TermsAgreed(caller.hello.nonce, bytes(32))
    assert caller.on_terms(wrong) == callee.on_terms(wrong) == []
    assert (caller.agreed, callee.agreed) == before


def test_a_refusal_names_the_field_to_both_sides() -> None:
    caller, callee = sides(processors="policy-b")
    [refuse] = callee.on_hello(BOOT_A, caller.hello)
    assert isinstance(refuse, Refuse)
    assert (refuse.code, refuse.field) == (Code.PROCESSORS_MISMATCH, "processors")
    assert (refuse.wanted, refuse.got) == ("policy-b", "policy-a")
    caller.on_refuse(refuse)
    for side in (caller, callee):
        assert side.agreed is None
        assert side.refused is not None
        assert (side.refused.code, side.refused.field) == (
            Code.PROCESSORS_MISMATCH,
            "processors",
        )
    assert caller.refused is not None
    assert caller.refused.wanted == "policy-b (the peer)"


def test_a_refusal_is_final() -> None:
    caller, callee = sides(processors="policy-b")
    [refuse] = callee.on_hello(BOOT_A, caller.hello)
    assert callee.on_hello(BOOT_A, caller.hello) == [refuse]
    assert callee.on_hello(BOOT_A, hello(processors="policy-b")) == [refuse]
    assert isinstance(refuse, Refuse)
    caller.on_refuse(refuse)
    assert caller.on_hello(BOOT_B, hello(Role.WORKER)) == []
    digest = derive_terms(hello(), hello(Role.WORKER)).digest()
    assert caller.on_terms(TermsAgreed(caller.hello.nonce, digest)) == []
    assert caller.agreed is callee.agreed is None


def test_a_refusal_ends_what_was_pending() -> None:
    caller, callee = sides()
    [answer] = callee.on_hello(BOOT_A, caller.hello)
    assert isinstance(answer, Hello)
    [digest] = caller.on_hello(BOOT_B, answer)
    assert isinstance(digest, TermsAgreed)
    callee.on_refuse(Refuse(Code.STAGING_TOO_SMALL, "staging_bytes", "2", "1"))
    assert callee.on_terms(digest) == []
    assert callee.agreed is None


@pytest.mark.parametrize("code", [Code.WIRE_VERSION, Code.WIRE_RANGE, Code.TARGET_MISMATCH])
def test_a_refusal_of_a_link_keeps_its_code(code: Code) -> None:
    caller, _ = sides()
    caller.on_refuse(Refuse(code, "f", "w", "g"))
    assert caller.refused is not None
    assert caller.refused.code is code


@pytest.mark.parametrize(
    "code",
    [
        *[0, 1, 999, (1 << 32) - 1],
        *[Code.NOT_OURS, Code.BOOT_CHANGED, Code.Q_MISSING, Code.RANK_LOST, Code.REQUEST_LIMIT],
    ],
)
def test_a_refusal_with_any_other_code_is_still_one(code: int) -> None:
    caller, _ = sides()
    caller.on_refuse(Refuse(code, "f", "w", "g"))
    assert caller.refused is not None
    assert caller.refused.code is Code.TERMS_DIGEST_MISMATCH


def test_another_digest_is_refused() -> None:
    caller, callee = sides()
    [answer] = callee.on_hello(BOOT_A, caller.hello)
    assert isinstance(answer, Hello)
    [digest] = caller.on_hello(BOOT_B, answer)
    assert isinstance(digest, TermsAgreed)
    flipped = bytes([digest.digest[0] ^ 1]) + digest.digest[1:]
    [refuse] = callee.on_terms(TermsAgreed(digest.nonce, flipped))
    assert isinstance(refuse, Refuse)
    assert (refuse.code, refuse.field) == (Code.TERMS_DIGEST_MISMATCH, "digest")
    assert callee.on_terms(digest) == []  # no second try
    assert callee.agreed is None


def test_terms_for_an_earlier_hello_or_before_any_hello_change_nothing() -> None:
    caller, callee = sides()
    digest = derive_terms(caller.hello, callee.hello).digest()
    assert callee.on_terms(TermsAgreed(callee.hello.nonce, digest)) == []
    callee.on_hello(BOOT_A, caller.hello)
    assert callee.on_terms(TermsAgreed(b"x" * 16, digest)) == []
    assert callee.agreed is None
    assert callee.refused is None


@pytest.mark.parametrize("lost", range(4))
def test_any_one_lost_message_is_made_good_by_repeating_the_hello(lost: int) -> None:
    caller, callee = sides()
    sent = 0
    for _ in range(3):
        opening = caller.opening()
        assert opening is not None
        wire: list[tuple[Handshake, Any]] = [(callee, opening)]
        while wire:
            receiver, message = wire.pop(0)
            sent += 1
            if sent - 1 == lost:
                continue
            answers: list[Any]
            if isinstance(message, Hello):
                boot = BOOT_A if receiver is callee else BOOT_B
                answers = list(receiver.on_hello(boot, message))
            else:
                answers = list(receiver.on_terms(message))
            other = caller if receiver is callee else callee
            wire += [(other, answer) for answer in answers]
        if caller.agreed and callee.agreed:
            break
    assert caller.agreed is not None
    assert callee.agreed is not None
    assert caller.agreed.link_epoch == callee.agreed.link_epoch


def hand_over(
    sent: list[tuple[Handshake, Any]], index: int, caller: Handshake, callee: Handshake
) -> None:
    """Give one message to its receiver; what that answers is sent to the other side."""
    side, message = sent[index]
    other, boot = (caller, BOOT_A) if side is callee else (callee, BOOT_B)
    answers = side.on_hello(boot, message) if isinstance(message, Hello) else side.on_terms(message)
    sent += [(other, answer) for answer in answers]


def test_every_order_of_what_was_sent_with_repeats_and_losses_leads_to_one_epoch() -> None:
    """Each number hands over one of the messages sent so far, again or for the first time."""
    for order in itertools.product(range(5), repeat=5):
        caller, callee = sides()
        sent: list[tuple[Handshake, Any]] = [(callee, caller.hello)]
        for index in order:
            hand_over(sent, index % len(sent), caller, callee)
            assert caller.refused is callee.refused is None, order
        done = len(sent)
        hand_over(sent, 0, caller, callee)  # the caller asks once more; now nothing is lost
        while done < len(sent):
            assert done < 20, order
            hand_over(sent, done, caller, callee)
            done += 1
        assert caller.agreed is not None, order
        assert callee.agreed is not None, order
        assert caller.agreed.terms == callee.agreed.terms, order
        assert caller.agreed.link_epoch == callee.agreed.link_epoch, order


def test_a_callee_that_forgot_an_unfinished_negotiation_is_followed() -> None:
    caller, callee = sides()
    [answer] = callee.on_hello(BOOT_A, caller.hello)
    assert isinstance(answer, Hello)
    caller.on_hello(BOOT_B, answer)  # its digest is lost, and the callee starts anew
    restarted = Handshake(hello(Role.WORKER, nonce=b"2" * 16), calling=False)
    agree(caller, restarted)
    assert caller.agreed is not None
    assert restarted.agreed is not None
    assert caller.agreed.link_epoch == restarted.agreed.link_epoch


def test_nothing_but_the_contracts_representations_is_offered() -> None:
    assert hello().representations == tuple(sorted(Representation))
