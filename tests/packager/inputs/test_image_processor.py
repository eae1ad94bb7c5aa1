"""Image processors of transformers: read as a preprocessing that gives the same pictures, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from packager.errors import ModelLoadError
from packager.inputs.image_processor import read_processor

transformers = pytest.importorskip("transformers", reason="needs the extra: pip install 'pathweave[huggingface]'")

SQUARE = {"height": 64, "width": 64}


def processor(name: str, **choices: Any) -> Any:
    return getattr(transformers, f"{name}ImageProcessorPil")(**choices)


@pytest.mark.parametrize(
    ("name", "choices", "crop"),
    [
        ("ViT", {"size": SQUARE}, None),
        ("ViT", {"size": {"height": 48, "width": 64}, "do_normalize": False}, None),
        ("ConvNext", {"size": {"shortest_edge": 64}}, 224 / 256),
        ("ConvNext", {"size": {"shortest_edge": 384}}, None),
        ("MobileNetV2", {"size": {"shortest_edge": 73}, "crop_size": SQUARE}, 64 / 73),
        ("PoolFormer", {"size": {"shortest_edge": 64}, "crop_size": SQUARE}, 64 / 71),
        ("Levit", {"size": {"shortest_edge": 64}, "crop_size": SQUARE}, 64 / 73),
        ("EfficientNet", {"size": SQUARE, "rescale_offset": True, "rescale_factor": 1 / 127.5}, None),
    ],
)
def test_sizes_and_crops_are_read_and_agree_with_the_processor(
    name: str, choices: dict[str, Any], crop: float | None
) -> None:
    found = read_processor(processor(name, **choices))
    assert found.preprocessing.crop == (None if crop is None else pytest.approx(crop))
    assert found.preprocessing.resize == found.input_shape[1:]
    assert not found.reversed_channels
    assert found.notes == ()


def test_blue_first_is_left_to_the_model() -> None:
    found = read_processor(processor("MobileViT", size={"shortest_edge": 72}, crop_size=SQUARE))
    assert found.reversed_channels


def test_what_is_done_a_little_differently_is_noted() -> None:
    assert "nearest" in read_processor(processor("EfficientNet", size=SQUARE, resample=0)).notes[0]
    stretched = processor("DeiT", size={"height": 73, "width": 73}, crop_size=SQUARE)
    assert "stretched" in read_processor(stretched).notes[0]


@pytest.mark.parametrize(
    ("name", "choices", "said"),
    [
        ("DPT", {"size": SQUARE, "keep_aspect_ratio": True, "ensure_multiple_of": 32}, "pictures of shape"),
        ("MobileViT", {"size": {"shortest_edge": 64}, "crop_size": {"height": 73, "width": 73}}, "differ by"),
        ("ViT", {"size": {"shortest_edge": 64}}, "keeps the other"),
        ("ViT", {"size": SQUARE, "do_resize": False}, "does not say the size"),
        ("ViT", {"size": SQUARE, "image_mean": [0.5, 0.5]}, "no mean and deviation for 3 channels"),
        ("ViT", {"size": SQUARE, "image_std": [0.0, 0.5, 0.5]}, "cannot be used"),
    ],
)
def test_what_devices_cannot_do_is_refused(name: str, choices: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        read_processor(processor(name, **choices))
