"""Physiotherapy exercises by a watch's accelerometer and gyroscope, of people whom the network has not seen.

Data: Burns et al., "Shoulder physiotherapy exercise recognition: machine learning the inertial signals from a
smartwatch", 2018, in the PyPI package seglearn (BSD-3).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.runner.run import BenchOptions
from benchmarks.tasks.case import Case, Part, accuracy_percent
from benchmarks.tasks.small_networks import fit, movements, packaged, prepared, shifted
from benchmarks.tasks.trained_weights import with_weights
from device_sdk.data.kinds.prepared import TensorPreprocessing
from packager.data.prepared_set import PreparedSet
from packager.inputs.loaded_model import LoadedModel

_FILE = "watch_dataset.npy"
_WINDOW, _STEP = 256, 128  # of 50 values a second
_TRAINED, _VALIDATED, _SEARCHED, _REPORTED = range(1, 7), (7,), (8,), (9, 10)  # people
_EPOCHS, _QUICK_EPOCHS = 25.0, 2.0


def exercises(options: BenchOptions) -> Case:
    """A network of convolutions over windows of five seconds.

    Raises:
        FileNotFoundError: the recordings are missing.
    """
    found = np.load(_file(options), allow_pickle=True).item()  # a file of the package: a dict of arrays
    names = tuple(map(str, found["y_labels"]))
    training, validation, search, report = (
        _windows(found, people) for people in (_TRAINED, _VALIDATED, _SEARCHED, _REPORTED)
    )
    values = np.stack(training.samples)
    mean, std = values.mean(axis=(0, 2)), values.std(axis=(0, 2))
    preprocessing = TensorPreprocessing(tuple(map(float, mean)), tuple(map(float, std)))
    shape = values.shape[1:]
    sets = [
        PreparedSet(prepared(preprocessing, shape, np.stack(part.samples)), part.targets, names)
        for part in (training, validation)
    ]
    module = movements(shape[0], len(names))

    def train() -> None:
        fit(
            module,
            sets[0].inputs,
            sets[0].labels,
            epochs=_QUICK_EPOCHS if options.quick else _EPOCHS,
            changed=lambda batch: shifted(batch, _WINDOW // 4),
            progress=options.progress,
            name="train sensors",
        )

    with_weights(module, "sensors", options, train)
    model = LoadedModel(module, shape, preprocessing, names, "sensors", None, "trained by bench tasks")
    folder = packaged(model, sets, options)
    return Case("sensors", "accuracy", "watch_dataset of seglearn", folder, search, report, accuracy_percent)


def _file(options: BenchOptions) -> Path:
    spec = importlib.util.find_spec("seglearn")
    places = [options.data_folder / "seglearn" / _FILE]
    places += [Path(spec.origin).parent / "data" / _FILE] if spec is not None and spec.origin is not None else []
    path = next((one for one in places if one.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"there are no recordings of exercises: put {_FILE} of PyPI's seglearn into seglearn/ of the data folder"
        )
    return path


def _windows(found: dict[str, Any], people: Collection[int]) -> Part:
    """Windows float32 [6, time] of these people's recordings, half of each shared with the one before."""
    samples, targets = [], []
    for series, label, person in zip(found["X"], found["y"], found["subject"], strict=True):
        if int(person) in people:
            for at in range(0, len(series) - _WINDOW + 1, _STEP):
                samples.append(np.ascontiguousarray(series[at : at + _WINDOW].T, dtype=np.float32))
                targets.append(int(label))
    return Part(np.stack(samples), np.array(targets, dtype=np.int64))
