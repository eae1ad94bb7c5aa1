"""Pixels of streets (CamVid) and boxes of blood cells (BCCD): the models of ``benchmarks/two_stage``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from benchmarks.runner.run import BenchOptions
from benchmarks.tasks.case import Answers, Case, Part, Targets
from benchmarks.tasks.trained_weights import with_weights
from benchmarks.two_stage import bench as two_stage
from benchmarks.two_stage.metrics import Run, map50_percent, miou_percent
from benchmarks.two_stage.models import PREPROCESSING, build, train
from device_sdk.data.targets import TargetDataset
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.pipeline import package

_EPOCHS, _QUICK_EPOCHS = 12.0, 0.2
_SEARCHED = 6  # one of so many training images is the device's and trains nothing
_RECIPE = Recipe(steps=0, batch=8, shrink_rates=(0.75, 0.5), variants=0, renditions=("fp32", "int8"))


def streets(options: BenchOptions) -> Case:
    """Classes of pixels, at 240 × 180."""
    return _case("maps", "mIoU", two_stage.segmentation(options), options)


def cells(options: BenchOptions) -> Case:
    """Boxes, at 320 × 240."""
    return _case("boxes", "mAP@0.5", two_stage.detection(options), options)


def _case(name: str, metric: str, known: two_stage.Case, options: BenchOptions) -> Case:
    private = np.arange(len(known.training)) % _SEARCHED == _SEARCHED - 1
    trained, search = (known.training.take(np.flatnonzero(chosen)) for chosen in (~private, private))
    model = build(known.kind, options.data_folder / "pretrained" / "resnet20_cifar10.safetensors")
    epochs = _QUICK_EPOCHS if options.quick else _EPOCHS

    def fit() -> None:
        train(model, trained, known.task, epochs=epochs, progress=options.progress, name=f"train {name}")

    with_weights(model, name, options, fit)
    height, width = trained.images.shape[1:3]
    loaded = LoadedModel(model, (3, height, width), PREPROCESSING, None, name, None, "trained by bench tasks")
    job = Job(loaded, trained, "training", search, "validation", _RECIPE, name, task=known.task)
    packaged = package(job, options.work_folder / name, progress=options.progress)
    data = {"maps": "CamVid", "boxes": "BCCD"}[name]
    judge = partial(miou_percent, classes=len(two_stage.CAMVID)) if name == "maps" else map50_percent
    return Case(name, metric, data, packaged.folder, _part(search), _part(known.validation), _of_answers(judge))


def _part(data: TargetDataset) -> Part:
    return Part(data.images, data.labels)


def _of_answers(judge: Callable[[Run, np.ndarray, np.ndarray], float]) -> Callable[[Sequence[Answers], Targets], float]:
    """The metric of answers that were computed before."""
    return lambda answers, targets: judge(lambda batch: batch, np.stack(answers), targets)
