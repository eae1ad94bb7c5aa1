"""Loads a hybrid's jobs from the names given on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from device_sdk.data.preprocessing import Interpolation
from device_sdk.errors import UsageError
from device_sdk.progress import Progress
from packager.hybrid.pipeline import HybridJob
from packager.hybrid.recipe import HybridRecipe
from packager.inputs.job import Job
from packager.inputs.job_loader import load_job
from packager.inputs.pixels import Pixels, parse_normalisation
from packager.inputs.recipe import chosen, read_toml
from packager.inputs.weights import read_state_dict


@dataclass(frozen=True)
class ModelChoice:
    """A model as the command line names it; ``name``: of its bundle."""

    specification: str
    weights: Path | None = None
    input_shape: tuple[int, int, int] | None = None
    pixels: Pixels | None = None
    name: str | None = None


@dataclass(frozen=True)
class Pair:
    """A file of ``package --pair``. ``routing``: images that the router learns from, if they are not the training's."""

    base: ModelChoice
    global_: ModelChoice
    routing: str | None
    recipe: HybridRecipe


class _Model(msgspec.Struct, frozen=True):
    """The keys of ``[base]`` and ``[global]`` that name a model; the others are of its bundle's recipe."""

    model: str
    weights: str | None = None
    input_shape: tuple[int, int, int] | None = None
    preprocessing: str | None = None
    interpolation: Interpolation | None = None
    crop: float | Literal["whole"] | None = None
    name: str | None = None


def read_pair(path: Path, **overrides: object) -> Pair:
    """The pair that a TOML file describes, with the overrides of its recipe that are not None.

    Raises:
        UsageError: the file is missing or not TOML, names no two models, or has unknown or wrong values.
    """
    values = read_toml(path)
    base, global_ = (_model(values, part, path) for part in ("base", "global"))
    routing = values.pop("routing_data", None)
    return Pair(base, global_, routing, chosen(HybridRecipe, values, overrides))


def _model(values: dict[str, Any], part: str, path: Path) -> ModelChoice:
    """The model of the table ``part``, whose other keys stay in ``values``."""
    table = dict(values.get(part, {}))
    named = {key: table.pop(key) for key in _Model.__struct_fields__ if key in table}
    values[part] = table
    try:
        found = msgspec.convert(named, _Model)
        normalisation = None if found.preprocessing is None else parse_normalisation(found.preprocessing)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"{path}: [{part}]: {error}", hint='a table names a model: model = "zoo:NAME"') from error
    pixels = Pixels(normalisation, found.interpolation, found.crop)
    weights = None if found.weights is None else Path(found.weights)
    return ModelChoice(found.model, weights, found.input_shape, pixels, found.name)


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
            pixels=model.pixels,
            progress=progress,
        )

    def weights(name: str | None) -> dict[str, Any] | None:
        return None if name is None else read_state_dict(recipe_folder / name)

    return HybridJob(
        base=load(base, training, recipe.base),
        global_=load(global_, training, recipe.global_),
        base_routing=load(base, validation, recipe.base, routing),
        global_routing=load(global_, validation, recipe.global_, routing),
        recipe=recipe,
        base_weights=weights(recipe.base_weights),
        global_weights=weights(recipe.global_weights),
    )
