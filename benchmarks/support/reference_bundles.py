"""The bundles of ``end-to-end``, and the computation of their accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.runner.run import BenchOptions
from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import Answer
from packager.inputs.job import load_job
from packager.inputs.loaded_model import LoadedModel
from packager.pipeline import package

BUDGET_MINUTES = 15.0
QUICK_STEPS = 20
BATCH = 100


@dataclass(frozen=True)
class Part:
    """Figures and table rows of one part of a measurement."""

    figures: dict[str, float]
    rows: list[dict[str, object]]


@dataclass(frozen=True)
class Made:
    """A model, its bundle, and the packaging time."""

    model: LoadedModel
    weights: Path
    folder: Path
    minutes: float


def package_pretrained(
    options: BenchOptions,
    name: str,
    *,
    train: bool,
    max_span: int | None = None,
    minutes: float = BUDGET_MINUTES,
    renditions: Sequence[str] = ("fp32",),
) -> Made:
    """A pretrained network of the zoo as a bundle; without ``train`` the added blocks stay as they begin."""
    cifar = options.data_folder / "cifar10"
    weights = options.data_folder / "pretrained" / f"{name}.safetensors"
    steps = (QUICK_STEPS if options.quick else None) if train else 0
    job = load_job(
        f"zoo:{name}",
        weights=weights,
        training=str(cifar / ("train.zip" if train and not options.quick else "test.zip#calibration")),
        validation=str(cifar / "test.zip#search"),
        overrides={
            "steps": steps,
            "budget_minutes": minutes if steps is None else None,
            "max_span": max_span,
            "renditions": list(renditions),
        },
        progress=options.progress,
    )
    packaged = package(job, options.work_folder / name, progress=options.progress)
    return Made(job.model, weights, packaged.folder, packaged.seconds / 60)


def load_part(options: BenchOptions, part: str, model: AdaptiveModel) -> ImageDataset:
    """A part of CIFAR-10's test images, labelled as ``model`` numbers its classes."""
    dataset = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#{part}", progress=options.progress)
    return dataset.relabelled(model.bundle.manifest.task.class_names)


def answers(model: AdaptiveModel, data: ImageDataset) -> Iterator[Answer]:
    """The outputs of ``model``, computed batch by batch."""
    for at in range(0, len(data), BATCH):
        yield model(data.images[at : at + BATCH])


def accuracy(model: AdaptiveModel, data: ImageDataset) -> float:
    """Accuracy in percent."""
    found = np.concatenate([answer.output.argmax(axis=1) for answer in answers(model, data)])
    return 100 * float((found == data.labels).mean())
