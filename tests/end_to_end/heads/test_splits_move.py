"""Splits that follow bandwidth and server load, of devices that hold everything and of those that hold a head."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import TransferError
from device_sdk.offload.link_estimate import PlannedTail, ServerWait
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.measured_splits.decision import SplitDecision
from device_sdk.policies.measured_splits.fastest import SplitLimits
from device_sdk.policies.planning.front import split_front
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.session.heads import plan_head
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Fallback, Plan, RemoteRef, Split
from pathweave.server_process import ServerProcess
from pathweave.throttled_proxy import ThrottledProxy, slow_uplink
from tests.device_sdk.heavy_bundle import write_heavy_bundle

pytestmark = pytest.mark.alone

FAST_MBPS, SLOW_MBPS = 100.0, 0.5
ALONE_MS = 60.0  # of the planned device without the server: sending early is worth it on a fast uplink
PATIENCE_S = 60.0
SIDES = (64, 64, 32, 16, 16)  # the first cut points are the largest to send
IMAGE = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


class Scene:
    """A server behind a link, and the address of a bundle there."""

    def __init__(self, server: ServerProcess, address: str, proxy: ThrottledProxy, folder: Path) -> None:
        self.server, self.proxy, self.folder = server, proxy, folder
        self.bundle = f"{address}/v1/bundles/heavy"
        self.tails = RemoteModel(server=address, model="heavy:tail", privacy="activations", timeout_s=5.0)


@pytest.fixture
def scene(tmp_path) -> Iterator[Scene]:
    pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")
    write_heavy_bundle(tmp_path / "heavy", blocks=4, channels=32, colours=3, exits=[2], sides=SIDES)
    server = ServerProcess(tmp_path / "heavy", data=tmp_path / "data")
    try:
        with slow_uplink(server.url, mbps=FAST_MBPS) as (address, proxy):
            yield Scene(server, address, proxy, tmp_path / "heavy")
    finally:
        server.stop()


def planned(scene: Scene, state: Path, *, fallback: Fallback, factor: float) -> SplitDecision:
    """The splits of a device ``factor`` times slower than this one."""
    return plan_head(
        scene.bundle,
        trust=None,
        server=scene.tails,
        device_factor=factor,
        uplink_mbps=FAST_MBPS,
        fallback=fallback,
        state_folder=state,
    )


def follow(scene: Scene, model: AdaptiveModel, state: Path, *, fallback: Fallback = "subnet") -> None:
    """Follow the network with the splits, as far as they are possible here, of a device that takes ``ALONE_MS``."""
    here = planned(scene, state, fallback=fallback, factor=1.0)
    factor = ALONE_MS / here.costs[-1].latency_ms  # the last one sends nothing
    decision = planned(scene, state, fallback=fallback, factor=factor)
    held = tuple(cost for cost in decision.costs if cost.position <= model.bundle.last_position)
    model._state.save_front(split_front(model.bundle, replace(decision, costs=held), SplitLimits()))
    model.remote.connect(scene.tails)
    model.use(decision.plan)
    model.live.start("network")


@contextlib.contextmanager
def often_stopped(server: ServerProcess) -> Iterator[None]:
    """The server's process runs for a hundredth of a second twice a second, as if others had its processor."""
    process, ended = server._process, threading.Event()

    def stop_and_go() -> None:
        while not ended.is_set():
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.45)
            process.send_signal(signal.SIGCONT)
            ended.wait(0.01)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def position(model: AdaptiveModel) -> int | None:
    return None if model.plan.split is None else model.plan.split.position


def use_until(model: AdaptiveModel, happened: Callable[[], bool]) -> None:
    """Answers images until it has happened."""
    end = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < end, position(model)
        model(IMAGE)
        time.sleep(0.02)


@pytest.mark.slow
def test_a_split_becomes_the_device_alone_on_a_slow_link_and_comes_back(scene, tmp_path):
    with AdaptiveModel.open(scene.bundle, trust=None, state_folder=tmp_path / "state") as model:
        follow(scene, model, tmp_path / "state")
        assert position(model) == 1
        assert model(IMAGE).source == (SERVER,)
        scene.proxy.limit(SLOW_MBPS)
        use_until(model, lambda: position(model) is None)
        scene.proxy.limit(FAST_MBPS)
        use_until(model, lambda: position(model) == 1)
        assert model(IMAGE).source == (SERVER,)


@pytest.mark.slow
def test_a_head_moves_between_the_cut_points_that_it_holds(scene, tmp_path):
    state = tmp_path / "state"
    subnet = Bundle.open(scene.folder).supernet.original
    split = Split(3, (8,), subnet.edges[3:], RemoteRef("heavy:tail"), "abstain")
    with AdaptiveModel.open(scene.bundle, trust=None, plan=Plan(subnet, split=split), state_folder=state) as model:
        follow(scene, model, state, fallback="abstain")
        assert position(model) == 1
        scene.proxy.limit(SLOW_MBPS)
        use_until(model, lambda: position(model) == 3)
        scene.proxy.limit(FAST_MBPS)
        use_until(model, lambda: position(model) == 1)
        assert model(IMAGE).source == (SERVER,)
        assert model.bundle.last_position == 3


@pytest.mark.slow
def test_a_busy_server_is_left_and_asked_again_when_it_is_not(scene, tmp_path):
    with AdaptiveModel.open(scene.bundle, trust=None, state_folder=tmp_path / "state") as model:
        follow(scene, model, tmp_path / "state")
        with often_stopped(scene.server):
            use_until(model, lambda: position(model) is None)
            time.sleep(2.0)
            assert position(model) is None  # probes see that it is still busy
        use_until(model, lambda: position(model) == 1)


@pytest.mark.slow
def test_a_server_that_goes_away_is_planned_without_and_with_again(scene, tmp_path):
    with AdaptiveModel.open(scene.bundle, trust=None, state_folder=tmp_path / "state") as model:
        follow(scene, model, tmp_path / "state")
        scene.server.kill()
        use_until(model, lambda: position(model) is None)
        again = ServerProcess(scene.folder, data=tmp_path / "again")
        try:
            scene.proxy.forward_to(again.url)
            use_until(model, lambda: position(model) == 1)
            use_until(model, lambda: model(IMAGE).source == (SERVER,))
        finally:
            again.stop()


@pytest.mark.slow
def test_a_head_splits_by_its_own_profile_and_follows_after_it_was_opened_again(scene, tmp_path):
    state = tmp_path / "state"
    subnet = Bundle.open(scene.folder).supernet.original
    split = Split(3, (8,), subnet.edges[3:], RemoteRef("heavy:tail"), "abstain")
    with AdaptiveModel.open(scene.bundle, trust=None, plan=Plan(subnet, split=split), state_folder=state) as model:
        model.remote.connect(scene.tails)
        decision = model.adapt(None, Goal(optimise="latency_ms", memory_mb=20.0), {"split"}).split
        model.live.start("network")
        assert decision.is_head_only
        assert {cost.position for cost in decision.costs} == {1, 2, 3}
        assert {one.edge.block for one in model.profile().edges} == {"o0", "o1", "o2"}
        assert model.plan.split.fallback == "abstain"  # no exit is held
    with AdaptiveModel.open(scene.bundle, trust=None, state_folder=state) as model:
        assert model.plan == decision.plan
        model.remote.connect(scene.tails)
        model.live.start("network")
        assert model(IMAGE).source == (SERVER,)


def test_a_probe_measures_how_long_a_tail_waits_at_the_server(scene):
    bundle = Bundle.open(scene.folder)
    cuts = bundle.supernet.cut_points
    tail = PlannedTail(3, bundle.supernet.original.edges[3:], (8,), planned_ms=0.0)
    facts = {"cut": cuts[3], "bundle": bundle.digest, "output_shape": cuts[-1].tensors[0].shape}
    with contextlib.closing(ServerWait(scene.tails, tail, **facts)) as wait:
        wait.seconds(round_trip_s=0.0, per_byte_s=0.0)  # loads the tail there
        took_s = wait.seconds(round_trip_s=0.0, per_byte_s=0.0)
        assert took_s > 0
        with often_stopped(scene.server):
            assert max(wait.seconds(round_trip_s=0.0, per_byte_s=0.0) for _ in range(4)) > took_s + 0.1
        with contextlib.closing(ServerWait(scene.tails, replace(tail, planned_ms=5000.0), **facts)) as planned:
            assert planned.seconds(round_trip_s=0.0, per_byte_s=0.0) == 0.0
        scene.server.kill()
        with pytest.raises(TransferError):
            wait.seconds(round_trip_s=0.0, per_byte_s=0.0)
