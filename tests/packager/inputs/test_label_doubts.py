from __future__ import annotations

import pytest
import torch
from torch import nn

from device_sdk.data.preprocessing import Preprocessing
from packager.inputs.labels import label_doubts
from packager.inputs.loaded_model import LoadedModel

CLASSES = ("red", "green", "blue")
OWN = Preprocessing(1 / 255, (0.5,) * 3, (0.25,) * 3)


class Brightest(nn.Module):
    """Tells the brightest channel of images that were prepared with ``OWN``, none below a brightness."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3))


class Reads(nn.Module):
    """Tells the brightest channel of pixels 0 to 255, and the first class of darker ones."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.mean((2, 3)).clamp_min(20.0)


class Blind(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, 1.0, 0.0]]).repeat(len(images), 1)


def model(module: nn.Module) -> LoadedModel:
    return LoadedModel(module, (3, 4, 4), OWN, CLASSES, "small", None, "here")


def samples(count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [count, 3, 4, 4] prepared with ``OWN``, one channel brighter; labels: which."""
    labels = torch.arange(count) % 3
    pixels = torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(0)) * 0.2
    pixels[torch.arange(count), labels] += 0.7
    return (pixels - 0.5) / 0.25, labels


def doubts(module: nn.Module, images: torch.Tensor, labels: torch.Tensor, **choices: bool) -> tuple[str, ...]:
    return label_doubts(model(module), images, labels, **({"weights_given": True} | choices))


def test_a_model_that_agrees_with_the_labels_raises_no_doubt():
    assert doubts(Brightest(), *samples()) == ()


def test_too_few_images_raise_no_doubt():
    assert doubts(Blind(), *samples(9)) == ()


def test_classes_in_another_order_are_named_as_such():
    images, labels = samples()
    (said,) = doubts(Brightest(), images, (labels + 1) % 3)
    assert "0 of 60 validation samples" in said
    assert "another order (samples of red are answered blue" in said
    assert "--classes FILE" in said


def test_two_classes_exchanged_are_named_though_others_are_right():
    images, labels = samples()
    (said,) = doubts(Brightest(), images, torch.tensor([0, 2, 1])[labels])
    assert "samples of green are answered blue; samples of blue are answered green" in said


def test_pixels_in_another_range_are_named():
    (said,) = doubts(Reads(), *samples())
    assert "preprocessing is most likely wrong; with pixels 0 to 255 it is right on 100.0%" in said


@pytest.mark.parametrize(("given", "words"), [(True, "missing weights"), (False, "no --weights were given")])
def test_a_model_that_always_says_the_same_is_told_with_the_causes(given, words):
    (said,) = doubts(Blind(), *samples(), weights_given=given)
    assert "20 of 60" in said
    assert "class 1 to 100%" in said
    assert words in said
