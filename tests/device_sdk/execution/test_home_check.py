"""The check of a home: in this process with homes of the processor, in a child with plug-ins that misbehave."""

from __future__ import annotations

import sys

import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import RuntimeFailedError
from device_sdk.execution.guarded_self_test import SelfTestLimits, run_guarded_home_check
from device_sdk.execution.home_check import NO_REASON, BlockAtHome, HomeReport, check_home
from device_sdk.execution.workspace import Workspace
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.supernet.home import Home
from tests.device_sdk.plugins import CRASHES, HANGS, NO_LIBRARY, install_plugin

OPENVINO = Home("openvino", 1)
QUICK = SelfTestLimits(start_s=60.0, step_s=2.0, total_s=60.0)


class Refusing:
    """A runtime whose provider refuses sessions of one block, runs nothing of another, and a part of a third."""

    identity, concurrency = "refusing", 1

    def __init__(self, bundle):
        self._real, self._blocks = OnnxRuntime(), [block.id for block in bundle.supernet.blocks]

    def load(self, stretch):
        name = stretch.owners[0].split()[1].split("@")[0]
        if name == self._blocks[0]:
            raise RuntimeFailedError("the driver has no such kernel")
        return Counted(self._real.load(stretch), assigned=0 if name == self._blocks[1] else 2)


class Counted:
    """A stretch that says which nodes its provider runs; ``off``: added to its answers."""

    def __init__(self, stretch, *, assigned=3, off=0.0):
        self._stretch, self.assigned, self._off = stretch, assigned, off
        self.nodes_by_provider = {"OpenVINOExecutionProvider": assigned, "CPUExecutionProvider": 3 - assigned}
        self.refused = {"Conv": 3 - assigned} if assigned < 3 else {}

    def run(self, inputs):
        return [output + self._off for output in self._stretch.run(inputs)]

    def close(self):
        self._stretch.close()


class Wrong:
    """A runtime that gives other answers."""

    identity, concurrency = "wrong", 1

    def __init__(self, off):
        self._real, self._off = OnnxRuntime(), off

    def load(self, stretch):
        return Counted(self._real.load(stretch), off=self._off)


def check(bundle, runtime):
    return check_home(Workspace(bundle, runtime), OPENVINO, SilentProgress())


def test_every_held_block_runs_once(bundle, runtime):
    report = check(bundle, runtime)
    assert report.works
    assert len(report.blocks) == sum(not edge.input_size for edge in bundle.supernet.edges)
    assert not report.refused_blocks


def test_what_a_provider_refuses_is_said_by_block_and_operator(bundle):
    report = check(bundle, Refusing(bundle))
    first, second, third, *_ = (block.id for block in bundle.supernet.blocks)
    failures = {one.block: one.failure for one in report.blocks if one.failure}
    assert failures[first] == "the driver has no such kernel"
    assert failures[second] == "the provider refuses all of it: Conv ×3"
    assert third not in failures
    assert report.works
    operators = {operator: reason for operator, _, reason in report.refusals()}
    assert operators == {"Conv": NO_REASON}


@pytest.mark.parametrize(("off", "works"), [(1e-5, True), (10.0, False)])
def test_other_answers_than_the_golden_ones_fail_beyond_the_providers_tolerance(bundle, off, works):
    report = check(bundle, Wrong(off))
    assert report.works == works
    if not works:
        assert "answers differ" in report.why_not()


def test_operators_of_all_blocks_are_counted_together():
    block = BlockAtHome("o0", 3, 2, {"Resize": 1})
    assert HomeReport("qnn-1t", "runtime", (block, block)).refusals() == [("Resize", 2, NO_REASON)]


def guarded(bundle, tmp_path, monkeypatch, source):
    install_plugin(tmp_path, source)
    monkeypatch.syspath_prepend(str(tmp_path))
    return run_guarded_home_check(bundle, RuntimeSettings(), OPENVINO, limits=QUICK)


def test_a_plugin_that_crashes_its_process_fails_alone(bundle, tmp_path, monkeypatch):
    report = guarded(bundle, tmp_path, monkeypatch, CRASHES)
    assert not report.works
    assert report.failure == "it crashed its process with signal 9"


def test_a_plugin_that_never_returns_is_given_up(bundle, tmp_path, monkeypatch):
    assert "did not go on" in guarded(bundle, tmp_path, monkeypatch, HANGS).failure


def test_a_plugin_without_its_library_is_refused_in_one_line(bundle, tmp_path, monkeypatch):
    failure = guarded(bundle, tmp_path, monkeypatch, NO_LIBRARY).failure
    assert "refused the plug-in" in failure
    assert "\n" not in failure


def test_without_an_interpreter_no_home_is_checked_in_this_process(bundle):
    report = run_guarded_home_check(bundle, RuntimeSettings(), OPENVINO, interpreter=f"{sys.prefix}/no-such-python")
    assert not report.works
    assert "cannot be started" in report.failure


def test_a_real_provider_passes_its_check_in_a_child(tiny_bundle, openvino):
    report = run_guarded_home_check(Bundle.open(tiny_bundle.folder), RuntimeSettings(), OPENVINO)
    assert report.works, report.why_not()
    assert all(one.assigned == one.nodes > 0 for one in report.blocks)
    assert "OpenVINOExecutionProvider" in report.runtime
