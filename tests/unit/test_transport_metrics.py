"""Metrics: their names, their bounded number and their exposition."""

import urllib.request

import pytest

from proto_v2.errors import Code, ProtocolError
from transport.metrics import SERIES_MAX, Metrics


def test_samples_by_exposition_name() -> None:
    metrics = Metrics()
    metrics.count("rounds_total")
    metrics.count("pp1_rounds_total", (), 2)
    metrics.count("discards_total", (("reason", "late"),))
    metrics.gauge("ready", (), 1)
    metrics.observe("job_seconds", (("job", "verify"),), 0.02)
    samples = metrics.snapshot()
    assert samples["pp1_rounds_total"] == 3
    assert samples['pp1_discards_total{reason="late"}'] == 1
    assert samples["pp1_ready"] == 1
    assert samples['pp1_job_seconds_bucket{job="verify",le="0.03"}'] == 1
    assert samples['pp1_job_seconds_bucket{job="verify",le="0.01"}'] == 0
    assert not any(name.endswith("_created") for name in samples)


def test_the_number_of_label_sets_is_bounded_and_no_count_is_lost() -> None:
    metrics = Metrics()
    for index in range(SERIES_MAX + 50):
        metrics.count("peers_total", (("peer", str(index)),))
    metrics.count("peers_total", (("peer", "0"),))
    samples = metrics.snapshot()
    assert len(samples) == SERIES_MAX + 1
    assert samples['pp1_peers_total{peer="other"}'] == 50
    assert samples['pp1_peers_total{peer="0"}'] == 2


@pytest.mark.parametrize("name", ["", "Upper", "with space", "_x", "9x", "x\n"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="metric name"):
        Metrics().count(name)


def test_a_name_keeps_its_kind_and_labels() -> None:
    metrics = Metrics()
    metrics.count("x", (("a", "1"),))
    with pytest.raises(ValueError, match="counter"):
        metrics.gauge("x", (("a", "1"),), 1)
    with pytest.raises(ValueError, match="label"):
        metrics.count("x", (("b", "1"),))
    with pytest.raises(ValueError, match="label"):
        metrics.count("x")


def test_a_counter_never_goes_down() -> None:
    metrics = Metrics()
    metrics.count("x", (), 2)
    with pytest.raises(ValueError, match="incremented"):
        metrics.count("x", (), -1)
    assert metrics.snapshot()["pp1_x_total"] == 2


def test_exposition_over_http() -> None:
    metrics = Metrics({"rounds_total": "Rounds begun"})
    metrics.count("rounds_total", (), 5)
    port = metrics.expose("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    assert "# HELP pp1_rounds_total Rounds begun" in text
    assert "\npp1_rounds_total 5.0" in text
    with pytest.raises(ProtocolError) as caught:
        Metrics().expose("127.0.0.1", port)
    assert caught.value.code is Code.ADDRESS_IN_USE
    metrics.close()
    metrics.close()
