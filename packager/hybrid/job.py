"""A hybrid's job: two models and their recipe, read from a file, with the data of both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from device_sdk.data.preprocessing import Interpolation
from device_sdk.errors import UsageError
from device_sdk.progress import Progress
from packager.inputs.job import Job, load_job
from packager.inputs.pixels import Pixels, parse_normalisation
from packager.inputs.recipe import chosen, read_toml, require_numbers
from packager.inputs.weights import BranchWeights, read_state_dict, tensors_digest

Trained = Literal["r", "rb", "rg", "rbg"]
_OWN = ("copied", "steps", "budget_minutes", "branch_weights")  # of the bundles' recipes: set by hybrid training
_BUNDLE: dict[str, Any] = {"max_span": 1, "identity": False, "exit_positions": 0}


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
    if routing is not None and not isinstance(routing, str):
        raise UsageError(f"{path}: routing_data is no text", hint="it names images as --data does")
    return Pair(base, global_, routing, chosen(HybridRecipe, values, overrides))


def _model(values: dict[str, Any], part: str, path: Path) -> ModelChoice:
    """The model of the table ``part``, whose other keys stay in ``values``."""
    try:
        values[part] = table = msgspec.convert(values.get(part, {}), dict[str, Any])
        found = msgspec.convert({key: table.pop(key) for key in _Model.__struct_fields__ if key in table}, _Model)
        normalisation = None if found.preprocessing is None else parse_normalisation(found.preprocessing)
    except (msgspec.ValidationError, ValueError) as error:
        raise UsageError(f"{path}: [{part}]: {error}", hint='a table names a model: model = "zoo:NAME"') from error
    pixels = Pixels(normalisation, found.interpolation, found.crop)
    weights = None if found.weights is None else Path(found.weights)
    return ModelChoice(found.model, weights, found.input_shape, pixels, found.name)


@dataclass(frozen=True)
class HybridJob:
    """Jobs from which a hybrid is made: one per network with the same images, and one per network with routing images.

    ``base_routing``, ``global_routing``: their validation images are those that the router learns from.
    ``base_weights``, ``global_weights``: of the copies, to start from.
    """

    base: Job
    global_: Job
    base_routing: Job
    global_routing: Job
    recipe: HybridRecipe
    base_weights: BranchWeights | None = None
    global_weights: BranchWeights | None = None

    def description(self) -> dict[str, Any]:
        """Everything that the two bundles depend on."""
        jobs = {"base": self.base, "global": self.global_, "routing": self.base_routing}
        weights = {"base": self.base_weights, "global": self.global_weights}
        found = {f"{part} {key}": value for part, job in jobs.items() for key, value in job.description().items()}
        found |= {f"{part} weights to start from": _digest(one) for part, one in weights.items()}
        return {**found, "hybrid": self.recipe.choices()}


def _digest(weights: BranchWeights | None) -> str | None:
    return None if weights is None else tensors_digest(weights)


def load_hybrid_job(
    pair: Pair,
    *,
    training: str,
    validation: str,
    recipe_folder: Path = Path(),
    classes: str | None = None,
    version: int = 1,
    progress: Progress,
) -> HybridJob:
    """Load both models and the data. ``recipe_folder``: where the recipe's weight files lie.

    Raises:
        UsageError, ModelLoadError, WeightsError, DataError: an argument is invalid, or refers to nothing usable.
    """

    recipe, routing = pair.recipe, pair.routing or training

    def load(model: ModelChoice, images: str, table: Mapping[str, Any], judging: str = validation) -> Job:
        """Job of one network (UsageError for one that takes no images)."""
        shared = {name: getattr(recipe, name) for name in ("batch", "variants", "flip", "crop", "device", "precision")}
        job = load_job(
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
        job.model.preprocessing.of_images()
        return job

    def weights(name: str | None) -> dict[str, Any] | None:
        return None if name is None else read_state_dict(recipe_folder / name)

    return HybridJob(
        base=load(pair.base, training, recipe.base),
        global_=load(pair.global_, training, recipe.global_),
        base_routing=load(pair.base, validation, recipe.base, routing),
        global_routing=load(pair.global_, validation, recipe.global_, routing),
        recipe=recipe,
        base_weights=weights(recipe.base_weights),
        global_weights=weights(recipe.global_weights),
    )


class HybridRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of hybrid training. Its length is either ``steps`` of both networks together or ``budget_minutes``.

    ``train``: the networks that learn: router, base, global. ``coverage``: share of samples that the base answers.
    ``rounds``: router, global and base learn in turn so many times (Hybrid Alg. 3); ``global_share``: of the steps.
    ``base_blocks``, ``global_blocks``: number of last blocks that are copied and trained; ``base_blocks = 0``: all.
    ``base_rate``, ``global_rate``: peak learning rates over all rounds. ``label_weight``: of the labels in the base's
    loss; the rest is for the answers of the original global model at ``temperature``.
    ``router_samples``: images that the router learns from, at most; ``router_views``: shifted and mirrored views of
    each.
    ``distortion``: strength, 0 to 1, of the random distortions of the images that the global model learns from: as they
    are, it may know them by heart. A base rarely does, and would lose by them.
    ``variants``: augmented editions of the training data, which repeat. ``cache_mb``: limit on disk for the features
    that the global model's last blocks learn from, and in memory for those of the routing images of each network; fewer
    batches repeat more often.
    ``recalibrate_batches``: of plain images, over which the statistics of the base's batch norms are taken anew before
    its first turn and after each; 0: never.
    ``base_weights``, ``global_weights``: files beside the recipe with the copies' weights to start from, as
    ``save_weights`` wrote them. ``base``, ``global``: tables with settings of each bundle's own recipe.
    """

    train: Trained = "rbg"
    coverage: float = 0.7
    steps: int | None = None
    budget_minutes: float | None = None
    rounds: int = 2
    global_share: float = 0.1
    base_blocks: int = 0
    global_blocks: int = 3
    base_rate: float = 3e-2
    global_rate: float = 1e-3
    batch: int = 128
    label_weight: float = 0.3
    temperature: float = 4.0
    router_samples: int = 2000
    router_views: int = 10
    distortion: float = 0.6
    variants: int = 3
    cache_mb: float = 512.0
    recalibrate_batches: int = 100
    flip: bool = True
    crop: float = 0.125
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: int = 0
    checkpoint_seconds: float = 30.0
    base_weights: str | None = None
    global_weights: str | None = None
    base: dict[str, Any] = {}
    global_: dict[str, Any] = msgspec.field(default={}, name="global")

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.budget_minutes is None):
            raise UsageError("hybrid training needs steps or budget_minutes", hint="give one of them")
        if not 0 <= self.coverage <= 1:
            raise UsageError(f"the coverage {self.coverage:g} is not between 0 and 1")
        shares = ("label_weight", "global_share", "distortion")
        require_numbers(self, shares, lambda value: 0 <= value <= 1, "not between 0 and 1")
        counts = ("rounds", "global_blocks", "batch", "router_samples", "router_views", "variants")
        require_numbers(self, counts, lambda value: value >= 1, "below 1")
        amounts = (
            "steps",
            "budget_minutes",
            "base_blocks",
            "crop",
            "cache_mb",
            "recalibrate_batches",
        )
        require_numbers(self, amounts, lambda value: 0 <= value < math.inf, "negative or not finite")
        above = ("base_rate", "global_rate", "temperature")
        require_numbers(self, above, lambda value: 0 < value < math.inf, "not a number above 0")
        for table in (self.base, self.global_):
            if taken := sorted(set(table) & set(_OWN)):
                raise UsageError(f"the recipe of a part cannot set {taken[0]}: hybrid training does")

    @property
    def base_learns(self) -> bool:
        """True if the base is trained."""
        return "b" in self.train

    @property
    def global_learns(self) -> bool:
        """True if the global model is trained."""
        return "g" in self.train

    def of_part(self, table: dict[str, Any]) -> dict[str, Any]:
        """The settings of a part's own recipe: nothing but originals and copies, unless ``table`` says otherwise."""
        return {**_BUNDLE, "seed": self.seed, **table, "steps": 0}

    def choices(self) -> dict[str, str | int | float | bool | None]:
        """The fields as plain values, for the manifest and for comparing runs."""
        values = msgspec.to_builtins(self)
        return {name: str(v) if isinstance(v, list | tuple | dict) else v for name, v in values.items()}


def load_hybrid_recipe(path: Path | None, **overrides: object) -> HybridRecipe:
    """The recipe in a TOML file, with the overrides that are not None. Raises as ``load_recipe``."""
    return chosen(HybridRecipe, read_toml(path), overrides)
