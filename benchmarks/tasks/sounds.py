"""Spoken digits: the Free Spoken Digit Dataset (CC BY-SA 4.0), its recordings split by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.runner.run import BenchOptions
from benchmarks.tasks.case import Case, Part, accuracy_percent
from benchmarks.tasks.small_networks import Keywords, fit, packaged, prepared, shifted
from benchmarks.tasks.trained_weights import with_weights
from device_sdk.data.kinds.sound_files import read_sound
from device_sdk.data.kinds.sounds import SoundPreprocessing
from packager.data.prepared_set import PreparedSet
from packager.inputs.loaded_model import LoadedModel

_RATE_HZ, _WINDOW = 8_000, 8_000
_DIGITS = tuple(map(str, range(10)))
# of each digit and speaker the recordings with these numbers; 0 to 4 are the data set's own test part
_SEARCH, _REPORT, _VALIDATION, _TRAINING = range(5), range(5, 15), range(15, 19), range(19, 50)
_QUICK = {range(5): range(1), range(5, 15): range(5, 7), range(15, 19): range(15, 16), range(19, 50): range(19, 23)}
_BATCH = 64
_EPOCHS, _QUICK_EPOCHS = 15.0, 1.0


def digits(options: BenchOptions) -> Case:
    """A residual network on a log-mel spectrogram.

    Raises:
        FileNotFoundError: the recordings are missing.
    """
    folder = options.data_folder / "free-spoken-digit-dataset" / "recordings"
    paths = sorted(folder.glob("*_*_*.wav"), key=lambda path: (path.stem.rpartition("_")[0], _number(path)))
    if not paths:
        raise FileNotFoundError(
            "there are no spoken digits: put the files of github.com/Jakobovski/free-spoken-digit-dataset into"
            f" {folder.parent.name}/ of the data folder"
        )
    search, report, validation, training = (
        _part([path for path in paths if _number(path) in (_QUICK[numbers] if options.quick else numbers)])
        for numbers in (_SEARCH, _REPORT, _VALIDATION, _TRAINING)
    )
    folder = _bundle(options, training, validation)
    return Case("sounds", "accuracy", "Free Spoken Digit Dataset", folder, search, report, accuracy_percent)


def _bundle(options: BenchOptions, training: Part, validation: Part) -> Path:
    preprocessing, shape = SoundPreprocessing(_RATE_HZ, _WINDOW), (1, _WINDOW)
    sets = [
        PreparedSet(prepared(preprocessing, shape, part.samples), part.targets, _DIGITS)
        for part in (training, validation)
    ]
    module = Keywords(len(_DIGITS), sample_rate_hz=_RATE_HZ).eval()
    with_weights(module.body, "sounds", options, partial(_train, module, sets[0], options))
    model = LoadedModel(module, shape, preprocessing, _DIGITS, "sounds", None, "trained by bench tasks")
    return packaged(model, sets, options)


def _train(module: Keywords, data: PreparedSet, options: BenchOptions) -> None:
    """Its body, on spectrograms that are computed once."""
    with torch.inference_mode():
        spectrograms = torch.cat([module.spectrogram(some) for some in torch.from_numpy(data.inputs).split(_BATCH)])
    fit(
        module.body,
        spectrograms.numpy(),
        data.labels,
        epochs=_QUICK_EPOCHS if options.quick else _EPOCHS,
        changed=_changed,
        progress=options.progress,
        name="train sounds",
    )


def _changed(spectrograms: Tensor) -> Tensor:
    """Moved by a fifth of their time at most, louder or softer."""
    moved = shifted(spectrograms, spectrograms.shape[-1] // 5)
    return moved + moved.new_empty(len(moved), 1, 1, 1).uniform_(-0.2, 0.1)  # of the logarithm over ten


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _part(paths: Sequence[Path]) -> Part:
    targets: npt.NDArray[np.int64] = np.array([int(path.stem.partition("_")[0]) for path in paths], dtype=np.int64)
    return Part([read_sound(path, sample_rate_hz=_RATE_HZ) for path in paths], targets)
