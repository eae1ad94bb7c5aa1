"""Adapts and calibrates the model on this device, on separate images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.data.datasets import load_dataset, split
from device_sdk.progress import Progress
from jetson_demo.frames import FrameSource, Note
from pathweave import AdaptationSettings, AdaptiveModel, Found, Goal

UNLABELLED_IMAGES = 128  # of the source
LABELLED_IMAGES = 400  # of a reference
_DROP = 0.005  # accuracy that exits may cost
_LEAST_COVERAGE = 0.0  # a plan may abstain from any share
_CALIBRATION_SHARE = 0.3  # of the labelled images; of the unlabelled ones every second


@dataclass(frozen=True, eq=False)
class Samples:
    """Images uint8 [count, height, width, channels] and their labels [count], None where there are none."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class Fitted:
    """The subnet that was found, and the plan of any kind that was chosen then; None without images left over."""

    subnet: Found
    plan: Found | None


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The goal of the subnet: a latency, a memory or both.

    ``least_accuracy``: the fastest plan of any kind that has it is chosen then.
    ``live``: keep the latency while the device becomes slower and faster.
    """

    goal: Goal
    least_accuracy: float | None = None
    live: bool = False


def fit(model: AdaptiveModel, to_adapt: Samples, to_calibrate: Samples, wish: Wish, *, progress: Progress) -> Fitted:
    """Find a subnet, then on other images its exits, or the fastest plan that is accurate enough.

    Raises:
        BudgetError: no plan keeps a goal.
    """
    settings = AdaptationSettings(fill_pool=wish.live)
    found = model.adapt(to_adapt.images, wish.goal, labels=to_adapt.labels, settings=settings, progress=progress)
    if wish.live:
        model.live.start("latency")
    if not len(to_calibrate.images):
        return Fitted(found, None)
    goal, kinds = Goal(optimise="latency_ms", max_drop=_DROP), {"exits"}
    if wish.least_accuracy is not None:
        goal = Goal(optimise="latency_ms", accuracy=wish.least_accuracy, coverage=_LEAST_COVERAGE)
        kinds = {"subnets", "abstain", "exits"}
    if not model.exits.held:
        kinds -= {"exits"}
    chosen = model.adapt(to_calibrate.images, goal, kinds, to_calibrate.labels, progress=progress) if kinds else None
    return Fitted(found, chosen)


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
