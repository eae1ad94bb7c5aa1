from __future__ import annotations

import pytest

from device_sdk.profiling.profile import MeasuredEdge, MeasuredExit, Profile
from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.plan import Edge
from packager.branch_zoo.selection import answer_times, survives
from packager.supernet.expansion import expand


@pytest.mark.parametrize(
    ("answer_time", "accuracy", "expected"),
    [(9.0, 0.2, True), (11.0, 0.95, True), (11.0, 0.9, False), (10.0, 0.9, False)],
    ids=["early", "late but better", "late and no better", "at the same time"],
)
def test_a_branch_survives_if_it_is_early_or_better(answer_time, accuracy, expected):
    found = survives(answer_time=answer_time, accuracy=accuracy, full_time=10.0, full_accuracy=0.9)
    assert found is expected


def test_without_a_profile_macs_decide(tiny_traced):
    expansion = expand(tiny_traced, max_span=1)
    times = answer_times(expansion)
    assert times.unit == "MACs"
    assert times.full == sum(block.macs for block in expansion.originals)
    assert times.answer("x2-none-p1", 2, 640) == sum(block.macs for block in expansion.originals[:2]) + 640


def test_a_profile_gives_measured_times_and_the_rest_by_its_speed(tiny_traced):
    expansion = expand(tiny_traced, max_span=1)
    times = answer_times(expansion, profile_of([block.id for block in expansion.originals]))
    macs = sum(block.macs for block in expansion.originals)
    assert (times.unit, times.full) == ("ms", pytest.approx(2.0 * len(expansion.originals)))
    assert times.answer("x2-none-p1", 2, 640) == pytest.approx(4.0 + 0.25)
    assert times.answer("x2-none-p2", 2, macs) == pytest.approx(4.0 + times.full)


def test_a_profile_of_another_model_is_not_used(tiny_traced):
    assert answer_times(expand(tiny_traced, max_span=1), profile_of(["o0", "o1"])).unit == "MACs"


def profile_of(blocks: list[str]) -> Profile:
    cost = EdgeCost(latency_ms=2.0, p95_latency_ms=2.0, resident_bytes=1, working_bytes=1)
    branch = EdgeCost(latency_ms=0.25, p95_latency_ms=0.25, resident_bytes=1, working_bytes=1)
    return Profile(
        bundle="0" * 64,
        device="a device",
        runtime="onnxruntime",
        batch=1,
        created="2026-01-01T00:00:00Z",
        edges=tuple(MeasuredEdge(Edge(block), cost) for block in blocks),
        scale=1.0,
        offset_ms=0.0,
        fitted=(),
        original_ms=2.0 * len(blocks),
        exits=(MeasuredExit("x2-none-p1", "fp32", branch),),
    )
