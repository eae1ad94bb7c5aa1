from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.evidence import Evidence
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.profiling.plans import CallTimes, call_times
from device_sdk.profiling.profile import profile
from device_sdk.profiling.stretches import Timing
from device_sdk.progress import SilentProgress
from device_sdk.supernet.plan import Abstain, Decider, Margin, Plan, decider_kind

MB = 1_000_000
TICK_NS = 10_000


class TickingRuntime:
    """A runtime on a clock of its own: runs take 1 ms, and 0.01 ms pass whenever the time is read."""

    identity = "ticking"

    def __init__(self):
        self.now_ns, self.open = 0, 0

    def clock(self):
        self.now_ns += TICK_NS
        return self.now_ns

    waits_for_threads = False

    def taking_turns(self):
        return self

    def load(self, stretch):
        self.open += 1
        return TickingStretch(self, stretch)


class TickingStretch:
    def __init__(self, runtime, stretch):
        self._runtime, self._outputs = runtime, stretch.outputs

    def run(self, inputs):
        self._runtime.now_ns += 1_000_000
        return [np.zeros((len(inputs[0]), *spec.shape), np.float32) for spec in self._outputs]

    def run_until(self, inputs, stop):
        return self.run(inputs)

    def close(self):
        self._runtime.open -= 1


def test_a_call_takes_what_passes_outside_of_its_models_and_a_decision_what_it_takes(bundle):
    runtime = TickingRuntime()
    found = call_times(Workspace(bundle, runtime), Timing(rounds=10, clock=runtime.clock))
    assert found.overhead_ms == pytest.approx(0.02)  # between the call's begin and end the model reads the clock twice
    assert set(found.decision_ms) == {one.__struct_config__.tag for one in get_args(Decider)}
    assert list(found.decision_ms.values()) == pytest.approx([0.01] * 5)
    assert runtime.open == 0


def test_a_slow_model_is_run_a_few_times_only(bundle):
    runtime = TickingRuntime()
    runtime_load = runtime.load

    class Slow(TickingStretch):
        def run(self, inputs):
            self._runtime.now_ns += 500_000_000
            return super().run(inputs)

    def load(stretch):
        runtime_load(stretch)
        return Slow(runtime, stretch)

    runtime.load = load
    found = call_times(Workspace(bundle, runtime), Timing(rounds=10, clock=runtime.clock))
    assert runtime.now_ns < 25 * 500_000_000
    assert len(found.decision_ms) == 5


def test_under_a_memory_cap_nothing_is_known(bundle):
    runtime = TickingRuntime()
    workspace = Workspace(bundle, runtime, memory_cap_bytes=40 * MB)
    assert call_times(workspace, Timing(rounds=10, clock=runtime.clock)) == CallTimes()


def test_a_known_overhead_is_predicted_exactly(bundle):
    """A subnet that abstains: its model, the call around it, and the decision."""
    runtime = TickingRuntime()
    measured = profile(Workspace(bundle, runtime), progress=SilentProgress(), clock=runtime.clock)
    subnet, decider = bundle.supernet.original, Margin(0.5)
    classes = bundle.manifest.cut_points[-1].tensors[0].shape[0]
    logits = np.zeros((8, classes), np.float32)
    evidence = Evidence(np.zeros(8, np.int64), ends={subnet: logits})
    costs = measured.cost_model()
    plain, abstaining = (
        expected_cost(bundle.supernet, plan, evidence, costs).latency_ms
        for plan in (Plan(subnet), Plan(subnet, hard=Abstain(decider)))
    )
    assert plain == pytest.approx(costs.latency_ms(subnet) + 0.02)
    assert abstaining == pytest.approx(plain + 0.01)
    assert decider_kind(decider) == "margin"
