"""The network and the bundles of ``real-size``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.real_size.photographs import Photographs, load_photographs
from benchmarks.support.bundles import ZOO, cache_folder
from device_sdk import __version__
from packager.inputs.job_loader import load_job
from packager.inputs.model_loader import LoadedModel, Pixels
from packager.pipeline import package
from pathweave.bench import BenchOptions

_MODEL, _WEIGHTS = "timm:tf_efficientnet_lite0", "efficientnet_lite0_imagenet.safetensors"
_QUICK_IMAGES = 60
_PIXELS = Pixels(None, "bicubic", "whole")
_FEW_STEPS = {"steps": 0}


def photographs(options: BenchOptions, *parts: str) -> Photographs:
    """The photographs of ``parts`` of val.zip; the first few of them for ``--quick``."""
    return load_photographs(options.data_folder, parts, limit=_QUICK_IMAGES if options.quick else None)


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
