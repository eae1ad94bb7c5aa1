"""Sounds: windows of one channel at the model's sampling rate. The model has its own front end, such as a spectrogram.

Shape legend: windows n, samples s. A prepared batch is float32 [n, 1, s] with values from −1 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from device_sdk.data.inputs import PreparedInputs, middle
from device_sdk.data.kinds.port import Array, ReadBlob
from device_sdk.data.preprocessing import AnyPreprocessing
from device_sdk.errors import InputError

MAX_RATE_HZ = 768_000
MAX_WINDOW = 1 << 24  # samples
_FULL_SCALE = 32_768  # of 16-bit samples


class SoundPreprocessing(msgspec.Struct, AnyPreprocessing, frozen=True, tag_field="kind", tag="sound"):
    """A window of ``window_samples`` at ``sample_rate_hz``, one channel, from −1 to 1.

    A longer sound is cut to its middle, a shorter one is centred between zeros. 16-bit samples are divided by 32,768.
    """

    sample_rate_hz: Annotated[int, msgspec.Meta(ge=1, le=MAX_RATE_HZ)]
    window_samples: Annotated[int, msgspec.Meta(ge=1, le=MAX_WINDOW)]

    def blobs(self) -> dict[str, int]:
        """See ``AnyPreprocessing``."""
        return {}

    def accepts(self, shape: tuple[int, ...], dtype: str) -> bool:
        """See ``AnyPreprocessing``."""
        return shape == (1, self.window_samples) and dtype == "float32"


class SoundPreparer:
    """Sounds for a model with this preprocessing; see the port.

    A sound is int16 or float32 [s] at the model's rate, of any length; several are a list of these or an array [n, s].
    """

    names = "sounds"

    def __init__(self, preprocessing: SoundPreprocessing, shape: tuple[int, ...], read_blob: ReadBlob) -> None:
        self._preprocessing = preprocessing

    def is_prepared(self, samples: object) -> bool:
        """See the port: prepared windows have an axis for their channel."""
        return isinstance(samples, np.ndarray) and samples.ndim == 3

    def listed(self, samples: Any) -> Sequence[Array]:
        """See the port."""
        return [samples] if isinstance(samples, np.ndarray) and samples.ndim == 1 else samples

    def prepare(self, samples: Any, input_size: tuple[int, ...] = ()) -> Array:
        """See the port: float32 [n, 1, s]."""
        (length,) = input_size or (self._preprocessing.window_samples,)
        windows = [self._window(sound, at) for at, sound in enumerate(self.listed(samples))]
        return middle(np.stack(windows)[:, np.newaxis], length)

    def inputs(self, samples: Any) -> PreparedInputs:
        """See the port; windows are prepared at once."""
        return PreparedInputs(self.prepare(samples))

    def notes(self, samples: Any) -> tuple[str, ...]:
        """Number of sounds that are longer than the model's window."""
        sounds, most = self.listed(samples), self._preprocessing.window_samples
        longer = sum(len(sound) > most for sound in sounds)
        if not longer:
            return ()
        return (f"{longer} of {len(sounds)} sounds are longer than the model's {most} samples and cut to their middle",)

    def _window(self, sound: Any, position: int) -> Array:
        if not isinstance(sound, np.ndarray) or sound.ndim != 1 or not len(sound):
            raise InputError(
                f"sound {position} is {_described(sound)}, not an array of samples",
                hint="pass one channel, int16 or float32, at the model's rate"
                f" of {self._preprocessing.sample_rate_hz} Hz",
            )
        if sound.dtype == np.int16:
            values = sound.astype(np.float32) / np.float32(_FULL_SCALE)
        elif sound.dtype == np.float32 and np.isfinite(sound).all():
            values = sound
        else:
            raise InputError(f"sound {position} has samples of {sound.dtype}; int16 and finite float32 are taken")
        return middle(values[np.newaxis, np.newaxis], self._preprocessing.window_samples)[0, 0]


def _described(sound: object) -> str:
    return f"an array of shape {list(sound.shape)}" if isinstance(sound, np.ndarray) else f"a {type(sound).__name__}"
