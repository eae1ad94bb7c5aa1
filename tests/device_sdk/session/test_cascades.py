"""Plans with a second path, as an application sees them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Cascade, MaxConfidence, Plan

REFERENCE = Path(__file__).parents[2] / "contract" / "bundle"
ALWAYS = MaxConfidence(UNREACHABLE_CONFIDENCE)
COUNT = 5


@pytest.fixture
def model(tmp_path) -> Iterator[AdaptiveModel]:
    with AdaptiveModel.open(REFERENCE, state_folder=tmp_path) as model:
        yield model


@pytest.fixture
def tensor(model) -> np.ndarray:
    """Prepared at the model's own size: its preprocessing does not resize."""
    _, height, width = model.bundle.manifest.cut_points[0].tensors[0].shape
    images = np.random.default_rng(0).integers(0, 256, (COUNT, height, width, 3), dtype=np.uint8)
    return model.prepare(images)


def answer(model, plan, tensor):
    model.use(plan)
    return model.infer(tensor)


def test_the_second_path_takes_the_samples_anew_at_its_own_size(model, tensor):
    original = model.bundle.supernet.original
    small = original.at(model.bundle.supernet.sizes[1])
    whole = answer(model, Plan(original), tensor)
    found = answer(model, Plan(small, hard=Cascade(ALWAYS, original)), tensor)
    np.testing.assert_allclose(found.output, whole.output, atol=1e-5)
    assert found.source == ("cascade",) * COUNT


def test_samples_prepared_for_the_first_path_are_resized_for_the_second(model, tensor):
    original = model.bundle.supernet.original
    size = model.bundle.supernet.sizes[1]
    prepared = np.ascontiguousarray(tensor[..., : size[0], : size[1]])
    model.use(Plan(original.at(size), hard=Cascade(ALWAYS, original)))
    for given in (prepared, prepared[0]):
        assert set(model.infer(given).source) == {"cascade"}


def test_some_samples_of_a_batch_are_taken_anew(model, tensor):
    original = model.bundle.supernet.original
    small = original.at(model.bundle.supernet.sizes[1])
    first, second = answer(model, Plan(small), tensor), answer(model, Plan(original), tensor)
    limit = float(np.sort(first.confidence)[2])
    found = answer(model, Plan(small, hard=Cascade(MaxConfidence(limit), original)), tensor)
    hard = first.confidence < limit
    assert 0 < hard.sum() < COUNT
    np.testing.assert_allclose(found.output, np.where(hard[:, None], second.output, first.output), atol=1e-5)
    assert found.source == tuple("cascade" if one else "subnet" for one in hard)


def test_a_cascade_is_remembered(model, tmp_path):
    original = model.bundle.supernet.original
    plan = Plan(original.at(model.bundle.supernet.sizes[1]), hard=Cascade(ALWAYS, original))
    model.use(plan)
    model.close()
    with AdaptiveModel.open(REFERENCE, state_folder=tmp_path) as again:
        assert again.plan == plan


def test_a_call_with_a_deadline_ends_with_the_first_path(model, tensor):
    original = model.bundle.supernet.original
    small = original.at(model.bundle.supernet.sizes[1])
    model.use(Plan(small, hard=Cascade(ALWAYS, original)))
    found = model.infer(tensor[:1], deadline_ms=1000.0)
    assert found.source == ("subnet",)
