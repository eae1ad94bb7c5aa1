"""Adapts and calibrates the model on this device, on separate images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.data.datasets import load_dataset, split
from device_sdk.policies.adaptation import Adaptation
from device_sdk.policies.calibration import Calibration
from device_sdk.policies.planning.plan_choice import Planned
from device_sdk.progress import Progress
from jetson_demo.frames import FrameSource, Note
from pathweave import AdaptiveModel, Budget, Requirement

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
    """The results. Without images left over there is neither a calibration nor a plan of the planner."""

    adaptation: Adaptation
    calibration: Calibration | None
    planned: Planned | None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The goal: a budget.

    ``least_accuracy``: the planner then chooses the fastest plan of any kind that has it.
    ``live``: keep the budget while the device becomes slower and faster.
    """

    budget: Budget
    least_accuracy: float | None = None
    live: bool = False

    @property
    def requirement(self) -> Requirement | None:
        """For the planner; None where the search decides alone."""
        if self.least_accuracy is None:
            return None
        return Requirement(optimise="latency_ms", accuracy=self.least_accuracy)


def fit(model: AdaptiveModel, to_adapt: Samples, to_calibrate: Samples, wish: Wish, *, progress: Progress) -> Fitted:
    """Adapt the model, then set its exits, or plan, on images that the search did not see.

    Raises:
        BudgetError: no subnet fits, no plan keeps the requirement, or the budget is invalid.
    """
    adaptation = model.adapt(to_adapt.images, to_adapt.labels, wish.budget, live=wish.live, progress=progress)
    if not len(to_calibrate.images):
        return Fitted(adaptation, None, None)
    if wish.requirement is not None:
        planned = model.plan_for(to_calibrate.images, to_calibrate.labels, wish.requirement, progress=progress)
        return Fitted(adaptation, None, planned)
    return Fitted(adaptation, model.calibrate(to_calibrate.images, to_calibrate.labels, progress=progress), None)


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


def unlabelled_samples(source: FrameSource, *, note: Note) -> tuple[Samples, Samples]:
    """Images of ``source`` without labels, in two parts: to adapt on, and to calibrate on.

    Raises:
        DataError: no image can be used.
    """
    pixels = source.sample(UNLABELLED_IMAGES, note=note)
    return Samples(pixels[0::2], None), Samples(pixels[1::2], None)
