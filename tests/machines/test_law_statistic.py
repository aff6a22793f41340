"""A test of the test: the statistic of ``tests/wire/test_exact_law.py`` sees wrong rules.

The same law, the same statistic and the same bound, over the machines in one
process, with the product's verifier and with each planted one.
"""

from collections.abc import Callable

import pytest

import spark_rank.jobs
from pp1.models.markov import MarkovLaw
from spark_rank.engines.markov import MarkovTarget
from spark_rank.verify import verify_chain
from tests.support import wrong_rules
from tests.support.statistics import law_statistic
from tests.support.trio import Trio
from tests.support.wrong_rules import VerifyChain, as_verify_chain
from tests.wire.test_exact_law import LAW_SEED, LENGTH, V
from worker.engines.markov import MarkovDraft

REQUESTS = 5
LAW = MarkovLaw(V, LAW_SEED)


def texts_of_the_machines(depth: int) -> list[list[int]]:
    texts = []
    for number in range(REQUESTS):
        trio = Trio(
            MarkovDraft(V, LAW_SEED),
            (MarkovTarget(V, LAW_SEED), MarkovTarget(V, LAW_SEED)),
            seed=number,
        )
        answer = trio.generate(number, [number % V], LENGTH, depth=depth, support=0)
        trio.run()
        assert answer.finished is not None
        assert answer.finished.rounds_speculative > 0
        texts.append([number % V, *answer.tokens])
    return texts


def statistic_with(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[[], VerifyChain], depth: int
) -> tuple[float, float]:
    monkeypatch.setattr(spark_rank.jobs, "verify_chain", rule())
    texts = texts_of_the_machines(depth)
    statistic, bound, degrees = law_statistic(texts, lambda last: LAW.target_law([last]))
    print(f"chi-square {statistic:.1f} on {degrees} degrees, bound {bound:.1f}")
    return statistic, bound


@pytest.mark.parametrize("rule", [lambda: verify_chain, lambda: as_verify_chain(wrong_rules.exact)])
@pytest.mark.parametrize("depth", [1, 2])
def test_the_right_rule_passes(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[[], VerifyChain], depth: int
) -> None:
    statistic, bound = statistic_with(monkeypatch, rule, depth)
    assert statistic < bound


@pytest.mark.parametrize(
    "rule",
    [
        lambda: as_verify_chain(wrong_rules.plain_resample),
        lambda: as_verify_chain(wrong_rules.only_q_of_x),
        lambda: as_verify_chain(wrong_rules.match_or_ratio),
        wrong_rules.with_stale_rows,
    ],
    ids=["plain_resample", "only_q_of_x", "match_or_ratio", "stale_rows"],
)
def test_a_wrong_rule_fails(
    monkeypatch: pytest.MonkeyPatch, rule: Callable[[], VerifyChain]
) -> None:
    try:
        statistic, bound = statistic_with(monkeypatch, rule, 1)
    except AssertionError as error:
        # Some rules commit tokens that the target forbids: seen without statistics.
        assert "observed where the law has no mass" in str(error)
        return
    assert statistic > bound


def test_a_lost_q_shows_in_the_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """One-hot in ratio and residual keeps the law, so it is the acceptance that tells."""

    def accepted(rule: VerifyChain) -> int:
        monkeypatch.setattr(spark_rank.jobs, "verify_chain", rule)
        trio = Trio(
            MarkovDraft(V, LAW_SEED), (MarkovTarget(V, LAW_SEED), MarkovTarget(V, LAW_SEED))
        )
        answer = trio.generate(1, [1], LENGTH, depth=1, support=0)
        trio.run()
        assert answer.finished is not None
        return answer.finished.accepted

    # Six binomial deviations of LENGTH draws are 6 * sqrt(LENGTH / 4), fixed beforehand.
    margin = 6 * (LENGTH / 4) ** 0.5
    assert accepted(verify_chain) - accepted(as_verify_chain(wrong_rules.one_hot)) > margin
