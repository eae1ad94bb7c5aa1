from __future__ import annotations

import numpy as np

from benchmarks.hard_samples.views import MOVED, VIEWS, views

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)


def test_the_first_view_is_the_image_and_the_sixth_its_mirror_image():
    found = list(views(IMAGES))
    assert len(found) == VIEWS
    assert all(one.shape == IMAGES.shape for one in found)
    assert np.array_equal(found[0], IMAGES)
    assert np.array_equal(found[VIEWS // 2], IMAGES[:, :, ::-1])
    assert len({one.tobytes() for one in found}) == VIEWS


def test_a_moved_image_keeps_what_is_still_in_sight():
    found = list(views(IMAGES))
    assert np.array_equal(found[1][:, :-MOVED], IMAGES[:, MOVED:])
    assert np.array_equal(found[4][:, :, MOVED:], IMAGES[:, :, :-MOVED])
