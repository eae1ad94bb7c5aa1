"""Sounds with labels: a folder per class of ``.wav`` files with 16-bit samples."""

from __future__ import annotations

import wave
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.sample_sets import LocatedSamples, SampleSet, located, read_folder, sample_set
from device_sdk.errors import DataError

MAX_SECONDS = 3_600
_BYTES = 2  # of a sample


def load_sounds(reference: str, *, limit: int | None, labelled: bool | None, sample_rate_hz: int) -> SampleSet:
    """The sounds at ``FOLDER`` or ``FOLDER#part``: int16 [samples] each, several channels averaged.

    Raises:
        DataError: missing, damaged or compressed files, another sampling rate, or as ``sample_set``; names the file.
    """
    path, part = located(reference, kinds="a folder of .wav files per class")
    read = partial(read_sound, sample_rate_hz=sample_rate_hz)
    entries = read_folder(path, ".wav", read, labelled=labelled) if path.is_dir() else [(path.name, "", read(path))]
    return sample_set(LocatedSamples(str(path), entries), part, limit=limit, labelled=labelled)


def read_sound(path: Path, *, sample_rate_hz: int) -> npt.NDArray[np.int16]:
    """One file as int16 [samples].

    Raises:
        DataError: no readable file of 16-bit samples, empty, too long, or of another rate than the model's.
    """
    try:
        with wave.open(str(path), "rb") as file:
            rate, width, channels, count = (
                file.getframerate(),
                file.getsampwidth(),
                file.getnchannels(),
                file.getnframes(),
            )
            if width == _BYTES and count <= MAX_SECONDS * rate:
                data = file.readframes(count)
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(f"{path} is not a readable .wav file: {error}", hint="convert it to 16-bit PCM") from error
    if width != _BYTES:
        raise DataError(f"{path} has samples of {8 * width} bits; 16 are taken", hint="convert it to 16-bit PCM")
    if count > MAX_SECONDS * rate:
        raise DataError(f"{path} is longer than {MAX_SECONDS} s", hint="cut it into pieces")
    if rate != sample_rate_hz:
        raise DataError(
            f"{path} has {rate} samples a second, the model takes {sample_rate_hz}",
            hint=f"resample it with a filter: ffmpeg -i FILE -ar {sample_rate_hz} OUT.wav",
        )
    samples = np.frombuffer(data[: len(data) // (_BYTES * channels) * _BYTES * channels], dtype="<i2")
    if not len(samples):
        raise DataError(f"{path} holds no sound")
    mixed = samples.reshape(-1, channels).mean(axis=1) if channels > 1 else samples
    return np.asarray(np.rint(mixed), dtype=np.int16)
