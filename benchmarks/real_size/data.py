"""The network and the bundles of ``real-size``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.real_size.photographs import Photographs, load_photographs
from benchmarks.runner.run import BenchOptions
from benchmarks.support.lite import lite_bundle, lite_job

_QUICK_IMAGES = 60


def photographs(options: BenchOptions, *parts: str) -> Photographs:
    """The photographs of ``parts`` of val.zip; the first few of them for ``--quick``."""
    return load_photographs(options.data_folder, parts, limit=_QUICK_IMAGES if options.quick else None)


def bundle(options: BenchOptions, *, trained: bool) -> Path:
    """The folder of Lite0's bundle in fp32 and int8, with the zoo's trained branches or without any training."""
    return lite_bundle(options, 0, trained=trained)


def calibration_images(options: BenchOptions, count: int, *, variant: int = 0) -> npt.NDArray[np.float32]:
    """Prepared training photographs [count, 3, side, side] at the input size of Lite ``variant``."""
    return lite_job(options, variant).training_samples(count).numpy()
