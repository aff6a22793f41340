"""Fault kinds B, verifier's part: random numbers shared between uses."""

from collections import Counter
from math import sqrt

import numpy as np

from proto_v2 import limits
from proto_v2.rng import Domain, KeyedTickets, Owner, TicketSource, derive_key
from spark_rank.verify import LastToken, verify_chain
from tests.support.chains import dense_row

SEED = bytes(range(32))
SESSION = bytes(range(16))
ROUNDS = 6000
Q = (0.2, 0.2, 0.6)


class SharedNoise:
    """Plants the fault: corrections reuse the number that drew the proposal."""

    def __init__(self, worker: KeyedTickets, verifier: KeyedTickets) -> None:
        self._worker = worker
        self._verifier = verifier

    def ticket(self, bits: int, domain: Domain, position: int, round_: int) -> int:
        return self._verifier.ticket(bits, domain, position, round_)

    def below(self, bound: int, domain: Domain, position: int, round_: int) -> int:
        if domain is not Domain.RESIDUAL:
            return self._verifier.below(bound, domain, position, round_)
        noise = self._worker.ticket(limits.MASS_BITS, Domain.PROPOSAL, position, round_)
        return noise * bound >> limits.MASS_BITS


def corrections(worker: KeyedTickets, verifier: TicketSource) -> Counter[int]:
    """Corrections of rejected drafts, with p = (.4, .4, .2) and q = (.2, .2, .6).

    Only token 2 is ever rejected; the residual is even between tokens 0 and 1.
    """
    counts = [round(value * limits.MASS) for value in Q]
    counts[2] += limits.MASS - sum(counts)
    row = dense_row(counts, limits.MASS_BITS)
    logits = np.log(np.array([[0.4, 0.4, 0.2]] * 2)).astype(np.float32)
    found: Counter[int] = Counter()
    for round_ in range(ROUNDS):
        ticket = worker.ticket(limits.MASS_BITS, Domain.PROPOSAL, 7, round_)
        verdict = verify_chain(
            position=7,
            round_=round_,
            drafts=(row.token_at(ticket),),
            rows=(row,),
            logits=logits,
            tickets=verifier,
            stop_tokens=frozenset(),
            room=1,
            legal_size=3,
        )
        if verdict.last is LastToken.CORRECTION:
            found[verdict.tokens[0]] += 1
    return found


def beyond_six_sigma(found: Counter[int]) -> bool:
    """Whether tokens 0 and 1 are not even, at six binomial sigma and one count."""
    total = found.total()
    return abs(found[0] - total / 2) > 6 * sqrt(total / 4) + 1


def test_b01_corrections_do_not_follow_the_noise_of_the_proposal() -> None:
    """B1: one seed and one position on both sides; keys and domains keep them apart."""
    print(f"seed {SEED.hex()}")
    worker = KeyedTickets(derive_key(SEED, SESSION, 1, 1, Owner.WORKER))
    verifier = KeyedTickets(derive_key(SEED, SESSION, 1, 1, Owner.VERIFIER))
    independent = corrections(worker, verifier)
    shared = corrections(worker, SharedNoise(worker, verifier))
    assert independent.total() > ROUNDS / 3
    assert not beyond_six_sigma(independent)
    assert beyond_six_sigma(shared), "the planted fault must be seen"


def test_b01_one_counter_gives_unrelated_tickets_in_every_domain_and_to_each_owner() -> None:
    """B1: the joint frequencies of two streams' tickets, for every pair of streams."""
    streams = {
        (owner, domain): np.array(
            [
                KeyedTickets(derive_key(SEED, SESSION, 1, 1, owner)).ticket(2, domain, position, 5)
                for position in range(1200)
            ]
        )
        for owner in Owner
        for domain in Domain
    }
    expected = 1200 / 16
    bound = 6 * sqrt(expected * 15 / 16) + 1
    names = list(streams)
    for index, left in enumerate(names):
        for right in names[index + 1 :]:
            table = np.bincount(streams[left] * 4 + streams[right], minlength=16)
            assert np.abs(table - expected).max() <= bound, (left, right)
