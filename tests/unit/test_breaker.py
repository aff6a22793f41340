"""The circuit breaker counts rounds and looks at nothing else."""

import pytest

from spark_rank.breaker import Breaker, BreakerState


def opened(failures_max: int = 3, rounds_open: int = 4) -> Breaker:
    breaker = Breaker(failures_max, rounds_open)
    for _ in range(failures_max):
        breaker.failed()
    return breaker


def test_it_is_closed_at_first_and_allows() -> None:
    breaker = Breaker()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.allows()


@pytest.mark.parametrize("failures_max", [1, 2, 5])
def test_it_opens_at_the_last_of_the_failures_and_not_before(failures_max: int) -> None:
    breaker = Breaker(failures_max)
    for _ in range(failures_max - 1):
        breaker.failed()
        assert breaker.allows()
    breaker.failed()
    assert breaker.state is BreakerState.OPEN
    assert not breaker.allows()


def test_only_failures_in_a_row_count() -> None:
    breaker = Breaker(failures_max=3)
    for _ in range(10):
        breaker.failed()
        breaker.failed()
        breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("rounds_open", [1, 4])
def test_it_skips_exactly_its_rounds_and_then_probes(rounds_open: int) -> None:
    breaker = opened(rounds_open=rounds_open)
    for _ in range(rounds_open):
        assert not breaker.allows()
        breaker.round_skipped()
    assert breaker.state is BreakerState.PROBING
    assert breaker.allows()


def probing() -> Breaker:
    breaker = opened()
    for _ in range(4):
        breaker.round_skipped()
    return breaker


def test_a_probe_that_succeeds_closes_it_with_a_clean_count() -> None:
    breaker = probing()
    breaker.succeeded()
    assert breaker.state is BreakerState.CLOSED
    breaker.failed()
    breaker.failed()
    assert breaker.allows(), "failures before the opening are forgotten"


def test_a_probe_that_fails_opens_it_for_all_its_rounds_again() -> None:
    breaker = probing()
    breaker.failed()
    for _ in range(4):
        assert breaker.state is BreakerState.OPEN
        breaker.round_skipped()
    assert breaker.state is BreakerState.PROBING


def test_rounds_that_are_skipped_while_it_is_not_open_change_nothing() -> None:
    breaker = Breaker(failures_max=2, rounds_open=1)
    breaker.round_skipped()
    assert breaker.state is BreakerState.CLOSED
    probe = probing()
    probe.round_skipped()
    assert probe.state is BreakerState.PROBING
