"""Sounds as a Hugging Face folder's feature extractor prepares them, and the model around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from device_sdk.data.kinds.sounds import MAX_RATE_HZ, MAX_WINDOW, SoundPreprocessing
from device_sdk.errors import UsageError
from packager.errors import ModelLoadError

EXTRACTOR_TYPE = "feature_extractor_type"
_RAW = "Wav2Vec2FeatureExtractor"  # whose features are the sound itself
_SMALL = 1e-7  # added to the variance, as there
_SECONDS = 1.0  # of a window, where no shape is given


class FromSounds(nn.Module):
    """The logits of a model of raw sound: [n, 1, samples] → [n, classes].

    ``normalised``: each sound has mean 0 and variance 1 before, over the whole window.
    """

    def __init__(self, model: nn.Module, *, normalised: bool) -> None:
        super().__init__()
        self.model, self.normalised = model, normalised

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        """See the class."""
        values = sounds[:, 0]
        if self.normalised:
            centred = values - values.mean(-1, keepdim=True)
            values = centred * (centred.square().mean(-1, keepdim=True) + _SMALL).rsqrt()
        return torch.as_tensor(self.model(input_values=values).logits)


@dataclass(frozen=True)
class SoundExtractor:
    """The sounds that a model takes, as preprocessor_config.json says."""

    preprocessing: SoundPreprocessing
    normalised: bool
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: Mapping[str, Any], input_shape: tuple[int, ...] | None, name: str) -> SoundExtractor:
        """From the file's content, in windows of ``input_shape`` [1, samples] or of a second.

        Raises:
            ModelLoadError: features that are not the sound itself, or a rate that is none.
            UsageError: ``input_shape`` is no window.
        """
        kind = content.get(EXTRACTOR_TYPE)
        if kind != _RAW or content.get("feature_size", 1) != 1:
            raise ModelLoadError(
                f"{name} takes the features of {kind}, which devices do not compute",
                hint="put them in front of the model as a module (packager.zoo.log_mel), and package a callable",
            )
        rate = content.get("sampling_rate")
        if not isinstance(rate, int) or not 1 <= rate <= MAX_RATE_HZ:
            raise ModelLoadError(f"{name} has the sampling rate {str(rate)[:20]}, not 1 to {MAX_RATE_HZ} Hz")
        if input_shape is not None and (len(input_shape) != 2 or input_shape[0] != 1):
            raise UsageError("the shape of a sound is 1 x samples, for example 1x16000")
        window = round(rate * _SECONDS) if input_shape is None else input_shape[1]
        if not 1 <= window <= MAX_WINDOW:
            raise UsageError(f"a window of {window} samples is not 1 to {MAX_WINDOW}")
        note = f"sounds are windows of {window / rate:g} s at {rate} Hz; --input-shape 1x{2 * window} doubles them"
        normalised = content.get("do_normalize", True) is not False
        return cls(SoundPreprocessing(rate, window), normalised, (note,) if input_shape is None else ())
