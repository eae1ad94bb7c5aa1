from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.policies.placement import candidates_by_macs, place
from server.errors import MalformedError, UnprocessableError
from server.placements import MeasuredExit, PlacementRequest, decide


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
