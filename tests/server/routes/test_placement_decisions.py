from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.policies.placement import candidates_by_macs, place
from server.errors import MalformedError, UnprocessableError
from server.routes.placements import MeasuredExit, PlacementRequest, StopTimesPiece, Transfer, decide


@pytest.fixture(scope="module")
def supernet(tiny_bundle):
    return tiny_bundle.supernet


@given(memory_bytes=st.none() | st.integers(0, 2000))
def test_without_measurements_it_is_what_a_device_decides_alone(supernet, memory_bytes):
    candidates, full_time = candidates_by_macs(supernet)
    alone = place(candidates, full_time=full_time, memory_bytes=memory_bytes)
    answer = decide(PlacementRequest("tiny", memory_bytes), supernet, version=3)
    assert answer == {
        "bundle": "tiny",
        "version": 3,
        "basis": "macs",
        "exits": list(alone.exits),
        "expectation": alone.expectation,
        "memory_bytes": alone.memory_bytes,
        "optimal": True,
    }


def test_measured_exits_count_as_they_were_measured(supernet):
    measured = {"x1-pooled": MeasuredExit(1.0, 100), "x3-pooled": MeasuredExit(5.0, 100)}
    asked = PlacementRequest("tiny", 1000, measured, full_latency_ms=4.0)
    answer = decide(asked, supernet, version=1)
    assert answer["basis"] == "latency"
    assert answer["exits"] == ["x1-pooled"]  # the other answers after the full model
    assert answer["memory_bytes"] == 100
    assert answer["expectation"] == pytest.approx(supernet.exit("x1-pooled").accuracy * 3 / 4)


def test_only_what_was_measured_is_placed(supernet):
    asked = PlacementRequest("tiny", None, {"x2-pooled": MeasuredExit(1.0, 100)}, full_latency_ms=4.0)
    assert decide(asked, supernet, version=1)["exits"] == ["x2-pooled"]


def test_an_exit_that_is_not_there_is_named(supernet):
    asked = PlacementRequest("tiny", None, {"x9": MeasuredExit(1.0, 100)}, full_latency_ms=4.0)
    with pytest.raises(UnprocessableError, match="'x9'") as caught:
        decide(asked, supernet, version=1)
    assert "x1-pooled" in caught.value.hint


@pytest.mark.parametrize("exits", [None, {"x1-pooled": MeasuredExit(1.0, 100)}])
def test_exits_and_the_full_latency_go_together(supernet, exits):
    asked = PlacementRequest("tiny", None, exits, full_latency_ms=None if exits else 4.0)
    with pytest.raises(MalformedError):
        decide(asked, supernet, version=1)


def measured_two(size=1000):
    return {"x1-pooled": MeasuredExit(1.0, size), "x3-pooled": MeasuredExit(2.0, size)}


def test_what_does_not_arrive_within_the_latency_budget_is_not_placed(supernet):
    exits = measured_two()

    def placed(budget_ms):
        transfer = Transfer(latency_budget_ms=budget_ms, uplink_mbps=8.0, downlink_mbps=8.0)
        asked = PlacementRequest("tiny", None, exits, full_latency_ms=4.0, transfer=transfer, search_ms=10.0)
        return decide(asked, supernet, version=1)["memory_bytes"]

    # at 8 Mbit/s a kilobyte takes a millisecond, the request of 16 bytes 0.016 ms, the search up to 10 ms
    assert placed(10.0) == 0
    assert placed(11.0) == 0
    assert placed(11.02) == 1000
    best = decide(PlacementRequest("tiny", None, exits, full_latency_ms=4.0), supernet, version=1)["memory_bytes"]
    assert placed(12.02) == best


def test_stop_times_decide_between_an_early_and_an_accurate_exit(supernet):
    exits = measured_two()
    assert supernet.exit("x1-pooled").accuracy < supernet.exit("x3-pooled").accuracy

    def placed(*pieces):
        asked = PlacementRequest("tiny", 1000, exits, full_latency_ms=4.0, stop_times=pieces)
        return decide(asked, supernet, version=1)["exits"]

    assert placed(StopTimesPiece(0.5, 1), StopTimesPiece(1.0, 0)) == ["x1-pooled"]
    assert placed(StopTimesPiece(0.5, 0), StopTimesPiece(1.0, 1)) == ["x3-pooled"]


@pytest.mark.parametrize("pieces", [(), (StopTimesPiece(0.5, 1),), (StopTimesPiece(1.0, -1),)])
def test_impossible_stop_times_are_malformed(supernet, pieces):
    with pytest.raises(MalformedError, match="stop times"):
        decide(PlacementRequest("tiny", stop_times=pieces), supernet, version=1)


def test_without_time_to_search_the_greedy_choice_is_not_called_optimal(supernet):
    answer = decide(PlacementRequest("tiny", 2000, search_ms=0.0), supernet, version=1)
    greedy = decide(PlacementRequest("tiny", 2000, strategy="greedy"), supernet, version=1)
    assert answer == greedy
    assert answer["optimal"] is False
