from __future__ import annotations

import numpy as np
import pytest

from device_sdk.data.inputs import PreparedInputs
from device_sdk.data.preprocessing import prepare
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.planning.best_rungs import best_rungs
from device_sdk.policies.planning.plan_choice import choose_plan
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.progress import SilentProgress
from device_sdk.search.ladder import ladder
from device_sdk.supernet.requirement import Requirement


class Watched(PreparedInputs):
    """Notes which samples are looked at."""

    def __init__(self, tensors):
        super().__init__(tensors)
        self.positions = []

    def subset(self, positions):
        self.positions += positions.tolist()
        return super().subset(positions)


@pytest.fixture
def inputs(bundle, tiny_bundle):
    return Watched(prepare(tiny_bundle.images, bundle.manifest.preprocessing, input_shape=(3, 20, 20)))


@pytest.fixture
def found(bundle, runtime, slow_profile, tiny_bundle, inputs):
    def find(positions, requirement):
        return best_rungs(
            Workspace(bundle, runtime),
            slow_profile.cost_model(),
            inputs,
            tiny_bundle.labels,
            positions,
            requirement,
            progress=SilentProgress(),
        )

    return find


def test_they_are_rungs_each_faster_than_the_one_before(bundle, slow_profile, found):
    rungs = found(np.arange(60), Requirement(latency_ms=1e6))
    every = [one for column in ladder(bundle.supernet) for one in column]
    times_ms = list(map(slow_profile.cost_model().latency_ms, rungs))
    assert rungs
    assert set(rungs) <= set(every)
    assert times_ms == sorted(times_ms, reverse=True)
    assert len(set(times_ms)) == len(times_ms)


def test_only_samples_that_may_choose_are_looked_at(inputs, found):
    found(np.arange(1, 60, 2), Requirement(accuracy=0.5))
    assert inputs.positions
    assert all(position % 2 for position in inputs.positions)


def test_a_rung_over_the_memory_limit_is_none(found):
    assert found(np.arange(60), Requirement(peak_bytes=1)) == []


def test_a_plan_for_the_least_latency_needs_no_search_before(bundle, runtime, slow_profile, tiny_bundle, inputs):
    costs, original = slow_profile.cost_model(), bundle.supernet.original

    def choose(use_ladder):
        return choose_plan(
            Workspace(bundle, runtime),
            slow_profile,
            [original],
            inputs,
            tiny_bundle.labels,
            Requirement(accuracy=0.3, coverage=1.0, optimise="latency_ms"),
            Servers(),
            power=None,
            progress=SilentProgress(),
            use_ladder=use_ladder,
        ).choice.cost.latency_ms

    fastest = min(costs.latency_ms(one) for column in ladder(bundle.supernet) for one in column)
    assert choose(True) <= min(choose(False), fastest)
