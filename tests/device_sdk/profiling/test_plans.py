from __future__ import annotations

import numpy as np
import pytest

from device_sdk.execution.workspace import Workspace
from device_sdk.machine import resident_bytes
from device_sdk.profiling.plans import exit_overhead_ms, measured_peak_bytes
from device_sdk.profiling.stretches import Timing
from device_sdk.supernet.plan import Edge, ExitChoice, Plan, Subnet

MB = 1_000_000
SUBNET = Subnet((Edge("o0"), Edge("m1-4"), Edge("o4")))


class HungryRuntime:
    """A runtime whose stretches hold 30 MB, took 20 MB more to load, and take 10 MB to run. Implements the port."""

    identity = "hungry"

    def __init__(self):
        self.runs = 0
        self.open = 0

    waits_for_threads = False

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


class SteadyRuntime:
    """A runtime whose runs take 1 ms, and ``boundary_ms`` more before an exit, on a clock of its own."""

    identity = "steady"

    def __init__(self, boundary_ms):
        self.boundary_ms = boundary_ms
        self.now_ns = 0
        self.open = 0

    def clock(self):
        return self.now_ns

    waits_for_threads = False

    def taking_turns(self):
        return self

    def load(self, stretch):
        self.open += 1
        return SteadyStretch(self, stretch)


class SteadyStretch:
    def __init__(self, runtime, stretch):
        self._runtime, self._outputs = runtime, stretch.outputs
        self._run_ms = 1.0 + (runtime.boundary_ms if len(stretch.outputs) > 1 else 0.0)

    def run(self, inputs):
        self._runtime.now_ns += round(self._run_ms * 1e6)
        return [np.zeros((len(inputs[0]), *spec.shape), np.float32) for spec in self._outputs]

    def run_until(self, inputs, stop):
        return self.run(inputs)

    def close(self):
        self._runtime.open -= 1


@pytest.fixture
def needs_proc():
    if resident_bytes() is None:
        pytest.skip("this system does not tell a process's memory")


@pytest.mark.parametrize(("boundary_ms", "branch_ms", "overhead_ms"), [(0.25, 1.0, 0.25), (0.0, 1.0, 0.0), (0, 1.5, 0)])
def test_the_overhead_of_an_exit_is_what_it_costs_beyond_its_branch(bundle, boundary_ms, branch_ms, overhead_ms):
    runtime = SteadyRuntime(boundary_ms)
    branches_ms = {(one.id, "fp32"): branch_ms for one in bundle.supernet.exits}
    timing = Timing(rounds=10, clock=runtime.clock)
    assert exit_overhead_ms(Workspace(bundle, runtime), timing, branches_ms) == pytest.approx(overhead_ms, abs=1e-6)
    assert runtime.open == 0


def test_under_a_memory_cap_the_overhead_of_an_exit_is_unknown(bundle):
    runtime = SteadyRuntime(0.25)
    workspace = Workspace(bundle, runtime, memory_cap_bytes=40 * MB)
    assert exit_overhead_ms(workspace, Timing(rounds=10, clock=runtime.clock), {}) == 0.0


@pytest.mark.usefixtures("needs_proc")
def test_the_highest_counts_whatever_the_process_had_freed_before(bundle):
    runtime = HungryRuntime()
    for _ in range(2):
        peak = measured_peak_bytes(Workspace(bundle, runtime), Plan(SUBNET))
        assert peak == pytest.approx(80 * MB, rel=0.25)  # 30 + 20 MB, and their sum while loading
    assert runtime.open == 0


@pytest.mark.usefixtures("needs_proc")
def test_exits_are_not_taken_so_that_everything_runs(bundle):
    runtime = HungryRuntime()
    plan = Plan(bundle.supernet.original, exits=(ExitChoice("x1-pooled", 0.0), ExitChoice("x3-pooled", 0.0)))
    peak = measured_peak_bytes(Workspace(bundle, runtime), plan)
    assert runtime.runs == 2 * 3
    assert peak == pytest.approx((3 * 30 + 50) * MB, rel=0.25)


@pytest.mark.usefixtures("needs_proc")
def test_a_real_plan_takes_at_least_its_weights_and_not_a_hundred_megabytes(bundle, runtime):
    sizes = bundle.blob_sizes()
    weights = sum(sizes[name] for name in bundle.blob_names(SUBNET.edges))
    assert weights <= measured_peak_bytes(Workspace(bundle, runtime), Plan(SUBNET), batch=4) < 100 * MB
