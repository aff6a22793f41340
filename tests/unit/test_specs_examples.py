"""The worked examples and tables of texts 01 and 02, read out of the texts and carried out."""

import json
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from proto_v2 import limits
from proto_v2.dyadic import SEMANTICS, allocate, full_support, top_k
from proto_v2.errors import Code
from proto_v2.representation import Representation, decode, encode
from proto_v2.rng import RNG_ABI, Domain, KeyedTickets, Owner, derive_key, lemire, philox4x32_10
from proto_v2.vocabulary import PERSON
from spark_rank.residual import draft_counts, pick, quantise_target, residual_counts
from spark_rank.verify import LastToken, verify_chain
from specs import oracle
from tests.support.enumerate_tickets import ScriptedTickets
from tests.support.spec_tables import SPECS

DISTRIBUTION = (SPECS / "01-distribution.md").read_text()
RNG = (SPECS / "02-rng-abi.md").read_text()


def example(text: str) -> dict[str, Any]:
    """The one JSON block of a text."""
    (block,) = re.findall(r"^```json\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    found = json.loads(block)
    assert isinstance(found, dict)
    return found


def hex_words(cell: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in cell.split())


# --- 01 ------------------------------------------------------------------------------------


def test_the_texts_name_the_identifiers_of_the_code() -> None:
    assert f"`{SEMANTICS}`" in DISTRIBUTION
    assert f"`{RNG_ABI}`" in RNG
    assert f"`{PERSON.rstrip(bytes(1)).decode()}` followed by four zero bytes" in DISTRIBUTION


@pytest.mark.parametrize("text", [DISTRIBUTION, RNG], ids=["01", "02"])
def test_every_code_that_a_text_names_is_registered(text: str) -> None:
    named = re.findall(r"\(([A-Z]+_[A-Z_]+)\)|\| ([A-Z]+_[A-Z_]+) \|", text)
    assert len(named) > 3
    for pair in named:
        assert "".join(pair) in Code.__members__


def test_value_rules_stand_in_the_order_in_which_decode_judges_them() -> None:
    table = re.findall(r"^\| .* \| ([A-Z]+_[A-Z_]+) \|$", DISTRIBUTION, re.MULTILINE)
    assert decode.__doc__ is not None
    judged = decode.__doc__.split("ProtocolError:")[1]
    assert table == re.findall(r"[A-Z]+_[A-Z_]+", judged)


def test_distribution_example_from_weights_to_bytes_to_token() -> None:
    given = example(DISTRIBUTION)
    weights = np.array(given["weights"])
    assert allocate(weights).tolist() == given["counts"]
    assert list(oracle.dyadic_counts(given["weights"], limits.MASS_BITS)) == given["counts"]
    rows = full_support(weights), top_k(weights, len(weights))
    for row in rows:
        for representation, name in (
            (Representation.DENSE_F32, "dense_f32"),
            (Representation.SPARSE_F32, "sparse_f32"),
        ):
            assert encode(row, representation).hex() == given[name]
        assert row.token_at(given["proposal_ticket"]) == given["token"]


def test_distribution_example_from_bytes_to_correction() -> None:
    given = example(DISTRIBUTION)
    size = len(given["logits"])
    payload = bytes.fromhex(given["sparse_f32"])
    row = decode(
        Representation.SPARSE_F32, payload, len(payload) // 8, vocabulary_size=size, legal_size=size
    )
    logits = np.array([-np.inf if z is None else z for z in given["logits"]], dtype=np.float32)
    target = quantise_target(logits, legal_size=size)
    residual = residual_counts(target, row)
    assert target.tolist() == given["target_counts"]
    assert [draft_counts(row, token) for token in range(size)] == given["draft_counts"]
    assert residual.tolist() == given["residual_counts"]
    assert pick(residual, given["residual_ticket"]) == given["correction"]
    assert pick(residual, given["residual_ticket"] - 1) == 0, "one ticket less is the id before"

    p, q = (oracle.from_counts(given[name]) for name in ("target_counts", "counts"))
    assert [
        Fraction(count, sum(given["residual_counts"])) for count in given["residual_counts"]
    ] == list(oracle.residual(p, q).probabilities)


@pytest.mark.parametrize("acceptance_ticket", [0, 28147504381951])
def test_distribution_example_is_rejected_on_every_ticket(acceptance_ticket: int) -> None:
    given = example(DISTRIBUTION)
    logits = np.array([-np.inf if z is None else z for z in given["logits"]], dtype=np.float32)
    verdict = verify_chain(
        position=0,
        round_=1,
        drafts=(given["token"],),
        rows=(full_support(np.array(given["weights"])),),
        logits=np.stack([logits, logits]),
        tickets=ScriptedTickets(
            {
                Domain.ACCEPTANCE: acceptance_ticket,
                Domain.RESIDUAL: given["residual_ticket"],
            }
        ),
        stop_tokens=frozenset(),
        room=2,
        legal_size=len(logits),
    )
    assert (verdict.tokens, verdict.last) == ((given["correction"],), LastToken.CORRECTION)


# --- 02 ------------------------------------------------------------------------------------


def test_block_function_table() -> None:
    rows = re.findall(
        r"^\| ((?:[0-9a-f]{8} ?){4}) \| ((?:[0-9a-f]{8} ?){2}) \| ((?:[0-9a-f]{8} ?){4}) \|$",
        RNG,
        re.MULTILINE,
    )
    assert len(rows) == 3
    for counter, key, words in rows:
        c0, c1, c2, c3 = hex_words(counter)
        k0, k1 = hex_words(key)
        assert philox4x32_10((c0, c1, c2, c3), (k0, k1)) == hex_words(words)


def test_domain_table() -> None:
    rows = re.findall(r"^\| (\d) ([a-z-]+) \| .* \| (?:worker|verifier) \|$", RNG, re.MULTILINE)
    assert [(int(number), name.replace("-", "_").upper()) for number, name in rows] == [
        (int(domain), domain.name) for domain in Domain
    ]


def test_rng_example() -> None:
    given = example(RNG)
    keys = {
        owner: derive_key(
            bytes.fromhex(given["session_seed"]),
            bytes.fromhex(given["session_id"]),
            given["request_id"],
            given["generation"],
            owner,
        )
        for owner in Owner
    }
    assert keys[Owner.WORKER].hex() == given["worker_key"]
    assert keys[Owner.VERIFIER].hex() == given["verifier_key"]

    position, round_ = given["position"], given["round"]
    worker = KeyedTickets(keys[Owner.WORKER])
    proposal = given["proposal"]
    c0, c1, c2, c3 = (int(word, 16) for word in proposal["counter"])
    k0, k1 = (int.from_bytes(keys[Owner.WORKER][at : at + 4], "little") for at in (0, 4))
    words = worker.block(Domain.PROPOSAL, position, round_, 0)
    assert words == philox4x32_10((c0, c1, c2, c3), (k0, k1))
    assert [f"{word:08x}" for word in words] == proposal["words"]
    assert worker.ticket(24, Domain.PROPOSAL, position, round_) == proposal["ticket24"]

    verifier = KeyedTickets(keys[Owner.VERIFIER])
    for draw in given["below"]:
        domain = Domain(draw["domain"])
        question = domain, draw["position"], round_
        assert verifier.below(draw["bound"], *question) == draw["value"]
        for number in range(draw["draws"]):
            low, high, _, _ = verifier.block(*question, number)
            found = lemire(low | high << 32, draw["bound"], 64)
            assert (found is None) == (number + 1 < draw["draws"])
    assert f"{(1 << 64) % given['below'][2]['bound']:,}" in RNG
