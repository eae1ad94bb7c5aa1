"""Splits whose drop is measured by the task's own score: a segmenter's mIoU, with maps or with its own answers."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import InputError
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.signing import signatures
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.goal import Goal
from tests.device_sdk.tiny_bundle import SIDE
from tests.device_sdk.tiny_segmenter import write_tiny_segmenter

GOAL = Goal(optimise="latency_ms", max_drop=0.02)
SLOW = AdaptationSettings(device_factor=5000.0)


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segmenter")
    (folder / "key").write_bytes(signatures.new_key_pair()[0])
    write_tiny_segmenter(folder / "bundle", folder / "key")
    with AdaptiveModel.open(folder / "bundle", state_folder=folder / "state") as model:
        yield model


def estimated(model, images, maps):
    found = model.adapt(images, GOAL, {"split"}, maps, take=False, settings=SLOW, uplink=Uplink(0.5))
    return found.split


def test_a_segmenter_loses_mean_iou(segmenter, tiny_bundle):
    images = tiny_bundle.images[:12]
    maps = segmenter(images).output.argmax(axis=1)
    found, stand_in = estimated(segmenter, images, maps), estimated(segmenter, images, None)
    assert found.best.tail  # the device alone is too slow
    assert 0 <= found.drop_of(found.best) <= 0.02
    assert (found.best.position, found.best.bits) == (stand_in.best.position, stand_in.best.bits)
    coarse = max(drop for _, drop in found.drops)
    assert coarse > 0.02  # fewer bits were tried first


@pytest.mark.parametrize("maps", [np.zeros(12, np.int64), np.full((12, SIDE, SIDE), 7), np.zeros((3, SIDE, SIDE), int)])
def test_maps_that_do_not_fit_are_refused(segmenter, tiny_bundle, maps):
    with pytest.raises(InputError):
        estimated(segmenter, tiny_bundle.images[:12], maps)
