from __future__ import annotations

import numpy as np
import pytest

from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.memory import resident_bytes
from device_sdk.profiling.plans import measured_peak_bytes
from device_sdk.supernet.plan import Edge, ExitChoice, Plan, Subnet

MB = 1_000_000
SUBNET = Subnet((Edge("o0"), Edge("m1-4"), Edge("o4")))


class HungryRuntime:
    """A runtime whose stretches hold 30 MB, took 20 MB more to load, and take 10 MB to run. Implements the port."""

    identity = "hungry"

    def __init__(self):
        self.runs = 0
        self.open = 0

    def taking_turns(self):
        return self

    def load(self, stretch):
        self.open += 1
        return HungryStretch(self, stretch)


class HungryStretch:
    def __init__(self, runtime, stretch):
        self._runtime, self._outputs = runtime, stretch.outputs
        held, loading = np.ones(30 * MB, np.uint8), np.ones(20 * MB, np.uint8)
        self._held = held + loading[0]
        del loading

    def run(self, inputs):
        self._runtime.runs += 1
        np.ones(10 * MB, np.uint8)
        return [np.zeros((len(inputs[0]), *spec.shape), np.float32) for spec in self._outputs]

    def run_until(self, inputs, stop):
        return self.run(inputs)

    def close(self):
        self._runtime.open -= 1
        self._held = None


@pytest.fixture(autouse=True)
def needs_proc():
    if resident_bytes() is None:
        pytest.skip("this system does not tell a process's memory")


def test_the_highest_counts_whatever_the_process_had_freed_before(bundle):
    runtime = HungryRuntime()
    for _ in range(2):
        peak = measured_peak_bytes(Workspace(bundle, runtime), Plan(SUBNET))
        assert peak == pytest.approx(80 * MB, rel=0.25)  # 30 + 20 MB, and their sum while loading
    assert runtime.open == 0


def test_exits_are_not_taken_so_that_everything_runs(bundle):
    runtime = HungryRuntime()
    plan = Plan(bundle.supernet.original, exits=(ExitChoice("x1-pooled", 0.0), ExitChoice("x3-pooled", 0.0)))
    peak = measured_peak_bytes(Workspace(bundle, runtime), plan)
    assert runtime.runs == 2 * 3
    assert peak == pytest.approx((3 * 30 + 50) * MB, rel=0.25)


def test_a_real_plan_takes_at_least_its_weights_and_not_a_hundred_megabytes(bundle, runtime):
    sizes = bundle.blob_sizes()
    weights = sum(sizes[name] for name in bundle.blob_names(SUBNET.edges))
    assert weights <= measured_peak_bytes(Workspace(bundle, runtime), Plan(SUBNET), batch=4) < 100 * MB
