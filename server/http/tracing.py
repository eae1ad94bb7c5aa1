"""A span of OpenTelemetry for each request, sent where OpenTelemetry's own variables say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flask import Flask, Response, g, request

from device_sdk import __version__
from device_sdk.extras import require

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED, _SERVICE = "OTEL_SDK_DISABLED", "pathweave-server"
_ERRORS_FROM = 500


def tracing_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """True if a collector is named and tracing is not switched off."""
    named = any(environment.get(name) for name in ENDPOINTS)
    return named and environment.get(_DISABLED, "").strip().lower() != "true"


def new_provider() -> TracerProvider:
    """Spans go by OTLP over HTTP in batches; the environment names collector, headers, service and sampler.

    Raises:
        UsageError: the extra telemetry is not installed.
    """
    require("opentelemetry.exporter.otlp.proto.http", extra="telemetry")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    own = {SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", _SERVICE), SERVICE_VERSION: __version__}
    provider = TracerProvider(resource=Resource.create(own))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def trace_requests(app: Flask, provider: TracerProvider) -> None:
    """A span for each request of ``app``, as a part of the trace that the client's ``traceparent`` names.

    It has method, route, status and the request's id; neither query, body, token nor the client's name. Called after
    ``identify_requests``.
    """
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer, context = provider.get_tracer("pathweave.server", __version__), TraceContextTextMapPropagator()

    def begin() -> None:
        route = "none" if request.url_rule is None else request.url_rule.rule
        g.span = tracer.start_span(
            f"{request.method} {route}",
            context=context.extract({name.lower(): value for name, value in request.headers.items()}),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": request.method, "http.route": route},
        )

    def end(reply: Response) -> Response:
        span = g.get("span")
        if span is not None:
            span.set_attribute("http.response.status_code", reply.status_code)
            span.set_attribute("pathweave.request_id", g.get("request_id", ""))
            if reply.status_code >= _ERRORS_FROM:
                span.set_status(Status(StatusCode.ERROR))
        return reply

    def close(_: BaseException | None) -> None:
        span = g.pop("span", None)
        if span is not None:
            span.end()

    app.before_request_funcs.setdefault(None, []).insert(0, begin)
    app.after_request(end)
    app.teardown_request(close)
