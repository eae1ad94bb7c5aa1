from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from device_sdk.errors import ClosedError, UsageError
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.workspace import Workspace
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import Edge, Plan, Subnet

ROOT = Path(__file__).parents[3]
CHEAP = Plan(Subnet((Edge("o0"), Edge("m1-4"), Edge("o4"))))


@pytest.fixture
def in_use(bundle, runtime):
    made = PlanInUse(Workspace(bundle, runtime))
    made.begin(Plan(bundle.supernet.original))
    return made


def test_an_exchange_counts_only_for_what_was_expected(in_use):
    first = in_use.running()
    second, third = (Active(CHEAP, in_use.prepare(CHEAP)) for _ in range(2))
    assert in_use.exchange(second, expected=first)
    assert not in_use.exchange(third, expected=first)
    assert in_use.running() is second
    assert in_use.exchange(third)
    assert in_use.running() is third


def test_nothing_reopens_what_was_closed(in_use):
    first = in_use.running()
    in_use.close()
    in_use.close()
    for expected in (None, first):
        with pytest.raises(ClosedError):
            in_use.exchange(Active(CHEAP, first.loaded), expected=expected)
    with pytest.raises(ClosedError):
        in_use.running()


def test_a_plan_that_does_not_fit_is_refused_and_nothing_changes(in_use):
    first = in_use.running()
    with pytest.raises(UsageError):
        in_use.prepare(Plan(Subnet((Edge("o0"),))))
    assert in_use.running() is first


FORKED = """
import os, sys
import numpy as np
from device_sdk.errors import ForkedError
from device_sdk.session.adaptive_model import AdaptiveModel

folder, state = sys.argv[1:]
image = np.zeros((20, 20, 3), np.uint8)
with AdaptiveModel.open(folder, state_folder=state, threads=2) as model:
    model(image)
    child = os.fork()
    if child == 0:
        try:
            model(image)
        except ForkedError as error:
            print(error, "|", error.hint, flush=True)
        model.close()
        model.close()
        del model
        own = AdaptiveModel.open(folder, state_folder=state)
        print(own(image).output.shape, flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(model(image).output.shape)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_to_open_its_own_and_can(tiny_bundle, slow_state):
    command = [sys.executable, "-c", FORKED, str(tiny_bundle.folder), str(slow_state)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told, child, parent = done.stdout.splitlines()
    assert "was opened before this process was forked off" in told
    assert "spawn" in told
    assert child == parent == "(1, 3)"


WAYS = """
import asyncio, os, sys
import numpy as np
from device_sdk.errors import ForkedError
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal

folder, state = sys.argv[1:]
images, tensor = np.zeros((4, 20, 20, 3), np.uint8), np.zeros((1, 3, 20, 20), np.float32)
model = AdaptiveModel.open(folder, state_folder=state, threads=2)
model(images)
ways = {
    "infer": lambda: model.infer(tensor),
    "answer_async": lambda: asyncio.run(model.acall(images)),
    "warm_up": model.warm_up,
    "adapt": lambda: model.adapt(images, Goal(latency_ms=1000), labels=np.arange(4) % 3),
    "live": model.live.start,
    "remote": lambda: model.remote.connect(None),
    "profile": model.profile,
    "memory_cap_bytes": lambda: setattr(model, "memory_cap_bytes", 50_000_000),
    "set_exits": lambda: model.exits.hold(()),
    "plan": lambda: model.plan,
}
for name, way in ways.items():
    child = os.fork()
    if child == 0:
        try:
            way()
            print(name, "answered", flush=True)
        except ForkedError:
            print(name, "ForkedError", flush=True)
        except BaseException as error:
            print(name, type(error).__name__, error, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print("parent", model(images).output.shape, flush=True)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_whatever_a_forked_child_calls_it_is_told_at_once(tiny_bundle, slow_state):
    command = [sys.executable, "-c", WAYS, str(tiny_bundle.folder), str(slow_state)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    *told, parent = done.stdout.splitlines()
    assert len(told) == 10
    assert [line for line in told if not line.endswith(" ForkedError")] == []
    assert parent == "parent (4, 3)"


class NotingCaps(PlanInUse):
    """Notes the memory cap at each exchange."""

    def exchange(self, new: Active, *, expected: Active | None = None) -> bool:
        caps.append(self.cap.cap_bytes)
        return super().exchange(new, expected=expected)


caps: list[int | None] = []


def test_a_higher_cap_comes_before_the_plan_that_needs_it_and_a_lower_one_after_it(elastic_heavy):
    plan = Plan(elastic_heavy.supernet.original)
    in_use = NotingCaps(Workspace(elastic_heavy, OnnxRuntime(threads=1, lean=True), 20_000_000))
    in_use.begin(plan)
    caps.clear()
    for cap_bytes in (40_000_000, 10_000_000, None, 20_000_000):
        in_use.exchange_cap(cap_bytes, plan)
        in_use.run_once(in_use.running().loaded)
    assert caps == [40_000_000, 40_000_000, None, None]


def test_a_retired_plan_is_replaced_by_what_runs_now_or_loaded_again(elastic_heavy):
    plan = Plan(elastic_heavy.supernet.original)
    in_use = PlanInUse(Workspace(elastic_heavy, OnnxRuntime(threads=1, lean=True), 20_000_000))
    in_use.begin(plan)
    first = in_use.running()
    in_use.exchange_cap(10_000_000, plan)
    second = in_use.running()
    assert in_use.instead_of(first) is second
    second.loaded.retire()
    third = in_use.instead_of(second)
    assert third is in_use.running()
    assert third.loaded is not second.loaded
    in_use.run_once(third.loaded)
