"""A split decision that sends the input as JPEG, to a real server process."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.measured_splits.packet_coding import as_received
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.signing.signatures import new_key_pair
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.goal import Goal
from pathweave.server_process import running_server
from tests.device_sdk.tiny_bundle import SIDE, TinyBundle, draw_images, write_tiny_bundle


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    private, public = folder / "key", folder / "key.pub"
    for path, data in zip((private, public), new_key_pair(), strict=True):
        path.write_bytes(data)
    write_tiny_bundle(folder / "tiny", private)
    return TinyBundle(folder / "tiny", private, public, *draw_images(60, seed=2))


@pytest.fixture(scope="module")
def server(tiny, tmp_path_factory):
    with running_server(tiny.folder, data=tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture
def model(tiny, tmp_path):
    with AdaptiveModel.open(tiny.folder, state_folder=tmp_path) as model:
        yield model


def remote(model, server, privacy):
    name = f"{model.bundle.manifest.name}:tail"
    return RemoteModel(server=server, model=name, privacy=privacy, timeout_s=10.0)


def split(model, tails, images, goal, labels):
    model.remote.connect(tails)
    return model.adapt(images, goal, {"split"}, labels, uplink=Uplink(0.5)).split


def confused_by_few_bits(model):
    """Images of one grainy colour that four bits per value turn into another class, and the class that each has.

    Grain, which is lost as JPEG, leaves the lossless stage of packets nothing to save.
    """
    random = np.random.default_rng(0)
    shades = random.integers(40, 216, (1000, 1, 1, 3))
    images = (shades + random.integers(-4, 5, (1000, SIDE, SIDE, 3))).astype(np.uint8)
    tensors = model.prepare(images)
    labels, coarse = (model.infer(one).output.argmax(axis=1) for one in (tensors, as_received(tensors, 4)))
    chosen = np.flatnonzero(labels != coarse)
    assert len(chosen) >= 5
    return images[chosen].copy(), labels[chosen]


def test_the_server_answers_jpegs_where_they_are_the_cheaper_transport(model, server):
    images, labels = confused_by_few_bits(model)
    goal = Goal(optimise="latency_ms", max_drop=0.05, memory_mb=1e-6)
    decision = split(model, remote(model, server, "inputs"), images, goal, labels)
    [jpeg] = [cost for cost in decision.costs if cost.sends == "jpeg"]
    raw = [cost for cost in decision.costs if cost.sends == "activations" and not cost.position]
    allowed = [cost for cost in (jpeg, *raw) if (drop := decision.drop_of(cost)) is not None and drop <= 0.05]
    assert decision.best == min(allowed, key=lambda cost: cost.latency_ms)
    assert decision.best == jpeg, [(one.bits, one.bytes_sent, decision.drop_of(one)) for one in allowed]
    assert model.plan.split.is_whole
    answer = model(images)
    assert set(answer.source) == {SERVER}
    assert (answer.output.argmax(axis=1) == labels).mean() == pytest.approx(1 - decision.drop_of(jpeg))


def test_a_jpeg_that_may_not_be_sent_does_not_compete(model, server, tiny):
    activations = remote(model, server, "activations")
    decision = split(model, activations, tiny.images, Goal(optimise="latency_ms"), tiny.labels)
    assert all(cost.sends == "activations" for cost in decision.costs)
    with pytest.raises(UsageError, match="its input may not be sent"):
        split(model, activations, tiny.images, Goal(optimise="latency_ms", memory_mb=1e-6), tiny.labels)
