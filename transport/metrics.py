"""Counters, gauges and histograms, in a registry of their own.

Names carry the prefix ``pp1_``. Every metric has at most ``SERIES_MAX`` label
sets: what comes from outside can make a counter grow, never the number of
counters. Further label sets are counted together under the value ``other``.
"""

import re
import threading
from collections.abc import Mapping
from typing import Any, Final, TypeAlias
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from proto_v2.effects import Labels
from proto_v2.errors import Code, ProtocolError

PREFIX: Final = "pp1_"
SERIES_MAX: Final = 128
OTHER: Final = "other"
# Seconds; from a sparse row's validation to a target evaluation over the network.
BUCKETS: Final = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
DESCRIPTIONS: Final[Mapping[str, str]] = {
    "ready": "1 while the process serves",
    "link_up": "1 while a connecting link has its connection",
    "link_messages_total": "Whole messages that a link took or gave",
    "link_bytes_total": "Bytes of those messages, without ZeroMQ's framing",
    "link_refusals_total": "Attempts to connect that the listener refused",
    "link_dropped_total": "Messages that a link did not take or give, by reason",
    "job_seconds": "Time that slow work took off the event loop",
    "jobs_failed_total": "Slow work that raised",
    "log_lines_lost_total": "Log lines that could not be written",
    "links_refused_total": "Strangers turned away because too many are connected",
    "messages_rejected_total": "Messages refused by envelope, codec or link, by error code",
    "late_replies_total": "Worker replies for a step, round or generation that was over",
    "pair_stale_total": "Pair messages for a step that was over",
    "no_draft_total": "Rounds of a request planned without drafts, by reason",
    "proposals_discarded_total": "Proposals discarded whole on both ranks, by reason",
    "proposals_refused_total": "Step entries that the worker did not draft for, by error code",
    "generations_invalidated_total": "Generations ended on both ranks, by reason",
    "request_rounds_total": "Committed rounds of requests, speculative or target-only",
    "requests_ended_total": "Requests that ended with an error, by code",
    "tokens_committed_total": "Tokens that both ranks committed",
    "spec_decode_num_draft_tokens_total": "Draft tokens of committed rounds",
    "spec_decode_num_accepted_tokens_total": "Draft tokens accepted",
    "spec_decode_num_rejected_tokens_total": "Draft tokens rejected",
    "spec_decode_num_unverified_tokens_total": "Draft tokens after the end of their chain",
    "breaker_transitions_total": "Changes of the circuit breaker, by new state",
    "replies_repeated_total": "Replies that the worker sent again, byte for byte",
    "drafts_dropped_total": "Drafts whose step or generation was over when they were done",
}
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
# The time at which a series began helps nobody and doubles the page.
disable_created_metrics()  # type: ignore[no-untyped-call]
_Kind: TypeAlias = type[Counter] | type[Gauge] | type[Histogram]


class Metrics:
    """One process's metrics. Safe to use from any thread.

    ``descriptions`` gives the help text of further metrics, by name without
    prefix. A name keeps its kind and its label names for life; anything else,
    and a negative count, is a programming error and raises ``ValueError``.
    """

    def __init__(self, descriptions: Mapping[str, str] | None = None) -> None:
        self.registry = CollectorRegistry()
        self._descriptions = {**DESCRIPTIONS, **(descriptions or {})}
        self._lock = threading.Lock()
        self._families: dict[str, Any] = {}  # prometheus_client is loosely typed
        self._series: dict[tuple[str, Labels], Any] = {}
        self._series_count: dict[str, int] = {}
        self._server: tuple[WSGIServer, threading.Thread] | None = None

    def count(self, name: str, labels: Labels = (), value: int = 1) -> None:
        """Add ``value`` (not negative) to a counter."""
        self._child(Counter, name, labels).inc(value)

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._child(Gauge, name, labels).set(value)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Add one observation, in seconds, to a histogram."""
        self._child(Histogram, name, labels).observe(value)

    def snapshot(self) -> dict[str, float]:
        """Every sample by its exposition name, as in ``pp1_x_total{link="worker"}``."""
        samples: dict[str, float] = {}
        for family in self.registry.collect():
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                labels = ",".join(f'{key}="{value}"' for key, value in sample.labels.items())
                samples[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
        return samples

    def expose(self, host: str, port: int) -> int:
        """Serve the text exposition over HTTP from a daemon thread; gives the port.

        Raises ``ProtocolError(ADDRESS_IN_USE)`` if it cannot listen there.
        """
        assert self._server is None, "one exposition per process"
        try:
            server, thread = start_http_server(port, host, registry=self.registry)
        except OSError as error:
            raise ProtocolError(
                Code.ADDRESS_IN_USE, "metrics", "an address to listen on", f"{host}:{port}: {error}"
            ) from error
        self._server = (server, thread)
        return int(server.server_port)

    def close(self) -> None:
        """End the exposition, if there is one."""
        if self._server is not None:
            server, thread = self._server
            server.shutdown()
            server.server_close()
            thread.join()
            self._server = None

    def _child(self, kind: _Kind, name: str, labels: Labels) -> Any:
        child = self._series.get((name, labels))
        if child is None:
            with self._lock:
                child = self._series.get((name, labels)) or self._new_child(kind, name, labels)
        if not isinstance(child, kind):
            raise ValueError(f"metric {name} is a {type(child).__name__.lower()}")
        return child

    def _new_child(self, kind: _Kind, name: str, labels: Labels) -> Any:
        bare = name.removeprefix(PREFIX)
        if not _NAME.match(bare):
            raise ValueError(f"not a metric name: {name!r}")
        family = self._families.get(bare)
        if family is None:
            text = self._descriptions.get(bare, bare.replace("_", " "))
            family = _family(kind, PREFIX + bare, text, [label for label, _ in labels])
            self.registry.register(family)
            self._families[bare] = family
        if not labels:
            self._series[name, labels] = family
            return family
        count = self._series_count.get(bare, 0)
        if count >= SERIES_MAX:
            return family.labels(**dict.fromkeys(dict(labels), OTHER))
        child = family.labels(**dict(labels))
        self._series[name, labels] = child
        self._series_count[bare] = count + 1
        return child


def _family(kind: _Kind, name: str, text: str, labels: list[str]) -> Any:
    if issubclass(kind, Histogram):
        return kind(name, text, labels, registry=None, buckets=BUCKETS)
    return kind(name, text, labels, registry=None)
