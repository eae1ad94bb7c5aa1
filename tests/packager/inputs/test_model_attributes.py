from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from device_sdk.data.preprocessing import Preprocessing
from packager.errors import ModelLoadError
from packager.inputs.model_attributes import class_names_of, input_shape_of, preprocessing_of

GREY = nn.Sequential(nn.Conv2d(1, 4, 3))
COLOUR = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


@pytest.mark.parametrize(
    ("value", "module", "shape"),
    [
        (32, COLOUR, (3, 32, 32)),
        (np.int64(32), GREY, (1, 32, 32)),
        ((32, 48), GREY, (1, 32, 48)),
        ([3, 32, 48], GREY, (3, 32, 48)),
        (torch.Size([1, 3, 8, 8]), GREY, (3, 8, 8)),
        (np.array([3, 8, 8]), GREY, (3, 8, 8)),
    ],
)
def test_an_input_shape_is_taken_in_the_forms_people_have(value, module, shape):
    assert input_shape_of(value, module) == shape


@pytest.mark.parametrize("value", ["32", (), (3, 0, 8), (3.5, 8, 8), {"height": 32}, (2, 3, 8, 8), True, 0, object()])
def test_other_input_shapes_are_one_line(value):
    with pytest.raises(ModelLoadError, match="attribute input_shape") as caught:
        input_shape_of(value, GREY)
    assert "channels, height, width" in str(caught.value.hint)


@pytest.mark.parametrize(
    "value",
    [
        {0: "cat", 1: "dog"},
        {"0": "cat", "1": "dog"},
        {1: "dog", 0: "cat"},
        {"dog": 1, "cat": 0},
        ["cat", "dog"],
        np.array(["cat", "dog"]),
        (name for name in ("cat", " dog ")),
    ],
)
def test_class_names_are_taken_in_the_forms_people_have(value):
    assert class_names_of(value) == ("cat", "dog")


@pytest.mark.parametrize("value", [(7, 8, 9), range(7, 10), np.arange(7, 10), torch.arange(7, 10), {0: 7, 1: 8, 2: 9}])
def test_numbers_are_names(value):
    assert class_names_of(value) == ("7", "8", "9")


def test_ten_and_more_keys_are_sorted_as_numbers():
    names = [f"class {number}" for number in range(12)]
    assert class_names_of({str(number): names[number] for number in sorted(range(12), key=str)}) == tuple(names)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("catdog", "'catdog'"),
        ({"cat", "dog"}, "class_names is"),
        ({1: "cat", 2: "dog"}, "every output from 0 on"),
        ({"cat": "dog", "dog": "cat"}, "every output from 0 on"),
        (["cat", None], "None, which is no name"),
        (["cat", ""], "an empty name"),
        (["cat"], "1 names"),
        (["cat", "dog", "cat"], "'cat' more than once"),
        (5, "class_names is 5"),
        ([["cat"], ["dog"]], "no name"),
    ],
)
def test_other_class_names_are_one_line(value, words):
    with pytest.raises(ModelLoadError, match=words) as caught:
        class_names_of(value)
    assert "\n" not in str(caught.value)


TIMM = {
    "input_size": (3, 8, 8),
    "interpolation": "lanczos",
    "mean": MEAN,
    "std": STD,
    "crop_pct": 0.9,
    "crop_mode": "x",
}


@pytest.mark.parametrize(
    ("value", "crop", "interpolation"),
    [
        ({"mean": list(MEAN), "std": np.array(STD)}, None, "bilinear"),
        (TIMM, 0.9, "bicubic"),
        (TIMM | {"crop_mode": "squash"}, None, "bicubic"),
        ({"image_mean": MEAN, "image_std": STD, "rescale_factor": 1 / 255, "resample": 3}, None, "bicubic"),
        (Preprocessing(1 / 255, MEAN, STD, resize=(8, 8)), None, "bilinear"),
    ],
)
def test_preprocessing_is_taken_in_the_forms_libraries_have(value, crop, interpolation):
    found = preprocessing_of(value, (3, 8, 8))
    assert found == Preprocessing(1 / 255, MEAN, STD, resize=(8, 8), crop=crop, interpolation=interpolation)


def test_means_above_one_are_of_pixels_up_to_255():
    found = preprocessing_of({"mean": (123.675, 116.28, 103.53), "std": (58.4, 57.1, 57.4)}, (3, 8, 8))
    assert (found.scale, found.mean[0]) == (1.0, 123.675)


def test_one_mean_stands_for_all_channels():
    assert preprocessing_of({"mean": 0.5, "std": 0.25}, (3, 8, 8)).mean == (0.5,) * 3


def test_the_transforms_of_torchvision_are_taken():
    transforms = pytest.importorskip("torchvision.transforms", exc_type=Exception)
    models = pytest.importorskip("torchvision.models", exc_type=Exception)
    found = preprocessing_of(models.ResNet18_Weights.DEFAULT.transforms(), (3, 224, 224))
    assert (found.mean, found.crop) == ((0.485, 0.456, 0.406), 224 / 256)
    steps = [transforms.Resize(10), transforms.CenterCrop(8), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    assert preprocessing_of(transforms.Compose(steps), (3, 8, 8)) == Preprocessing(
        1 / 255, MEAN, STD, resize=(8, 8), crop=0.8
    )
    with pytest.raises(ModelLoadError, match="step GaussianBlur"):
        preprocessing_of(transforms.Compose([transforms.GaussianBlur(3), *steps]), (3, 8, 8))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"mean": MEAN},
        {"mean": (0.5, 0.5), "std": (0.5, 0.5)},
        {"mean": MEAN, "std": (0.2, 0.0, 0.2)},
        {"mean": MEAN, "std": STD, "scale": "big"},
        {"mean": "imagenet", "std": "imagenet"},
        "imagenet",
        lambda image: image,
        Preprocessing,
        3,
    ],
)
def test_other_preprocessing_is_one_line(value):
    with pytest.raises(ModelLoadError, match="attribute preprocessing") as caught:
        preprocessing_of(value, (3, 8, 8))
    assert "mean and std" in str(caught.value.hint)
