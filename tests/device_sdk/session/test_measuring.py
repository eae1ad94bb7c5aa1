"""Everything that a session loads under a memory cap: what it takes at once, counted exactly and measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BudgetError
from device_sdk.execution.pager import LOADING_FACTOR, RESIDENT_FACTOR, SESSION_BYTES
from device_sdk.execution.paging import least_memory_cap_bytes
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.logs.adaptation_log import AdaptationLog
from device_sdk.policies.chooser import Here, choose
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.policies.subnet_search import within_cap
from device_sdk.profiling.timing import Latency
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.choosing import Choosing
from device_sdk.session.device_state import DeviceState
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Edge, Plan, Subnet

MB = 1_000_000
CAP_BYTES = (
    10 * MB
)  # the elastic heavy bundle: subnets of one or two large blocks fit in one piece, the original does not
ALWAYS = Goal(latency_ms=1e9)


class Counting:
    """ONNX Runtime, and what its sessions take at once as paging reckons: weights by factors, tensors as they are.

    Implements the runtime port.
    """

    def __init__(self):
        self._engine = OnnxRuntime(threads=1, lean=True)
        self.identity = self._engine.identity
        self.taken_bytes = self.peak_bytes = self.loads = 0

    def take(self, size_bytes):
        self.taken_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.taken_bytes)

    waits_for_threads = False

    def taking_turns(self):
        return self

    def load(self, stretch):
        weights = sum(map(len, stretch.fragments))
        loading, resident = (round(factor * weights) + SESSION_BYTES for factor in (LOADING_FACTOR, RESIDENT_FACTOR))
        self.take(loading)
        loaded = self._engine.load(stretch)
        self.take(resident - loading)
        self.loads += 1
        return CountedStretch(self, loaded, resident)


class CountedStretch:
    def __init__(self, owner, loaded, resident_bytes):
        self._owner, self._loaded, self._resident_bytes = owner, loaded, resident_bytes

    def run(self, inputs):
        outputs = self._loaded.run(inputs)
        tensors = sum(one.nbytes for one in [*inputs, *outputs])
        self._owner.take(tensors)
        self._owner.take(-tensors)
        return outputs

    def close(self):
        self._loaded.close()
        self._owner.take(-self._resident_bytes)
        self._resident_bytes = 0

    def __del__(self):
        self.close()


class Device:
    """A plan in use and what measures beside it, under a cap, on a runtime that counts."""

    def __init__(self, bundle, folder, cap_bytes):
        self.runtime = Counting()
        self.in_use = PlanInUse(Workspace(bundle, self.runtime, cap_bytes))
        state = DeviceState(folder, bundle, self.runtime, memory_cap_bytes=cap_bytes)
        log = AdaptationLog(folder / "log.jsonl", bundle=bundle.digest, runtime=self.runtime.identity)
        self.choosing = Choosing(state, self.in_use, SampleChecker(bundle.manifest), RemoteAnswers(bundle, log), log)
        self.in_use.begin(Plan(bundle.supernet.original))

    def profile(self):
        return self.choosing.profile(progress=SilentProgress())

    def adapt(self, labels, goal=ALWAYS, kinds=("subnets",), **settings):
        inputs, _ = samples()
        here = Here(self.in_use.lend_workspace(), self.profile(), self.in_use.running().plan)
        settings = AdaptationSettings(**settings)
        return choose(inputs, labels, goal, kinds, here, settings=settings, progress=SilentProgress())

    def take(self, plan):
        self.in_use.lend_workspace()
        self.in_use.exchange(Active(plan, self.in_use.load(plan)))

    def choose_exits(self):
        goal = Goal(optimise="latency_ms", max_drop=1.0)  # whatever an exit answers is good enough
        return self.adapt(samples()[1], goal, {"exits"})


def samples(count: int = 24) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(1).random((count, 3, 4, 4), dtype=np.float32)
    return inputs, np.arange(count) % 3


def large_blocks(subnet: Subnet) -> int:
    return len(subnet.edges) - 2  # without the small one at the start and the classifier


@pytest.fixture(scope="module")
def device(elastic_heavy, tmp_path_factory):
    """A device under the cap; its tests go on where the one before ended."""
    return Device(elastic_heavy, tmp_path_factory.mktemp("device"), CAP_BYTES)


@pytest.fixture(scope="module")
def profile(device):
    return device.profile()


@pytest.mark.slow
def test_all_that_a_session_does_stays_under_the_cap_to_the_byte(elastic_heavy, device, profile):
    run_self_test(Workspace(elastic_heavy, device.runtime, CAP_BYTES))
    for labels, cache_bytes in ((samples()[1], 64 * MB), (None, 0)):
        found = device.adapt(labels, cache_bytes=cache_bytes)
        device.take(found.plan)
    device.take(device.choose_exits().plan)
    device.take(Plan(elastic_heavy.supernet.original))
    device.choose_exits()  # of what runs in pages
    assert device.runtime.peak_bytes <= CAP_BYTES
    assert device.runtime.peak_bytes > 0.8 * CAP_BYTES  # otherwise nothing was counted
    device.in_use.close()
    assert device.runtime.taken_bytes == 0


def test_under_a_cap_only_what_runs_in_one_piece_is_fitted(profile, elastic_heavy):
    first, *others = profile.fitted
    assert first.subnet == elastic_heavy.supernet.original
    assert first.in_pages
    assert {large_blocks(one.subnet) for one in others} == {1, 2}
    assert not any(one.in_pages for one in others)
    assert profile.original_ms == first.measured_ms
    assert profile.original_ms > 3 * profile.cost_model().latency_ms(first.subnet)  # pages are loaded in every call
    assert profile.memory_cap_bytes == CAP_BYTES


def test_subnets_in_pages_are_left_out_of_the_search_where_others_fit(profile, elastic_heavy):
    supernet, costs = elastic_heavy.supernet, profile.cost_model()
    allowed = within_cap(supernet, costs, ALWAYS.budget(), CAP_BYTES)
    assert allowed == Budget(latency_ms=1e9, memory_mb=10.0)
    pieces = [Subnet(tuple(map(Edge, ("o0", *middle, "o6")))) for middle in (["m1-6"], ["m1-3", "m3-6"])]
    assert [allowed.fits(costs.cost(one)) for one in [*pieces, supernet.original]] == [True, True, False]
    stricter = Budget(latency_ms=1e9, memory_mb=6.0)
    assert within_cap(supernet, costs, stricter, CAP_BYTES) == stricter
    assert (
        within_cap(supernet, costs, ALWAYS.budget(), 1 * MB) == ALWAYS.budget()
    )  # where all run in pages, pages it is
    assert within_cap(supernet, costs, ALWAYS.budget(), None) == ALWAYS.budget()


def test_under_a_cap_a_search_holds_nothing_while_subnets_are_measured(elastic_heavy, device, profile):
    costs, held, before = profile.cost_model(), [], device.runtime.loads

    def measure(subnets, as_served):
        held.append((device.runtime.taken_bytes, device.runtime.loads))
        times_ms = [costs.latency_ms(one) * (4 if large_blocks(one) == 2 else 1) for one in subnets]
        return [Latency(median_ms=ms, p95_ms=ms, p25_ms=ms, p75_ms=ms, runs=9) for ms in times_ms]

    workspace = device.in_use.lend_workspace()
    here = Here(workspace, profile, Plan(elastic_heavy.supernet.original), measure=measure)
    two = max(costs.latency_ms(one.subnet) for one in profile.fitted[1:])
    goal = Goal(latency_ms=1.2 * two)  # two large blocks are predicted to keep it, and measure too slow
    inputs, labels = samples()
    choose(inputs, labels, goal, ["subnets"], here, settings=AdaptationSettings(), progress=SilentProgress())
    assert {taken for taken, _ in held} == {0}
    assert held[-1][1] > before  # some were measured after the search had loaded some


@pytest.mark.slow
def test_a_bundle_that_has_to_run_in_pages_is_adapted_with_plain_sums(build_heavy, tmp_path):
    bundle = build_heavy(blocks=4, channels=160, colours=3)
    device = Device(bundle, tmp_path, 6 * MB)
    profile, found = device.profile(), device.adapt(samples()[1])
    assert [one.in_pages for one in profile.fitted] == [True]
    assert (profile.scale, profile.offset_ms) == (1.0, 0.0)
    assert found.subnet == bundle.supernet.original
    assert found.measured.latency_ms > 3 * found.expected.latency_ms
    assert device.runtime.peak_bytes <= 6 * MB


def test_a_cap_below_the_largest_block_is_refused_before_anything_runs(elastic_heavy):
    least = least_memory_cap_bytes(elastic_heavy, Plan(elastic_heavy.supernet.original))
    runtime = Counting()
    with pytest.raises(BudgetError, match="block o1 alone takes") as caught:
        run_self_test(Workspace(elastic_heavy, runtime, least - 1))
    assert caught.value.hint


def test_a_profile_holds_for_its_cap_alone(profile, elastic_heavy, device, tmp_path):
    DeviceState(tmp_path, elastic_heavy, device.runtime, memory_cap_bytes=CAP_BYTES).save_profile(profile)
    for cap_bytes, known in ((CAP_BYTES, profile), (CAP_BYTES + 1, None), (None, None)):
        state = DeviceState(tmp_path, elastic_heavy, device.runtime, memory_cap_bytes=cap_bytes)
        assert state.load_profile() == known


_MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
from device_sdk.bundles.bundle import Bundle
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.goal import Goal
from device_sdk.profiling.stretches import peak_during
from device_sdk.runtimes import OnnxRuntime
from device_sdk.session.adaptive_model import AdaptiveModel

folder, state, cap_mb = sys.argv[1], sys.argv[2], float(sys.argv[3])
bundle, bare = Bundle.open(folder), OnnxRuntime(threads=1, lean=True)
cuts = bundle.supernet.cut_points
smallest = bare.load(bundle.stretch(bundle.supernet.original.edges[-1:]))  # the bare runtime is not what is measured
smallest.run([np.ones((1, *cuts[-2].tensors[0].shape), np.float32)])
images, labels = np.random.default_rng(1).integers(0, 256, (24, 4, 4, 3), dtype=np.uint8), np.arange(24) % 3


def work():
    with AdaptiveModel.open(folder, state_folder=state, memory_cap_mb=cap_mb) as model:
        model.profile()
        for targets in (labels, None):
            model.adapt(images, Goal(latency_ms=1e9), labels=targets)
        model.adapt(images, Goal(optimise="latency_ms", max_drop=0.005), {"exits"}, labels)
        return str(model.plan.subnet), model(images[0]).output.shape


(subnet, shape), peak = peak_during(work)
print(json.dumps({"subnet": subnet, "shape": shape, "peak_bytes": peak}))
"""

SLACK_BYTES = 8 * MB  # what the allocator has not given back yet, and Python's own


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads peak memory from /proc")
def test_the_memory_of_a_process_stays_under_the_cap_from_the_first_opening_on(elastic_heavy: Bundle, tmp_path):
    command = [sys.executable, "-c", _MEASURE, str(elastic_heavy.folder), str(tmp_path), str(CAP_BYTES / MB)]
    done = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    assert done["peak_bytes"] <= CAP_BYTES + SLACK_BYTES
    assert done["shape"] == [1, 3]
    assert "m1-" in done["subnet"]
