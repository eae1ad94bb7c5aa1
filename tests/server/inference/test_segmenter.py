"""A segmenter between a device and a real server: maps of logits instead of one logit per class."""

from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import UsageError
from device_sdk.offload.agreement import agree
from device_sdk.offload.client import ModelMetadata, TensorMetadata
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER, SUBNET
from device_sdk.signing import signatures
from device_sdk.supernet.plan import Ask, MaxConfidence, Plan, RemoteRef, Split
from tests.device_sdk.tiny_bundle import CLASSES, SIDE
from tests.device_sdk.tiny_segmenter import write_tiny_segmenter


@pytest.fixture
def folder(tmp_path):
    key = tmp_path / "key"
    key.write_bytes(signatures.new_key_pair()[0])
    write_tiny_segmenter(tmp_path / "bundles" / "segmenter", key)
    return tmp_path / "bundles" / "segmenter"


def tail_of(bundle, position):
    supernet = bundle.supernet
    return tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= position)


def test_a_segmenter_is_split_and_asked_as_a_classifier_is(folder, tiny, serve, tmp_path):
    url = serve(folder.parent).url
    images = tiny.images[:3]
    with AdaptiveModel.open(folder, state_folder=tmp_path / "state") as model:
        here = model(images)
        assert here.output.shape == (3, len(CLASSES), SIDE, SIDE)
        assert here.source == (SUBNET,) * 3
        original, digest = model.bundle.supernet.original, model.bundle.digest
        for name, split in (
            ("segmenter:tail", Split(2, (8,), tail_of(model.bundle, 2), RemoteRef("segmenter:tail", digest))),
            ("segmenter:images", Split(0, (), (), RemoteRef("segmenter:images", digest))),
        ):
            model.remote.connect(RemoteModel(server=url, model=name, privacy="inputs", timeout_s=20.0))
            model.use(Plan(original, split=split))
            there = model(images)
            assert there.source == (SERVER,) * 3
            assert np.abs(there.output - here.output).max() < 0.05 * np.abs(here.output).max()


def test_a_segmenter_asks_no_server_for_hard_samples(folder, tmp_path):
    with AdaptiveModel.open(folder, state_folder=tmp_path / "state") as model:
        plan = Plan(model.bundle.supernet.original, hard=Ask(MaxConfidence(0.5), RemoteRef("segmenter:images")))
        with pytest.raises(UsageError, match="model is for segmentation"):
            model.use(plan)


def test_a_model_for_another_task_is_refused_with_both_tasks():
    metadata = ModelMetadata(
        (TensorMetadata("image", "UINT8", (-1, SIDE, SIDE, 3)),),
        (TensorMetadata("logits", "FP32", (-1, len(CLASSES))),),
        ("1",),
        CLASSES,
        None,
        True,
        task="depth",
    )
    with pytest.raises(UsageError, match="for depth, the device's model for classification"):
        agree(metadata, class_names=CLASSES, input_shape=(3, SIDE, SIDE))
