"""The three networks of ``split``: their bundles, and the images by which ways are chosen and judged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.real_size.photographs import load_photographs
from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import cache_folder
from benchmarks.two_stage.bench import segmentation
from benchmarks.two_stage.models import PREPROCESSING, build, train
from device_sdk import __version__
from device_sdk.data.datasets import load_dataset
from device_sdk.data.targets import TargetDataset
from packager.bottlenecks.pipeline import package_with_bottlenecks
from packager.inputs.job import Job, load_job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.pixels import Pixels
from packager.inputs.recipe import Recipe, RenditionName
from packager.inputs.weights import tensors_digest
from packager.pipeline import package

RENDITIONS: tuple[RenditionName, ...] = ("fp32", "int8", "w4", "w2")
_RECIPE = {"steps": 0, "budget_minutes": None, "max_span": 1, "input_sizes": [], "renditions": list(RENDITIONS)}
CAMVID_EPOCHS = 8.0
_QUICK_IMAGES = 60


@dataclass(frozen=True)
class Judged:
    """Raw images, and what is right for each, as ``device_sdk.tasks`` takes it."""

    images: Sequence[npt.NDArray[np.uint8]]
    targets: npt.NDArray[np.generic]

    def every(self, step: int) -> Judged:
        """Every ``step``-th of them."""
        return Judged(self.images[::step], self.targets[::step])


@dataclass(frozen=True)
class SplitNetwork:
    """A packaged network. ``private`` images decide, ``report`` images judge what was chosen. ``metric``: of both.

    ``renditions``: forms of its blocks. A model in two stages can only be packaged in float32, so that CamVid has no
    rows of uniform bits on the device.
    """

    name: str
    folder: Path
    metric: str
    private: Judged
    report: Judged
    renditions: tuple[str, ...] = RENDITIONS


def networks(options: BenchOptions) -> list[SplitNetwork]:
    """ResNet-56, EfficientNet-Lite0 and a CamVid segmenter; a ResNet-20 alone for ``--quick``."""
    if options.quick:
        return [_resnet(options, "resnet20_cifar10")]
    return [_resnet(options, "resnet56_cifar10"), _efficientnet(options), _camvid(options)]


def _resnet(options: BenchOptions, name: str) -> SplitNetwork:
    archive = options.data_folder / "cifar10" / "test.zip"
    weights = options.data_folder / "pretrained" / f"{name}.safetensors"
    job = load_job(
        f"zoo:{name}",
        weights=weights,
        training=f"{archive}#calibration",
        validation=f"{archive}#search",
        recipe_path=_narrow(name),
        overrides=_RECIPE,
        progress=options.progress,
    )
    found = []
    for part, limit in (("search", 1000), ("report", 1000)):
        data = load_dataset(f"{archive}#{part}", progress=options.progress).relabelled(job.model.class_names or ())
        count = _QUICK_IMAGES if options.quick else limit
        chosen = np.linspace(0, len(data) - 1, count, dtype=int)
        found.append(Judged(list(data.images[chosen]), data.labels[chosen]))
    return SplitNetwork(name, _kept(job, name, options), "accuracy", found[0], found[1])


def _efficientnet(options: BenchOptions) -> SplitNetwork:
    folder, name = options.data_folder / "imagenette", "efficientnet_lite0"
    job = load_job(
        "timm:tf_efficientnet_lite0",
        weights=options.data_folder / "pretrained" / "efficientnet_lite0_imagenet.safetensors",
        classes="imagenet-1k",
        pixels=Pixels(None, "bicubic", "whole"),
        training=str(folder / "train.zip"),
        validation=f"{folder / 'val.zip'}#calibration",
        recipe_path=_narrow(name),
        overrides=_RECIPE,
        progress=options.progress,
    )
    found = []
    for parts, limit in ((("search", "calibration"), 600), (("report",), 300)):
        photographs = load_photographs(options.data_folder, parts, limit=limit)
        found.append(Judged(photographs.images, photographs.labels))
    return SplitNetwork(name, _kept(job, name, options), "accuracy", found[0], found[1])


def _camvid(options: BenchOptions) -> SplitNetwork:
    case = segmentation(options)
    weights = options.data_folder / "pretrained" / "resnet20_cifar10.safetensors"
    name, folder = "camvid", _cached("camvid", f"{_RECIPE} {CAMVID_EPOCHS}")
    if not (folder / "manifest.json").exists():
        model = build(case.kind, weights)
        train(model, case.training, case.task, epochs=CAMVID_EPOCHS, progress=options.progress, name="train camvid")
        height, width = case.training.images.shape[1:3]
        loaded = LoadedModel(model, (3, height, width), PREPROCESSING, None, name, None, "trained by this bench")
        recipe = Recipe(steps=0, max_span=1, input_sizes=())
        job = Job(loaded, case.training, "training", case.validation, "validation", recipe, name, task=case.task)
        package(job, folder, restart=True, progress=options.progress)
    private, report = _spread(case.training, 128), _spread(case.validation, 101)
    return SplitNetwork(name, folder, "mIoU", private, report, renditions=("fp32",))


def _spread(data: TargetDataset, count: int) -> Judged:
    chosen = np.linspace(0, len(data) - 1, min(count, len(data)), dtype=int)
    return Judged(list(data.images[chosen]), data.labels[chosen])


def _narrow(name: str) -> Path | None:
    """The recipe with the network's trained bottlenecks, where there is one."""
    path = Path(__file__).parents[2] / "zoo" / f"{name.replace('_', '-')}-bottlenecks.toml"
    return path if path.exists() else None


def _kept(job: Job, name: str, options: BenchOptions) -> Path:
    bottlenecks = tensors_digest(job.branch_weights or {})
    folder = _cached(name, f"{sorted(map(str, _RECIPE.items()))} {bottlenecks}")
    if not (folder / "manifest.json").exists():
        run = package_with_bottlenecks if job.recipe.bottlenecks else package
        run(job, folder, restart=True, progress=options.progress)
    return folder


def _cached(name: str, recipe: str) -> Path:
    digest = hashlib.sha256(f"{__version__} {recipe}".encode()).hexdigest()[:12]
    return cache_folder() / "bench" / f"split-{name}-{digest}"
