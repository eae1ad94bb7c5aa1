"""From what a person names on the command line to a packaging job with everything loaded."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from device_sdk.bundles.manifest import IDENTIFIER
from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import UsageError
from device_sdk.progress import Progress
from packager.branch_weights import read_branches
from packager.job import Job
from packager.model_loader import load_model
from packager.recipe import load_recipe


def load_job(
    specification: str,
    *,
    training: str,
    validation: str,
    weights: Path | None = None,
    input_shape: tuple[int, int, int] | None = None,
    name: str | None = None,
    version: int = 1,
    recipe_path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    progress: Progress,
) -> Job:
    """Load the recipe, the model and the data, cheapest first.

    Images are resized to the model's input and labelled by its classes, where it knows them.

    Raises:
        UsageError, ModelLoadError, WeightsError, DataError: one of the names names nothing usable.
    """
    if name is not None and not IDENTIFIER.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} cannot be the name of a bundle",
            hint="up to 128 letters, digits, _ . and -, a letter or digit first",
        )
    recipe = load_recipe(recipe_path, **(overrides or {}))
    branches = None
    if recipe.branch_weights is not None:
        branches = read_branches((recipe_path.parent if recipe_path else Path()) / recipe.branch_weights)
    model = load_model(specification, weights=weights, input_shape=input_shape)
    size = (model.input_shape[1], model.input_shape[2])
    model = replace(model, preprocessing=_resizing(model.preprocessing, size))
    sets: list[ImageDataset] = []
    for reference in (training, validation):
        dataset = load_dataset(reference, progress=progress, resize=size)
        sets.append(_labelled(dataset, model.class_names or (sets[0].class_names if sets else None)))
    return Job(
        model=model,
        training=sets[0],
        training_reference=_shown(training),
        validation=sets[1],
        validation_reference=_shown(validation),
        recipe=recipe,
        name=name or _name_after(model.name),
        version=version,
        weights_sha256=hashlib.sha256(weights.read_bytes()).hexdigest() if weights else None,
        branch_weights=branches,
    )


def _name_after(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", model).lstrip("_.-")[:128] or "model"


def _resizing(preprocessing: Preprocessing, size: tuple[int, int]) -> Preprocessing:
    return msgspec.structs.replace(preprocessing, resize=preprocessing.resize or size)


def _labelled(dataset: ImageDataset, class_names: tuple[str, ...] | None) -> ImageDataset:
    return dataset if class_names is None else dataset.relabelled(class_names)


def _shown(reference: str) -> str:
    """The reference without its folder, which is nobody's business but the packager's."""
    path, separator, part = reference.partition("#")
    return Path(path).name + separator + part
