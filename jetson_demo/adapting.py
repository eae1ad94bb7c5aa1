"""Adapts the model to this device: a subnet, then exits or another plan on separate images."""

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
_OTHERS_SHARE = 0.3  # of the labelled images; of the unlabelled ones every second


@dataclass(frozen=True, eq=False)
class Samples:
    """Images uint8 [count, height, width, channels] and their labels [count], None where there are none."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64] | None


@dataclass(frozen=True)
class Fitted:
    """The subnet that was found, and the plan that was chosen then; None without exits or images left over."""

    subnet: Found
    plan: Found | None


def fit(
    model: AdaptiveModel,
    samples: Samples,
    others: Samples,
    goal: Goal,
    *,
    least_accuracy: float | None,
    live: bool,
    progress: Progress,
) -> Fitted:
    """Find a subnet for ``goal``, then on ``others`` exits, or the fastest plan of any kind with ``least_accuracy``.

    ``live``: keep the latency while the device becomes slower and faster.

    Raises:
        BudgetError: no plan keeps a goal.
    """
    settings = AdaptationSettings(fill_pool=live)
    found = model.adapt(samples.images, goal, labels=samples.labels, settings=settings, progress=progress)
    if live:
        model.live.start("latency")
    then, kinds = Goal(optimise="latency_ms", max_drop=_DROP), {"exits"} if model.exits.held else set()
    if least_accuracy is not None:
        then = Goal(optimise="latency_ms", accuracy=least_accuracy, coverage=_LEAST_COVERAGE)
        kinds |= {"subnets", "abstain"}
    if not kinds or not len(others.images):
        return Fitted(found, None)
    return Fitted(found, model.adapt(others.images, then, kinds, others.labels, progress=progress))


def labelled_samples(model: AdaptiveModel, reference: str, *, progress: Progress) -> tuple[Samples, Samples]:
    """The images of a data reference with their labels, in two parts: for the subnet, and for its exits.

    Raises:
        DataError: no data, or classes that the model does not know.
    """
    manifest = model.bundle.manifest
    dataset = load_dataset(
        reference, limit=LABELLED_IMAGES, preprocessing=manifest.preprocessing.of_images(), progress=progress
    ).relabelled(manifest.task.class_names, manifest.task.class_ids)
    kept, held = split(dataset, holdout_share=_OTHERS_SHARE, seed=0)
    return Samples(kept.images, kept.labels), Samples(held.images, held.labels)


def unlabelled_samples(source: FrameSource, *, note: Note) -> tuple[Samples, Samples]:
    """Images of ``source`` without labels, in two parts: for the subnet, and for its exits.

    Raises:
        DataError: no image can be used.
    """
    pixels = source.sample(UNLABELLED_IMAGES, note=note)
    return Samples(pixels[0::2], None), Samples(pixels[1::2], None)
