"""Plans that ask a server from an exit, before the end of their path: over HTTP to a server that may fail."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import FALLBACK, SERVER, SUBNET
from device_sdk.supernet.plan import Ask, ExitChoice, MaxConfidence, Plan, RemoteRef

EXIT = "exit x2-pooled"
TIMEOUT_S = 0.4


class Device:
    """The tiny bundle with a plan whose exit answers a third of the images and asks about another."""

    def __init__(self, model: AdaptiveModel, images: np.ndarray, url: str) -> None:
        subnet = model.bundle.supernet.original
        model.use(Plan(subnet))
        self.model, self.images, self.at_end = model, images, model(images).output
        end_sure = model(images).confidence
        model.use(Plan(subnet, (ExitChoice("x2-pooled", 0.0),)))
        sure = model(images).confidence
        low, high = np.quantile(sure, [1 / 3, 2 / 3])
        self.early, self.asks = sure >= high, sure < low
        on = ~(self.early | self.asks)
        end_limit = float(np.median(end_sure[on]))
        self.hard_at_end = end_sure < end_limit
        self.plan = Plan(
            subnet,
            (ExitChoice("x2-pooled", float(high), ask_below=float(low)),),
            hard=Ask(MaxConfidence(end_limit), RemoteRef("tiny:images")),
        )
        model.use(self.plan)
        self.url = url

    def connect(self, **changes) -> None:
        chosen = {"server": self.url, "model": "tiny:images", "privacy": "inputs", "timeout_s": TIMEOUT_S} | changes
        self.model.remote.connect(RemoteModel(**chosen))

    @property
    def along_the_path(self) -> list[str]:
        """The sources of all answers when no sample asks from the exit, and no server answers at the end."""
        here = np.where(self.hard_at_end, FALLBACK, SUBNET)
        return np.where(self.early, EXIT, here).tolist()


@pytest.fixture
def device(tiny_bundle, slow_state, faulty_server):
    with AdaptiveModel.open(tiny_bundle.folder, state_folder=slow_state) as model:
        yield Device(model, tiny_bundle.images, faulty_server.url)


def test_the_unsure_of_all_exits_and_of_the_end_are_sent_in_one_request(device, faulty_server):
    device.connect(timeout_s=10.0)
    answer = device.model(device.images)
    sent = device.asks | ~device.early & device.hard_at_end
    assert device.asks.any()
    assert (sent & ~device.asks).any()
    assert [source == SERVER for source in answer.source] == sent.tolist()
    assert [source == EXIT for source in answer.source] == device.early.tolist()
    np.testing.assert_allclose(answer.output[sent], device.images.mean(axis=(1, 2))[sent, ::-1], rtol=1e-5)
    assert sum(one.startswith("POST") for one in faulty_server.asked()) == 1


def test_one_image_alone_is_sent_from_the_exit(device):
    device.connect(timeout_s=10.0)
    for number in (int(np.flatnonzero(device.asks)[0]), int(np.flatnonzero(device.early)[0])):
        expected = SERVER if device.asks[number] else EXIT
        assert device.model(device.images[number]).source == (expected,)


@pytest.mark.parametrize("fault", ["hang_up", "garbage", "busy", "wrong_shape"])
def test_without_an_answer_the_rest_of_the_path_runs_and_says_so(device, faulty_server, fault):
    device.connect(timeout_s=10.0)
    faulty_server.fail(fault)
    answer = device.model(device.images)
    expected = np.where(device.asks, FALLBACK, device.along_the_path).tolist()
    assert list(answer.source) == expected
    on = ~device.early
    np.testing.assert_allclose(answer.output[on], device.at_end[on], atol=1e-5)


def test_a_slow_server_costs_one_time_out_and_the_rest_of_the_path(device, faulty_server):
    device.connect()
    device.model(device.images)  # metadata, sessions
    faulty_server.fail("slow")
    answer = device.model(device.images)  # the server holds its reply until it is told otherwise
    assert {answer.source[number] for number in np.flatnonzero(device.asks)} == {FALLBACK}


def test_a_server_that_is_left_alone_is_not_asked_from_exits(device, faulty_server):
    device.connect()
    faulty_server.fail("hang_up")
    for _ in range(3):
        device.model(device.images)
    faulty_server.fail("hang_up")  # forget what was asked
    assert list(device.model(device.images).source) == device.along_the_path
    assert not faulty_server.asked()


@pytest.mark.parametrize("changes", [None, {"privacy": "activations"}, {"model": "bright:images"}])
def test_without_a_server_that_may_be_asked_samples_go_on_along_the_path(device, faulty_server, changes):
    if changes is not None:
        device.connect(**changes)
    answer = device.model(device.images)
    assert list(answer.source) == device.along_the_path
    on = ~device.early
    np.testing.assert_allclose(answer.output[on], device.at_end[on], atol=1e-5)
    assert not faulty_server.asked()


def test_deadlines_and_interruptions_ask_nobody(device, faulty_server):
    device.connect()
    answer = device.model(device.images, deadline_ms=10_000.0)
    assert SERVER not in answer.source
    assert not faulty_server.asked()
