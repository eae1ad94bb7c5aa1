from __future__ import annotations

import json

import pytest


def test_a_device_asks_which_exits_to_keep(server):
    reply = server.post("/v1/placements", {"bundle": "tiny", "memory_bytes": 50_000})
    assert reply.status == 200
    answer = reply.json()
    assert answer["basis"] == "macs"
    assert answer["exits"] == sorted(answer["exits"])
    assert 0 < answer["expectation"] < 1
    assert server.post("/v1/placements", {"bundle": "tiny", "memory_bytes": 0}).json()["exits"] == []


def test_a_device_sends_what_it_measured(server):
    exits = {"x2-pooled": {"latency_ms": 0.3, "memory_bytes": 1200}}
    asked = {"bundle": "tiny", "memory_bytes": 5000, "exits": exits, "full_latency_ms": 1.2}
    answer = server.post("/v1/placements", asked).json()
    assert (answer["basis"], answer["exits"], answer["memory_bytes"]) == ("latency", ["x2-pooled"], 1200)


@pytest.mark.parametrize(
    "change",
    [
        {"memory_bytes": -1},
        {"memory_bytes": "much"},
        {"memory_bytes": 1.5},
        {"bundle": None},
        {"exits": []},
        {"exits": {"x1-pooled": {"latency_ms": "quick", "memory_bytes": 1}}, "full_latency_ms": 1.0},
        {"exits": {"x1-pooled": {"latency_ms": 0, "memory_bytes": 1}}, "full_latency_ms": 1.0},
        {"exits": {"x1-pooled": {"latency_ms": 1, "memory_bytes": 1}}},
        {"full_latency_ms": 0},
        {"strategy": "best"},
        {"search_ms": 1e9},
        {"stop_times": [{"until": 0.5, "weight": 1}]},
        {"stop_times": [{"until": 1, "weight": 1}] * 1001},
        {"transfer": {"latency_budget_ms": 10}},
        {"transfer": {"latency_budget_ms": 10, "uplink_mbps": 0, "downlink_mbps": 1}},
    ],
)
def test_wrong_types_and_values_are_400(server, change):
    reply = server.post("/v1/placements", {"bundle": "tiny", "memory_bytes": 100, **change})
    assert reply.status == 400
    assert reply.json()["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[1]", b"\xff", b'{"bundle": ' + b"[" * 50_000])
def test_what_is_not_json_is_400(server, body):
    assert server.ask("/v1/placements", method="POST", body=body).status == 400


def test_an_unknown_bundle_is_404_and_an_unknown_exit_422(server):
    assert server.post("/v1/placements", {"bundle": "none"}).status == 404
    exits = {"x9": {"latency_ms": 1.0, "memory_bytes": 1}}
    reply = server.post("/v1/placements", {"bundle": "tiny", "exits": exits, "full_latency_ms": 1.0})
    assert reply.status == 422
    assert "x9" in reply.json()["error"]


def test_a_body_that_is_too_large_is_413(server):
    body = json.dumps({"bundle": "x" * 260_000}).encode()
    assert server.ask("/v1/placements", method="POST", body=body).status == 413
