"""Sounds as a Hugging Face folder's feature extractor prepares them, and the model around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from device_sdk.data.kinds.sounds import MAX_RATE_HZ, MAX_WINDOW, SoundPreprocessing
from device_sdk.errors import UsageError
from packager.errors import ModelLoadError
from packager.zoo.kaldi_mel import FRAME, KaldiMel, samples_of

EXTRACTOR_TYPE = "feature_extractor_type"
_SMALL = 1e-7  # added to the variance, as there
_SECONDS = 1.0  # of a window of raw sound, where no shape is given
_MOST_FRAMES, _MOST_BANDS = 1 << 16, 1 << 10


class RawSound(nn.Module):
    """Sounds [n, 1, samples] → [n, samples], as wav2vec 2.0 and its like take them.

    ``normalised``: each sound has mean 0 and variance 1, over the whole window.
    """

    def __init__(self, *, normalised: bool) -> None:
        super().__init__()
        self.normalised = normalised

    def forward(self, sounds: Tensor) -> Tensor:
        """See the class."""
        values = sounds[:, 0]
        if not self.normalised:
            return values
        centred = values - values.mean(-1, keepdim=True)
        return centred * (centred.square().mean(-1, keepdim=True) + _SMALL).rsqrt()


class FromSounds(nn.Module):
    """A model of transformers behind ``front``, which makes its features: [n, 1, samples] → logits [n, classes]."""

    def __init__(self, model: nn.Module, front: nn.Module) -> None:
        super().__init__()
        self.front, self.model = front, model

    def forward(self, sounds: Tensor) -> Tensor:
        """See the class."""
        return torch.as_tensor(self.model(input_values=self.front(sounds)).logits)


@dataclass(frozen=True, eq=False)
class SoundExtractor:
    """The sounds that a model takes, as preprocessor_config.json says; ``front`` makes features of them."""

    preprocessing: SoundPreprocessing
    front: nn.Module
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, content: Mapping[str, Any], input_shape: tuple[int, ...] | None, name: str) -> SoundExtractor:
        """From the file's content, in windows of ``input_shape`` [1, samples], or of the extractor's own length.

        Raises:
            ModelLoadError: features that are not made here, or a rate or sizes that are none.
            UsageError: ``input_shape`` is no window.
        """
        kind = str(content.get(EXTRACTOR_TYPE))
        if kind not in _FRONTS or content.get("feature_size", 1) != 1:
            raise ModelLoadError(
                f"{name} takes the features of {kind[:80]}, which devices do not compute",
                hint="put them in front of the model as a module (packager.zoo.log_mel), and package a callable",
            )
        rate = content.get("sampling_rate")
        if not _is_whole(rate, MAX_RATE_HZ):
            raise ModelLoadError(f"{name} has the sampling rate {str(rate)[:20]}, not 1 to {MAX_RATE_HZ} Hz")
        front, own, least = _FRONTS[kind](content, int(str(rate)), name)
        if input_shape is not None and (len(input_shape) != 2 or input_shape[0] != 1):
            raise UsageError("the shape of a sound is 1 x samples, for example 1x16000")
        window = own if input_shape is None else input_shape[1]
        if not least <= window <= MAX_WINDOW:
            raise UsageError(f"a window of {window} samples is not {least} to {MAX_WINDOW}")
        seconds = window / int(str(rate))
        note = f"sounds are windows of {seconds:g} s at {rate} Hz; --input-shape 1x{2 * window} doubles them"
        return cls(SoundPreprocessing(int(str(rate)), window), front, (note,) if input_shape is None else ())


def _raw(content: Mapping[str, Any], rate: int, name: str) -> tuple[nn.Module, int, int]:
    """The sound itself, the samples of a window, and the fewest."""
    return RawSound(normalised=content.get("do_normalize", True) is not False), round(rate * _SECONDS), 1


def _kaldi(content: Mapping[str, Any], rate: int, name: str) -> tuple[nn.Module, int, int]:
    """Kaldi's mel bands, the samples of as many frames as the model takes, and those of one."""
    frames, bands = content.get("max_length", 1024), content.get("num_mel_bins", 128)
    if not (_is_whole(frames, _MOST_FRAMES) and _is_whole(bands, _MOST_BANDS)):
        raise ModelLoadError(f"{name} has {str(frames)[:20]} frames of {str(bands)[:20]} bands")
    normalised = content.get("do_normalize", True) is not False
    mean, std = (content.get("mean", -4.2677393), content.get("std", 4.5689974)) if normalised else (0.0, 0.5)
    if not all(isinstance(one, int | float) for one in (mean, std)) or not std:
        raise ModelLoadError(f"{name} has no mean and deviation of its features")
    front = KaldiMel(sample_rate_hz=rate, frames=frames, bands=bands, mean=float(mean), std=float(std))
    return front, samples_of(frames), FRAME


_FRONTS: Mapping[str, Callable[[Mapping[str, Any], int, str], tuple[nn.Module, int, int]]] = {
    "Wav2Vec2FeatureExtractor": _raw,
    "ASTFeatureExtractor": _kaldi,
}


def _is_whole(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
