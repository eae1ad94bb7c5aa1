"""Adapts and calibrates the model on this device, on separate images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.datasets import load_dataset, split
from device_sdk.policies.adaptation import Adaptation
from device_sdk.policies.calibration import Calibration
from device_sdk.progress import Progress
from jetson_demo.image_folder import ImageReader, Note, spread
from pathweave import AdaptiveModel, Budget

UNLABELLED_IMAGES = 128  # of the source
LABELLED_IMAGES = 400  # of a reference
_CALIBRATION_SHARE = 0.3  # of the labelled images; of the unlabelled ones every second


@dataclass(frozen=True, eq=False)
class Samples:
    """Images uint8 [count, height, width, channels] and their labels [count], None where there are none."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class Fitted:
    """The results. ``calibration`` is None if too few images were left for it."""

    adaptation: Adaptation
    calibration: Calibration | None


def fit(
    model: AdaptiveModel, to_adapt: Samples, to_calibrate: Samples, budget: Budget, *, progress: Progress
) -> Fitted:
    """Adapt the model within ``budget``, then set its exits on images that the search did not see.

    Raises:
        BudgetError: no subnet fits, or the budget is invalid.
    """
    adaptation = model.adapt(to_adapt.images, to_adapt.labels, budget, progress=progress)
    calibration = None
    if len(to_calibrate.images):
        calibration = model.calibrate(to_calibrate.images, to_calibrate.labels, progress=progress)
    return Fitted(adaptation, calibration)


def labelled_samples(model: AdaptiveModel, reference: str, *, progress: Progress) -> tuple[Samples, Samples]:
    """The images of a data reference with their labels, in two parts: to adapt on, and to calibrate on.

    Raises:
        DataError: no data, or classes that the model does not know.
    """
    manifest = model.bundle.manifest
    dataset = load_dataset(
        reference, limit=LABELLED_IMAGES, preprocessing=manifest.preprocessing, progress=progress
    ).relabelled(manifest.task.class_names, manifest.task.class_ids)
    kept, held = split(dataset, holdout_share=_CALIBRATION_SHARE, seed=0)
    return Samples(kept.images, kept.labels), Samples(held.images, held.labels)


def unlabelled_samples(reader: ImageReader, images: Sequence[Path], *, note: Note) -> tuple[Samples, Samples]:
    """An even sample of ``images`` without labels, in two parts: to adapt on, and to calibrate on.

    Raises:
        DataError: no image can be used.
    """
    pixels = reader.pixels(spread(images, UNLABELLED_IMAGES), note=note)
    return Samples(pixels[0::2], None), Samples(pixels[1::2], None)
