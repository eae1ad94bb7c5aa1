"""Figures of one server for Prometheus: requests, refusals, batches and waits as they happen, states when it asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from flask import Flask, Response, g, request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from device_sdk import __version__
from device_sdk.errors import PathweaveError
from server.errors import RequestError
from server.http.memory_budget import Reservation
from server.http.request_reader import AdmitBody

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
_METHODS = frozenset(["GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"])


@dataclass(frozen=True)
class Reading:
    """A gauge that is read at each scrape: its values by the value of ``label``; of a gauge without label one alone."""

    name: str
    text: str
    read: Callable[[], Mapping[str, float]]
    label: str = ""


class Metrics:
    """The metrics of one application. Thread-safe.

    ``states``: one that cannot be read is left out of that scrape; readiness says what is away.
    """

    def __init__(self, states: Sequence[Reading] = ()) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "pathweave_requests",
            "Requests that were answered, by route, method and status.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "pathweave_request_seconds",
            "Time from the request's head to the end of its handler.",
            ("route",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._refused = Counter(
            "pathweave_refused",
            "Requests that were refused, by reason: at the head or by a handler.",
            ("reason",),
            registry=self._registry,
        )
        self._rows = Histogram(
            "pathweave_batch_rows", "Rows of an inference batch.", buckets=_ROWS, registry=self._registry
        )
        self._waited = Histogram(
            "pathweave_inference_wait_seconds",
            "Time that a request waited before its first rows ran.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._registry.register(_States(states))

    def observe(self, app: Flask) -> None:
        """Count the requests of ``app``, which ``request_log`` gives the times of their heads."""

        def end(reply: Response) -> Response:
            route = "none" if request.url_rule is None else request.url_rule.rule
            method = request.method if request.method in _METHODS else "other"
            self._requests.labels(route, method, str(reply.status_code)).inc()
            self._seconds.labels(route).observe(time.perf_counter() - g.received_s)
            return reply

        app.after_request(end)

    def refused(self, error: RequestError) -> None:
        """A request was refused, for a reason that the type of ``error`` names."""
        self._refused.labels(type(error).__name__.removesuffix("Error")).inc()

    def counted(self, admit: AdmitBody) -> CountedAdmission:
        """``admit``, with what it refuses counted."""
        return CountedAdmission(admit, self.refused)

    def batch(self, rows: int, waits_s: Sequence[float]) -> None:
        """A batch of ``rows`` begins; the requests whose first rows it has waited ``waits_s``."""
        self._rows.observe(rows)
        for one in waits_s:
            self._waited.observe(one)

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self._registry)


class CountedAdmission:
    """``admit``, which tells ``refused`` of each request that it refuses."""

    def __init__(self, admit: AdmitBody, refused: Callable[[RequestError], None]) -> None:
        self.admit, self._refused = admit, refused

    def __call__(
        self, method: str, path: str, headers: Mapping[str, str], *, address: str, body_bytes: int
    ) -> Reservation:
        """As ``admit``."""
        try:
            return self.admit(method, path, headers, address=address, body_bytes=body_bytes)
        except RequestError as error:
            self._refused(error)
            raise


class _States:
    """A collector of gauges that are read at each scrape."""

    def __init__(self, states: Sequence[Reading]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        version = GaugeMetricFamily("pathweave_info", "The version that runs.", labels=("version",))
        version.add_metric((__version__,), 1.0)
        yield version
        for state in self._states:
            gauge = GaugeMetricFamily(state.name, state.text, labels=(state.label,) if state.label else ())
            try:
                found = state.read()
            except PathweaveError:
                continue
            for value, figure in found.items():
                gauge.add_metric((value,) if state.label else (), figure)
            yield gauge
