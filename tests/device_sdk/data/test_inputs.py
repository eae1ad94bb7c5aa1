from __future__ import annotations

import numpy as np
import pytest

from device_sdk.data.inputs import PreparedInputs, RawInputs, as_inputs, resize_prepared
from device_sdk.data.preprocessing import Preprocessing, prepare
from device_sdk.errors import InputError

PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.5,) * 3, std=(0.25,) * 3, resize=(16, 16))
SHAPE = (3, 16, 16)


@pytest.fixture
def images():
    random = np.random.default_rng(0)
    return [random.integers(0, 256, (side, side + 3, 3), dtype=np.uint8) for side in (20, 33, 16)]


@pytest.mark.parametrize("size", [(), (8, 8)])
def test_raw_images_are_prepared_as_a_call_would(images, size):
    inputs = RawInputs(images, PREPROCESSING, SHAPE)
    shape = (3, *(size or SHAPE[1:]))
    expected = np.concatenate([prepare(images[place], PREPROCESSING, input_shape=shape) for place in (2, 0)])
    for _ in range(2):  # resized now, and kept from before
        assert np.array_equal(inputs.take(np.array([2, 0]), size), expected)


def test_a_subset_has_the_samples_in_its_order(images):
    inputs = RawInputs(images, PREPROCESSING, SHAPE)
    chosen = inputs.subset(np.array([2, 1]))
    assert len(chosen) == 2
    assert np.array_equal(chosen.take(np.array([1])), inputs.take(np.array([1])))


def test_a_subset_takes_no_image_before_its_batch(images):
    class Photographs(list):
        taken = 0

        def __getitem__(self, at):
            self.taken += 1
            return super().__getitem__(at)

    photographs = Photographs(images)
    chosen = RawInputs(photographs, PREPROCESSING, SHAPE).subset(np.array([2, 1, 0])).subset(np.array([0, 1]))
    assert photographs.taken == 0
    assert np.array_equal(chosen.take(np.array([0])), prepare(images[2], PREPROCESSING, input_shape=SHAPE))
    assert photographs.taken == 1


def test_images_of_another_size_are_refused_where_nothing_resizes(images):
    exact = Preprocessing(scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3)
    with pytest.raises(InputError, match="expected images of height, width, channels"):
        RawInputs(images, exact, SHAPE).take(np.array([0]))


def test_arrays_are_inputs_at_the_models_own_size():
    tensors = np.arange(2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    inputs = as_inputs(tensors)
    assert isinstance(inputs, PreparedInputs)
    assert np.array_equal(inputs.take(np.array([1])), tensors[1:])
    assert as_inputs(inputs) is inputs


def test_prepared_tensors_are_resized_like_their_pixels(images):
    own = prepare(images[1], PREPROCESSING, input_shape=SHAPE)
    pixels = np.rint((own * 0.25 + 0.5) * 255).astype(np.uint8)[0].transpose(1, 2, 0)
    expected = prepare(pixels, PREPROCESSING, input_shape=(3, 8, 8))
    step = 1 / 255 / 0.25
    assert np.abs(resize_prepared(own, (8, 8)) - expected).max() <= step
