from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import urlopen

import pytest
from flask import Flask, abort

from server.http.request_log import REQUEST_ID, identify_requests
from server.http.tracing import trace_requests, tracing_wanted

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra: pip install 'pathweave[telemetry]'")


@pytest.fixture
def spans():
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


@pytest.fixture
def client(spans):
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    app, provider = Flask(__name__), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    identify_requests(app)
    trace_requests(app, provider)

    @app.get("/bundles/<name>")
    def bundles(name):
        return name

    @app.get("/broken")
    def broken():
        abort(503)

    return app.test_client()


def test_a_request_is_a_span_with_its_route_status_and_id(client, spans):
    client.get("/bundles/secret-name?token=secret", headers={REQUEST_ID: "one"})
    (span,) = spans.get_finished_spans()
    assert span.name == "GET /bundles/<name>"
    assert dict(span.attributes) == {
        "http.request.method": "GET",
        "http.route": "/bundles/<name>",
        "http.response.status_code": 200,
        "pathweave.request_id": "one",
    }
    assert span.status.is_ok


def test_it_is_part_of_the_client_s_trace(client, spans):
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    client.get("/bundles/a", headers={"traceparent": f"00-{trace}-{parent}-01"})
    (span,) = spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == trace
    assert f"{span.parent.span_id:016x}" == parent


@pytest.mark.parametrize("sent", ["", "nonsense", "00-0-0-01", "x" * 5000])
def test_a_traceparent_that_is_none_begins_a_trace(client, spans, sent):
    assert client.get("/bundles/a", headers={"traceparent": sent}).status_code == 200
    (span,) = spans.get_finished_spans()
    assert span.parent is None


def test_errors_of_the_server_are_marked_and_unknown_addresses_share_a_name(client, spans):
    client.get("/broken")
    client.get("/nothing/here")
    broken, missing = spans.get_finished_spans()
    assert not broken.status.is_ok
    assert (missing.name, missing.attributes["http.response.status_code"]) == ("GET none", 404)
    assert missing.status.is_ok


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_tracing_is_wanted_where_the_environment_names_a_collector(environment, wanted):
    assert tracing_wanted(environment) is wanted


def test_a_server_sends_its_spans_to_the_collector(serve, tiny, monkeypatch):
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever, daemon=True)
    thread.start()
    try:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        running = serve(tiny.folder.parent)
        with urlopen(f"{running.url}/health", timeout=30) as reply:
            reply.read()
        running.stop()
    finally:
        collector.shutdown()
        thread.join()
    assert received
    assert b"GET /health" in received[0]
