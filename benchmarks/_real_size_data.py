"""The photographs, the network and the bundles of ``real-size``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks._bundles import ZOO, cache_folder
from device_sdk import __version__
from device_sdk.data.datasets import part_of
from device_sdk.data.image_sources import open_source
from device_sdk.data.inputs import RawInputs
from device_sdk.data.preprocessing import Preprocessing
from packager.job_loader import load_job
from packager.model_loader import LoadedModel, Pixels
from packager.pipeline import package
from pathweave.bench import BenchOptions

SIDE = 224
_MODEL, _WEIGHTS = "timm:tf_efficientnet_lite0", "efficientnet_lite0_imagenet.safetensors"
_QUICK_IMAGES = 60
_PIXELS = Pixels(None, "bicubic", "whole")
_FEW_STEPS = {"steps": 0}


@dataclass(frozen=True)
class Photographs:
    """Raw images uint8 [height, width, 3], each of its own size, and their labels [count] among the 1,000 classes."""

    images: list[npt.NDArray[np.uint8]]
    labels: npt.NDArray[np.int64]

    def inputs(self, preprocessing: Preprocessing) -> RawInputs:
        """The images as a search takes them."""
        return RawInputs(self.images, preprocessing, (3, SIDE, SIDE))


def photographs(options: BenchOptions, *parts: str) -> Photographs:
    """The photographs of ``parts`` of val.zip; the first few of them for ``--quick``."""
    return load_photographs(options.data_folder, parts, limit=_QUICK_IMAGES if options.quick else None)


def load_photographs(data_folder: Path, parts: tuple[str, ...], *, limit: int | None = None) -> Photographs:
    """The photographs of ``parts`` of val.zip, spread evenly over the classes where there is a ``limit``."""
    wnids = (data_folder / "imagenette" / "imagenet_wnids.txt").read_text().split()
    with open_source(str(data_folder / "imagenette" / "val.zip")) as source:
        names = sorted(name for name in source.names if part_of(name) in parts)
        if limit is not None:
            names = [names[place] for place in np.linspace(0, len(names) - 1, min(limit, len(names)), dtype=int)]
        images = [source.read(name) for name in names]
    images = [image if image.shape[2] == 3 else np.repeat(image, 3, axis=2) for image in images]
    return Photographs(images, np.array([wnids.index(name.split("/")[0]) for name in names]))


def bundle(options: BenchOptions, *, trained: bool) -> Path:
    """The folder of a bundle in fp32 and int8: rebuilt from the zoo's trained branches, or without any training.

    Rebuilding takes minutes, so it stays in the cache for as long as recipe, weights and version are the same.
    """
    recipe = ZOO / "efficientnet-lite0.toml" if trained else None
    overrides: Mapping[str, object] = {"renditions": ["fp32", "int8"], **({} if trained else _FEW_STEPS)}
    files = [] if recipe is None else [recipe, recipe.with_suffix(".safetensors")]
    digest = hashlib.sha256(json.dumps([dict(overrides), __version__]).encode())
    for path in files:
        digest.update(path.read_bytes())
    folder = cache_folder() / "bench" / f"lite0-{'trained' if trained else 'untrained'}-{digest.hexdigest()[:12]}"
    if not (folder / "manifest.json").exists():
        package(_job(options, recipe, overrides), folder, restart=True, progress=options.progress)
    return folder


def _job(options: BenchOptions, recipe: Path | None, overrides: Mapping[str, object]):  # type: ignore[no-untyped-def]
    folder = options.data_folder / "imagenette"
    return load_job(
        _MODEL,
        weights=options.data_folder / "pretrained" / _WEIGHTS,
        classes="imagenet-1k",
        pixels=_PIXELS,
        training=str(folder / "train.zip"),
        validation=f"{folder / 'val.zip'}#calibration",
        recipe_path=recipe,
        overrides=overrides,
        progress=options.progress,
    )


def network(options: BenchOptions) -> LoadedModel:
    """The full network, with its weights."""
    return _job(options, None, _FEW_STEPS).model


def calibration_images(options: BenchOptions, count: int) -> npt.NDArray[np.float32]:
    """Prepared training photographs [count, 3, 224, 224]."""
    return _job(options, None, _FEW_STEPS).training_samples(count).numpy()
