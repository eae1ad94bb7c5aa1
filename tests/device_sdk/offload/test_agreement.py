from __future__ import annotations

import numpy as np
import pytest

from device_sdk.data.kinds.texts import TextPreprocessing
from device_sdk.data.preprocessing import Preprocessing, prepare, resize_image
from device_sdk.errors import InputError, UsageError
from device_sdk.offload.agreement import agree, fill
from device_sdk.offload.client import ModelMetadata, TensorMetadata

CLASSES = ("a", "b")
LOGITS = TensorMetadata("y", "FP32", (-1, 2))
PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))
IMAGES = np.random.default_rng(7).integers(0, 256, (3, 6, 8, 3), dtype=np.uint8)
TENSORS = prepare(IMAGES, PREPROCESSING, input_shape=(3, 6, 8))


def metadata(
    *shape: int,
    datatype: str = "UINT8",
    output: TensorMetadata = LOGITS,
    class_names: tuple[str, ...] | None = None,
) -> ModelMetadata:
    return ModelMetadata((TensorMetadata("x", datatype, shape),), (output,), ("1",), class_names, None)


def agreed(offered: ModelMetadata):
    return agree(offered, class_names=CLASSES, input_shape=(3, 6, 8))


def filled(offered: ModelMetadata, images: np.ndarray | None, tensors: np.ndarray = TENSORS) -> np.ndarray:
    return fill(agreed(offered), tensors, images, preprocessing=PREPROCESSING).data


@pytest.mark.parametrize("shape", [(-1, 6, 8, 3), (-1, 12, 9, 3), (-1, -1, -1, 3), (-1, 6, 8, -1)])
def test_a_model_that_takes_pixels_gets_images_of_any_size(shape):
    assert agreed(metadata(*shape, class_names=CLASSES)).sends == "images"


@pytest.mark.parametrize("shape", [(-1, 3, 6, 8), (-1, 3, -1, -1)])
def test_a_model_that_takes_the_devices_input_gets_tensors(shape):
    offered = metadata(*shape, datatype="FP32")
    assert agreed(offered).sends == "tensors"
    assert filled(offered, IMAGES) is TENSORS


def test_tokens_are_sent_as_whole_numbers_to_a_model_that_takes_them():
    tokens = np.ones((3, 2, 8), dtype=np.int64)
    offered = metadata(-1, 2, 8, datatype="INT64")
    agreement = agree(offered, class_names=CLASSES, input_shape=(2, 8), input_type="int64")
    sent = fill(agreement, tokens, None, preprocessing=TextPreprocessing("0" * 64, 1, 8)).data
    assert sent.dtype == np.int64
    assert np.array_equal(sent, tokens)
    with pytest.raises(UsageError, match="its input is FP32"):
        agree(metadata(-1, 2, 8, datatype="FP32"), class_names=CLASSES, input_shape=(2, 8), input_type="int64")


@pytest.mark.parametrize(
    "offered",
    [
        metadata(-1, 6, 8, 1),
        metadata(4, 6, 8, 3),
        metadata(-1, 6, 8),
        metadata(-1, 0, 8, 3),
        metadata(-1, 6, 100_000, 3),
        metadata(-1, 6, -2, 3),
        metadata(-1, 3, 6, 9, datatype="FP32"),
        metadata(-1, 3, 6, 8, datatype="FP16"),
        metadata(1, 3, 6, 8, datatype="FP32"),
        metadata(datatype="FP32"),
        metadata(-1, 6, 8, 3, class_names=("b", "a")),
        metadata(-1, 6, 8, 3, class_names=("a", "b", "c")),
        metadata(-1, 6, 8, 3, output=TensorMetadata("y", "FP32", (-1, 3))),
        metadata(-1, 6, 8, 3, output=TensorMetadata("y", "INT64", (-1, 2))),
        metadata(-1, 6, 8, 3, output=TensorMetadata("y", "FP32", (2,))),
        ModelMetadata((), (), (), None, None),
    ],
)
def test_a_model_that_cannot_answer_for_the_devices_is_refused(offered):
    with pytest.raises(UsageError, match="does not fit"):
        agreed(offered)


def test_a_device_whose_input_is_no_image_sends_tensors():
    offered = metadata(-1, 16, datatype="FP32")
    assert agree(offered, class_names=CLASSES, input_shape=(16,)).sends == "tensors"


def test_images_of_the_wanted_size_travel_as_they_are():
    assert filled(metadata(-1, 6, 8, 3), IMAGES) is IMAGES
    assert filled(metadata(-1, -1, -1, 3), IMAGES) is IMAGES


def test_images_of_another_size_are_resized():
    sent = filled(metadata(-1, 12, -1, 3), IMAGES)
    assert sent.shape == (3, 12, 8, 3)
    np.testing.assert_array_equal(sent[1], resize_image(IMAGES[1], (12, 8)))


def test_pixels_are_recovered_from_tensors_where_images_are_not_known():
    np.testing.assert_array_equal(filled(metadata(-1, 6, 8, 3), None), IMAGES)


def test_images_that_cannot_be_resized_are_refused():
    offered = metadata(-1, 9, 9, 2)
    agreement = agree(offered, class_names=CLASSES, input_shape=(2, 6, 8))
    with pytest.raises(InputError, match="cannot be resized"):
        fill(agreement, TENSORS[:, :2], IMAGES[..., :2], preprocessing=PREPROCESSING)
