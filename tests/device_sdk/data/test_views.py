from __future__ import annotations

import numpy as np
import pytest

from device_sdk.data.inputs import VIEWS, views

SAMPLES = np.random.default_rng(0).normal(size=(3, 2, 32, 33)).astype(np.float32)


def test_the_first_view_is_the_sample_and_the_sixth_its_mirror_image():
    found = list(views(SAMPLES))
    assert len(found) == VIEWS
    assert all(one.shape == SAMPLES.shape and one.dtype == np.float32 for one in found)
    assert np.array_equal(found[0], SAMPLES)
    assert np.array_equal(found[VIEWS // 2], SAMPLES[..., ::-1])
    assert len({one.tobytes() for one in found}) == VIEWS


def test_a_moved_sample_keeps_what_is_still_in_sight():
    found = list(views(SAMPLES))
    assert np.array_equal(found[1][:, :, :-3], SAMPLES[:, :, 3:])
    assert np.array_equal(found[4][..., 3:], SAMPLES[..., :-3])


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 224)])
def test_the_smallest_samples_move_by_one_value(height, width):
    assert all(one.shape == (1, 1, height, width) for one in views(np.ones((1, 1, height, width), np.float32)))
