from __future__ import annotations

import pytest
from torch import nn

from device_sdk.data.kinds.prepared import TensorPreprocessing
from device_sdk.data.kinds.sounds import SoundPreprocessing
from packager.errors import ModelLoadError
from packager.inputs.sample_inputs import sample_input_of


def _with(**attributes: object) -> nn.Module:
    module = nn.Identity()
    for name, value in attributes.items():
        object.__setattr__(module, name, value)
    return module


def _input(module: nn.Module, shape: tuple[int, ...] | None = None):
    return sample_input_of(module, module, shape)


def test_a_module_without_such_attributes_is_of_images():
    assert _input(_with(preprocessing={"mean": 0.5, "std": 0.5}, input_shape=(3, 8, 8))) is None


def test_a_sound_has_the_shape_of_its_window():
    found = _input(_with(preprocessing={"kind": "sound", "sample_rate_hz": 8000, "window_samples": 400}))
    assert found.preprocessing == SoundPreprocessing(8000, 400)
    assert found.shape == (1, 400)


def test_values_have_a_shape_and_perhaps_means():
    found = _input(_with(preprocessing=TensorPreprocessing((0.0, 1.0), (1.0, 1.0)), input_shape=(2, 9)))
    assert found.shape == (2, 9)
    assert _input(_with(preprocessing={"kind": "tensor"}), (5,)).shape == (5,)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"preprocessing": {"kind": "tensor", "mean": [0.0], "std": [1.0]}, "input_shape": (2, 9)}, "does not fit"),
        ({"preprocessing": {"kind": "tensor"}}, "does not fit"),
        ({"preprocessing": {"kind": "sound", "sample_rate_hz": 0, "window_samples": 4}}, "cannot be used"),
        ({"tokenizer": 7, "max_tokens": 8}, "the attribute tokenizer is a int"),
        ({"tokenizer": b"{}"}, "number of tokens is unknown"),
        ({"tokenizer": "/nowhere/tokenizer.json", "max_tokens": 8}, "cannot be read"),
        ({"tokenizer": b"{}", "max_tokens": 1}, "takes 1 tokens"),
        ({"tokenizer": b"", "max_tokens": 8}, "has 0 bytes"),
    ],
)
def test_attributes_of_no_known_form_are_named(attributes, message):
    with pytest.raises(ModelLoadError, match=message):
        _input(_with(**attributes))


def test_what_is_no_tokenizer_is_refused():
    pytest.importorskip("tokenizers", reason="the extra text is not installed")
    with pytest.raises(ModelLoadError, match="the tokenizer cannot be read"):
        _input(_with(tokenizer=b"{}", max_tokens=8))
