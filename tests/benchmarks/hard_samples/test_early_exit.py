from __future__ import annotations

import numpy as np
import pytest

from benchmarks.hard_samples.early_exit import KINDS, best_of, promised, savings
from device_sdk.policies.planning.choice import Option
from device_sdk.supernet.cost import PlanCost
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Edge, Plan, Subnet

OLD, NEW = (Plan(Subnet((Edge(name),))) for name in ("old", "new"))
MS = {OLD: np.full(100, 4.0), NEW: np.where(np.arange(100) < 50, 1.0, 5.0)}


def judged(plan, positions):
    mean_ms = float(MS[plan][positions].mean())
    return PlanCost(accuracy=0.9, latency_ms=mean_ms, p95_latency_ms=mean_ms, bytes_sent=0.0, peak_bytes=0)


def test_no_kind_of_plan_is_among_the_candidates_of_another():
    kinds = [kind for group in KINDS.values() for kind in group]
    assert len(kinds) == len(set(kinds))


def test_a_saving_has_a_lower_bound_by_the_samples():
    saved, low = savings(NEW, OLD, judged, "latency_ms", 100)
    assert saved == pytest.approx(0.25)
    assert 0.0 < low < saved


def test_a_kind_that_is_not_worth_it_saves_nothing():
    assert savings(None, OLD, judged, "latency_ms", 100) == (0.0, 0.0)


def test_plans_that_miss_the_requirement_are_no_candidates():
    def option(plan, ms, misses):
        return Option(
            plan, PlanCost(accuracy=0.9, latency_ms=ms, p95_latency_ms=ms, bytes_sent=0, peak_bytes=0), misses
        )

    requirement = Requirement(accuracy=0.9, optimise="latency_ms")
    found = {"subnet": option(OLD, 1.0, {"accuracy": 0.8}), "ask": option(NEW, 2.0, {})}
    assert best_of(found, ("subnet", "ask"), requirement) == NEW
    assert best_of(found, ("exits",), requirement) is None


def test_a_promise_is_made_with_room_for_chance():
    assert promised(0.9, 1000) == pytest.approx(0.9 + 1.28 * 0.3 / 1000**0.5, abs=0.002)
    assert promised(0.9, 100_000) < promised(0.9, 1000)
