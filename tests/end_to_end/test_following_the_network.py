"""A plan that follows the network: a real server behind a link that a test makes slow and quick again."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.logs.adaptation_log import PlanChosen, read_log
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER, SUBNET
from device_sdk.supernet.cost import Power
from device_sdk.supernet.goal import Goal
from pathweave.server_process import ServerProcess, running_server
from pathweave.throttled_proxy import slow_uplink

pytestmark = pytest.mark.alone

BUNDLE = Path(__file__).parents[1] / "contract" / "bundle"
FAST_MBPS, SLOW_MBPS = 50.0, 0.02
# computing costs so much more than sending that the plan sends as soon as the link keeps the latency
POWER = Power(active_w=1000.0, radio_w=0.001, waiting_w=0.001)
GOAL = Goal(optimise="energy_mj", latency_ms=150.0)
KINDS = {"exits", "ask"}


def use_until(model, images, happened, *, limit_s: float) -> float:
    began = time.monotonic()
    while not happened():
        assert time.monotonic() - began < limit_s, model.plan
        model(images[0])
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def images():
    """Images for the contract's bundle; without labels the server's answers stand in."""
    shape = Bundle.open(BUNDLE).manifest.cut_points[0].tensors[0].shape
    return np.random.default_rng(0).integers(0, 256, (40, *shape[1:], shape[0]), dtype=np.uint8)


@pytest.mark.slow
def test_the_plan_leaves_a_slow_link_within_seconds_and_returns(images, tmp_path):
    name = Bundle.open(BUNDLE).manifest.name
    with (
        running_server(BUNDLE, data=tmp_path / "server") as url,
        slow_uplink(url, mbps=FAST_MBPS) as (address, proxy),
        AdaptiveModel.open(BUNDLE, state_folder=tmp_path / "state") as model,
    ):
        model.remote.connect(RemoteModel(server=address, model=f"{name}:images", privacy="inputs", timeout_s=5.0))
        found = model.adapt(images, GOAL, KINDS, power=POWER)
        model.live.start("network")
        assert found.plan.kind == "remote"
        assert set(model(images[0]).source) == {SERVER}
        proxy.limit(SLOW_MBPS)
        use_until(model, images, lambda: model.plan.split is None, limit_s=60)
        proxy.limit(FAST_MBPS)
        use_until(model, images, lambda: model.plan.split is not None, limit_s=60)
        model.use(found.plan)  # ends it
        proxy.limit(SLOW_MBPS)
        time.sleep(3)
        assert model.plan == found.plan
        events = [line.event for line in read_log(model.log.path)]
    notes = [event.notes for event in events if isinstance(event, PlanChosen)]
    assert len(notes) >= 3
    assert notes[1][0].startswith("the network changed: ")


@pytest.mark.slow
def test_the_network_is_followed_after_the_model_was_opened_again(images, tmp_path):
    name = Bundle.open(BUNDLE).manifest.name
    with running_server(BUNDLE, data=tmp_path / "server") as url, slow_uplink(url, mbps=FAST_MBPS) as (address, proxy):
        remote = RemoteModel(server=address, model=f"{name}:images", privacy="inputs", timeout_s=5.0)
        with AdaptiveModel.open(BUNDLE, state_folder=tmp_path / "state") as model:
            with pytest.raises(UsageError, match="no plans for other networks"):
                model.live.start("network")
            model.remote.connect(remote)
            model.adapt(images, GOAL, KINDS, power=POWER)
            model.live.start("network")
        with AdaptiveModel.open(BUNDLE, state_folder=tmp_path / "state") as model:
            with pytest.raises(UsageError, match="no server is connected"):
                model.live.start("network")
            model.remote.connect(remote)
            model.live.start("network")
            assert set(model(images[0]).source) == {SERVER}
            proxy.limit(SLOW_MBPS)
            use_until(model, images, lambda: model.plan.split is None, limit_s=60)
            proxy.limit(FAST_MBPS)
            use_until(model, images, lambda: model.plan.split is not None, limit_s=60)


@pytest.mark.slow
def test_a_server_that_goes_away_is_planned_without_and_with_again_when_it_is_back(images, tmp_path):
    name = Bundle.open(BUNDLE).manifest.name
    server = ServerProcess(BUNDLE, data=tmp_path / "server")
    try:
        with (
            slow_uplink(server.url, mbps=FAST_MBPS) as (address, proxy),
            AdaptiveModel.open(BUNDLE, state_folder=tmp_path / "state") as model,
        ):
            model.remote.connect(RemoteModel(server=address, model=f"{name}:images", privacy="inputs", timeout_s=1.0))
            model.adapt(images, GOAL, KINDS, power=POWER)
            model.live.start("network")
            server.kill()
            use_until(model, images, lambda: model.plan.split is None, limit_s=60)
            assert set(model(images[0]).source) == {SUBNET}
            server = ServerProcess(BUNDLE, data=tmp_path / "again")
            proxy.forward_to(server.url)
            use_until(model, images, lambda: model.plan.split is not None, limit_s=60)
            use_until(model, images, lambda: set(model(images[0]).source) == {SERVER}, limit_s=60)
    finally:
        server.stop()
