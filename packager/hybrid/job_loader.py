"""Loads a hybrid's jobs from the names given on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_sdk.progress import Progress
from packager.hybrid.pipeline import HybridJob
from packager.hybrid.recipe import HybridRecipe
from packager.inputs.job import Job
from packager.inputs.job_loader import load_job
from packager.inputs.pixels import Pixels
from packager.supernet.branch_weights import read_branches


@dataclass(frozen=True)
class ModelChoice:
    """A model as the command line names it; ``normalisation``, as ``Pixels`` has it; ``name``: of its bundle."""

    specification: str
    weights: Path | None = None
    input_shape: tuple[int, int, int] | None = None
    normalisation: Any = None
    name: str | None = None


def load_hybrid_job(
    base: ModelChoice,
    global_: ModelChoice,
    *,
    training: str,
    routing: str,
    validation: str,
    recipe: HybridRecipe,
    recipe_folder: Path = Path(),
    classes: str | None = None,
    version: int = 1,
    progress: Progress,
) -> HybridJob:
    """Load both models and the data. ``recipe_folder``: where the recipe's weight files lie.

    Raises:
        UsageError, ModelLoadError, WeightsError, DataError: an argument is invalid, or refers to nothing usable.
    """

    def load(model: ModelChoice, images: str, table: Mapping[str, Any], judging: str = validation) -> Job:
        shared = {name: getattr(recipe, name) for name in ("batch", "variants", "flip", "crop", "device", "precision")}
        return load_job(
            model.specification,
            training=images,
            validation=judging,
            weights=model.weights,
            input_shape=model.input_shape,
            name=model.name,
            version=version,
            overrides={**shared, **recipe.of_part(dict(table))},
            classes=classes,
            pixels=Pixels(model.normalisation, None, None),
            progress=progress,
        )

    def weights(name: str | None) -> dict[str, Any] | None:
        return None if name is None else read_branches(recipe_folder / name)

    return HybridJob(
        base=load(base, training, recipe.base),
        global_=load(global_, training, recipe.global_),
        base_routing=load(base, validation, recipe.base, routing),
        global_routing=load(global_, validation, recipe.global_, routing),
        recipe=recipe,
        base_weights=weights(recipe.base_weights),
        global_weights=weights(recipe.global_weights),
    )
