"""Several homes of one runtime, with threads of the processor as homes: they need nothing that is not everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import CompositionError, RuntimeFailedError, UsageError
from device_sdk.fragments.composition import compose
from device_sdk.machine.clusters import allowed_cores
from device_sdk.runtimes import OnnxRuntime, make_runtime
from device_sdk.runtimes.homes import HomesRuntime
from device_sdk.runtimes.port import StopSignal
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import ExitChoice

HOMES = (Home("cpu", 1), Home("cpu", 2))
SAMPLES = [np.random.default_rng(0).random((3, 3, 20, 20), dtype=np.float32)]


@pytest.fixture
def runtime():
    return make_runtime(threads=1, homes=HOMES)


def mixed(bundle, place=1):
    edges = bundle.supernet.original.edges
    return [edge.on("" if number < place else "cpu-2t") for number, edge in enumerate(edges)]


def test_blocks_at_several_homes_answer_as_at_one(bundle, runtime):
    alone = OnnxRuntime().load(bundle.stretch(bundle.supernet.original.edges)).run(SAMPLES)
    together = runtime.load(bundle.stretch(mixed(bundle))).run(SAMPLES)
    np.testing.assert_allclose(alone[0], together[0], atol=1e-5)


def test_a_stretch_has_a_part_for_each_run_of_equal_home(bundle):
    edges = mixed(bundle, 2)
    parts = bundle.stretch(edges).parts
    assert [part.home for part in parts] == ["", "cpu-2t"]
    assert bundle.stretch(edges[:2]).parts == ()
    assert parts[0].inputs == bundle.stretch(edges[:2]).inputs
    assert bundle.stretch(edges).outputs == parts[-1].outputs


def test_the_branch_of_an_exit_runs_with_the_last_blocks(bundle, runtime):
    exit_ = bundle.supernet.exits[0]
    edges = [edge for edge, block in bundle.supernet.walk(bundle.supernet.original) if block.end <= exit_.position]
    homed = [edge.on("cpu-2t" if number else "") for number, edge in enumerate(edges)]
    choice = ExitChoice(exit_.id, 0.5)
    plain, moved = (
        loader.load(bundle.stretch(some, choice)).run(SAMPLES)
        for loader, some in ((OnnxRuntime(), edges), (runtime, homed))
    )
    assert len(plain) == len(moved)
    for one, other in zip(plain, moved, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_home_that_is_not_open_is_refused_with_those_that_are(bundle, runtime):
    edges = [edge.on("cpu-8t") for edge in bundle.supernet.original.edges]
    with pytest.raises(RuntimeFailedError, match="cpu-8t, which is not open here") as caught:
        runtime.load(bundle.stretch(edges))
    assert "cpu-1t, cpu-2t" in caught.value.hint


def test_a_runtime_of_one_home_refuses_a_plan_of_several(bundle):
    with pytest.raises(RuntimeFailedError, match="at one home alone"):
        OnnxRuntime().load(bundle.stretch(mixed(bundle)))
    with pytest.raises(CompositionError, match="several homes"):
        compose(bundle.stretch(mixed(bundle)))


def test_the_identity_names_the_homes(runtime):
    assert runtime.identity.endswith("[cpu-1t,cpu-2t]")
    assert make_runtime(threads=1, homes=HOMES, lean=True).identity != runtime.identity
    assert runtime.homes == ("cpu-1t", "cpu-2t")


def test_a_run_that_is_stopped_ends_between_homes(bundle, runtime):
    loaded, stop = runtime.load(bundle.stretch(mixed(bundle))), StopSignal()
    assert loaded.run_until(SAMPLES, stop) is not None
    stop.set()
    assert loaded.run_until(SAMPLES, stop) is None


def test_a_stretch_that_was_closed_runs_no_more(bundle, runtime):
    loaded = runtime.load(bundle.stretch(mixed(bundle)))
    loaded.close()
    with pytest.raises(RuntimeFailedError, match="closed"):
        loaded.run(SAMPLES)


def test_homes_take_turns_together(runtime):
    turns = runtime.taking_turns()
    assert isinstance(turns, HomesRuntime)
    assert turns.identity == runtime.identity
    assert turns.concurrency >= 1


def test_another_runtime_has_no_homes():
    with pytest.raises(UsageError, match="no homes"):
        make_runtime("executorch", threads=1, homes=HOMES)


def test_settings_make_the_same_homes_elsewhere(runtime):
    settings = RuntimeSettings(homes=HOMES)
    assert settings.make().identity == runtime.identity
    assert settings.first == RuntimeSettings(threads=1, provider="CPUExecutionProvider")
    assert settings.on_processor
    assert not RuntimeSettings(homes=(*HOMES, Home("openvino"))).on_processor
    assert settings.accepts.providers == {"CPUExecutionProvider"}


class UnusedStretch:
    """A stretch of which the provider runs no node."""

    def __init__(self):
        self.nodes_by_provider, self.assigned, self.closed = {"CPUExecutionProvider": 4}, 0, False

    def close(self):
        self.closed = True


class Idle:
    """A runtime whose provider runs nothing."""

    identity, concurrency = "idle", 1

    def __init__(self):
        self.loaded = UnusedStretch()

    def load(self, stretch):
        return self.loaded


def test_a_provider_that_runs_nothing_is_an_error_not_a_slow_answer(bundle):
    idle = Idle()
    runtime = HomesRuntime({Home(): OnnxRuntime(), Home("openvino"): idle}, "onnxruntime")
    with pytest.raises(RuntimeFailedError, match="runs no node of block"):
        runtime.load(bundle.stretch([edge.on("openvino-1t") for edge in bundle.supernet.original.edges]))
    assert idle.loaded.closed


def test_a_home_on_some_cores_gives_the_same_answers_and_moves_no_caller_for_good(bundle):
    if not allowed_cores():
        pytest.skip("this system does not say which cores may be used")
    before = allowed_cores()
    stretch = bundle.stretch(bundle.supernet.original.edges)
    pinned = OnnxRuntime(threads=2, cores=before[:1]).load(stretch)
    np.testing.assert_allclose(pinned.run(SAMPLES)[0], OnnxRuntime().load(stretch).run(SAMPLES)[0], atol=1e-5)
    assert allowed_cores() == before
    pinned.close()
