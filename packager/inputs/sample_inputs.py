"""The input of a user's module that takes texts, sounds or prepared values, from its attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from device_sdk.data.kinds import decode_preprocessing
from device_sdk.data.kinds.prepared import TensorPreprocessing
from device_sdk.data.kinds.sounds import SoundPreprocessing
from device_sdk.data.preprocessing import AnyPreprocessing
from packager.errors import ModelLoadError
from packager.inputs.model_attributes import attribute_of
from packager.inputs.text_input import text_input

_KINDS = ("sound", "tensor")


@dataclass(frozen=True)
class SampleInput:
    """Input of a model: preprocessing, input shape without the batch axis, and blobs by digest."""

    preprocessing: AnyPreprocessing
    shape: tuple[int, ...]
    blobs: Mapping[str, bytes] = field(default_factory=dict)


def sample_input_of(returned: object, module: nn.Module, shape: Sequence[int] | None) -> SampleInput | None:
    """The input that the attributes of ``returned`` describe; None for one of images.

    * ``tokenizer``: a path to a tokenizer.json, or its bytes; with ``max_tokens`` and perhaps ``type_ids``;
    * ``preprocessing``: a ``SoundPreprocessing`` or a ``TensorPreprocessing``, or a dict with its fields and ``kind``.

    ``shape``: given by the user; of texts its last number is the number of tokens.

    Raises:
        ModelLoadError: an attribute is missing or not of its form.
        MissingExtraError: the tokenizer's library is not installed.
    """
    tokenizer = attribute_of(returned, "tokenizer")
    if tokenizer is not None:
        return _text_input_of(returned, tokenizer, shape)
    preprocessing = attribute_of(returned, "preprocessing")
    if isinstance(preprocessing, Mapping) and preprocessing.get("kind") in _KINDS:
        try:
            preprocessing = decode_preprocessing(dict(preprocessing))
        except ValueError as error:
            raise ModelLoadError(f"the attribute preprocessing cannot be used: {error}") from error
    if isinstance(preprocessing, SoundPreprocessing):
        return SampleInput(preprocessing, (1, preprocessing.window_samples))
    if isinstance(preprocessing, TensorPreprocessing):
        stated = shape or attribute_of(returned, "input_shape")
        own = tuple(int(one) for one in stated) if isinstance(stated, Sequence) else ()
        if not own or not preprocessing.accepts(own, "float32"):
            raise ModelLoadError(
                f"the attribute input_shape is {own or None}, which the preprocessing does not fit",
                hint="give the shape of one sample, with one mean and deviation for each index of its first axis",
            )
        return SampleInput(preprocessing, own)
    return None


def _text_input_of(returned: object, tokenizer: object, shape: Sequence[int] | None) -> SampleInput:
    if not isinstance(tokenizer, (str, Path, bytes)):
        raise ModelLoadError(
            f"the attribute tokenizer is a {type(tokenizer).__name__}",
            hint="it is the path of a tokenizer.json, or its bytes",
        )
    longest = shape[-1] if shape else attribute_of(returned, "max_tokens")
    if not isinstance(longest, int):
        raise ModelLoadError(
            "the model's number of tokens is unknown", hint="give the module an attribute max_tokens, such as 128"
        )
    preprocessing, blobs = text_input(tokenizer, max_tokens=longest, type_ids=bool(attribute_of(returned, "type_ids")))
    return SampleInput(preprocessing, (preprocessing.rows, longest), blobs)
