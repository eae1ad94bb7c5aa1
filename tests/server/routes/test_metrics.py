from __future__ import annotations

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from device_sdk import __version__
from server.access.scopes import Scope

pytestmark = pytest.mark.embedded  # each server counts for itself


@pytest.fixture
def server(serve, tiny, tmp_path):
    tiny.copy_to(tmp_path / "bundles" / "tiny")
    return serve(tmp_path / "bundles")


def scraped(server, **headers):
    reply = server.ask("/metrics", headers=headers)
    assert reply.status == 200, reply.body
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
    }


def value(found, name, **labels):
    return found.get((name, tuple(sorted(labels.items()))), 0.0)


def infer(server, rows, model="tiny"):
    data = np.zeros((rows, 3, 20, 20), np.float32)
    tensor = {"name": "input", "datatype": "FP32", "shape": list(data.shape), "data": data.ravel().tolist()}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def test_requests_batches_and_states_are_counted(server):
    assert infer(server, 3).status == 200
    assert infer(server, 1, "none").status == 404
    found = scraped(server)
    route = "/v2/models/<model>/infer"
    assert value(found, "pathweave_requests_total", route=route, method="POST", status="200") == 1
    assert value(found, "pathweave_requests_total", route=route, method="POST", status="404") == 1
    assert value(found, "pathweave_request_seconds_count", route=route) == 2
    assert value(found, "pathweave_refused_total", reason="NotFound") == 1
    assert value(found, "pathweave_batch_rows_sum") == 3
    assert value(found, "pathweave_inference_wait_seconds_count") == 1
    assert value(found, "pathweave_bundles", state="served") == 1
    assert value(found, "pathweave_jobs", state="queued") == 0
    assert value(found, "pathweave_inference_requests") == 0
    assert value(found, "pathweave_info", version=__version__) == 1


def test_devices_that_sent_logs_are_counted(server, log_line, ndjson):
    before = value(scraped(server), "pathweave_devices")
    server.ask("/v1/logs", method="POST", body=ndjson(log_line(1)), headers={"Pathweave-Device": "pi-7"})
    assert value(scraped(server), "pathweave_devices") == before + 1


def test_unknown_addresses_and_methods_make_no_further_series(server):
    for name in ("a", "b"):
        server.ask(f"/{name}")
        server.ask("/health", method="BREW")
    found = scraped(server)
    routes = {dict(labels).get("route") for name, labels in found if name == "pathweave_requests_total"}
    assert "none" in routes
    assert not routes & {"/a", "/b"}
    assert "BREW" not in {dict(labels).get("method") for _, labels in found}


def test_what_is_refused_at_the_head_is_counted_and_only_operators_see_it(server):
    tokens = {
        scope: {"Authorization": f"Bearer {server.services.tokens.new(scope.label, days=1, scope=scope)}"}
        for scope in (Scope.DEVICE, Scope.OPERATOR)
    }
    assert server.ask("/metrics").status == 401
    assert server.ask("/metrics", headers=tokens[Scope.DEVICE]).status == 403
    found = scraped(server, **tokens[Scope.OPERATOR])
    assert value(found, "pathweave_refused_total", reason="Unauthorized") == 1
    assert value(found, "pathweave_refused_total", reason="Forbidden") == 1
