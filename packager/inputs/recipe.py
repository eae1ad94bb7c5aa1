"""The recipe: all settings of a packaging run, read from TOML or the command line."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from device_sdk.errors import UsageError
from packager.npu.chips import DEFAULT_CHIPS, chips_named

RenditionName = Literal["fp32", "int8", "fp16", "xnnpack", "htp", "w8", "w6", "w4", "w2"]
Auto = Literal["auto"]
Choices = TypeVar("Choices", bound=msgspec.Struct)

_TUNED = {"batch": 128, "distil_rate": 2e-3, "tune_rate": 2e-2, "exit_rate": 5e-2}  # for a few thousand steps
_NOT_NEGATIVE = (
    *("steps", "budget_minutes", "gamma", "copied", "exit_positions", "variants", "crop", "checkpoint_seconds"),
    *("identity_points", "recalibrate_batches", "patience", "cache_mb", "bottlenecks", "joint_exits"),
)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for turning a model into a supernet. The length of training is either ``steps`` or ``budget_minutes``.

    ``gamma``: neighbouring cells are joined while a block has at most gamma · P0 parameters (AdaptiveNet §4.1).
    ``fused``: operators that are not separated from the layer before them; default: those that inference engines fuse.
    ``max_span``: maximum number of originals that a merged block or an identity replaces.
    ``tiled``: merged blocks begin only at every ``max_span``th original: fewer blocks, each trained more often.
    ``shrink_rates``: one shrunk block per original and rate, with that share of the inner channels; ``transformers``:
    0.5 and 0.25 for a model with attention, none for others; ``auto``: for one below 10 million parameters too
    (AdaptiveNet §7.2).
    ``identity``: add skips over spans that keep their shape. Skips far from the front of error against MACs are dropped
    before the training. In models with cut points of several tensors, skips that lose more than ``identity_points``
    percentage points are dropped after it.
    ``copied``: copies of so many originals, the last ones, with weights of their own (hybrid training's).
    ``exit_positions``: maximum number of cut points with exits, 0 for none.
    ``branches``: the branches of exits: ``two`` structures at each of these cut points, or ``zoo``: 105 are trained,
    and the best in accuracy, MACs and bytes become exits, with self-merged siblings (docs/adr/0043); or the names of
    some of the zoo's branches, such as ``none-p2h256``.
    ``exit_share``: share of the training for the exits; of the rest, ``distil_share`` is for block-wise distillation
    and the remainder for tuning. Without merged blocks the exits get all of it, and vice versa.
    ``precision``: ``auto`` trains in bfloat16 if the CPU or accelerator has matrix units for it, else in float32;
    weights and optimizer stay in float32.
    ``sampling``: paths of tuning steps: from a random range of MACs (``uniform``); or every second time the cheapest
    path, alternating with one between it and the original and a uniform one (``sandwich``); or the same without uniform
    ones (``cheapest``), so that blocks off the cheapest path stay as distilled.
    ``distil_from``: added blocks are distilled on the teacher's features (``teacher``, all at once and independently)
    or on those of a sampled path (``student``).
    ``recalibrate_batches``: number of batches for recalibrating batch-norm after tuning; 0: none; default: 30 if there
    was a step of tuning.
    ``patience``: tuning stops early after so many consecutive evaluations, one every 100 steps, without improvement;
    0: never.
    ``device``: ``auto`` selects CUDA or MPS if available.
    ``cache_mb``: limit of the on-disk cache for the features that exits train on, used if batches repeat and all fit.
    ``variants``: number of augmented editions of the training data, which repeat, so the teacher's logits are computed
    once; 0 for a new edition in every epoch.
    ``batch``, ``distil_rate``, ``tune_rate``, ``exit_rate``: numbers, or ``auto``: scaled to the number of updates
    that the time allows (``packager/training/schedule.py``). Default: ``auto`` with ``budget_minutes``; with ``steps``
    batches of 128 and rates for a few thousand of them.
    ``branch_weights``: a safetensors file beside the recipe with initial weights of added blocks and exits (written by
    ``package --save-branches``).
    ``input_sizes``: smaller inputs, [height, width] each, or [tokens] of texts, at which paths of the same blocks can
    run; ``auto`` tries multiples of 16 pixels if the model's own input has 96 or more, and of texts multiples of 8
    tokens; an empty list means only the model's own.
    ``bottlenecks``: maximum number of narrow cut points, at which a split sends fewer bytes than at the model's own;
    they are placed where a table of uplinks and devices says that this saves latency (docs/adr/0079).
    ``joint_exits``: maximum number of cut points, from a third to two thirds of the work, with exits that learn with a
    copy of the blocks before them; the copy is a second member of the bundle (docs/adr/0081). Their structures are the
    names in ``branches``, or the first of two defaults that fits.
    ``renditions``: forms of the packaged blocks; fp32 is always included.
    ``chips``: that the rendition ``htp`` is compiled for (``packager/npu/chips.py``).
    ``crop``: random shifts up to this share of the image's side.
    """

    gamma: float = 0.0
    fused: tuple[str, ...] | None = None
    max_span: int = 3
    tiled: bool = False
    shrink_rates: tuple[float, ...] | Literal["transformers", "auto"] = "transformers"
    identity: bool = True
    identity_points: float = 2.0
    copied: int = 0
    exit_positions: int = 3
    branches: Literal["two", "zoo"] | tuple[str, ...] = "two"
    steps: int | None = None
    budget_minutes: float | None = None
    distil_share: float = 0.35
    exit_share: float = 0.15
    batch: int | Auto | None = None
    distil_rate: float | Auto | None = None
    tune_rate: float | Auto | None = None
    exit_rate: float | Auto | None = None
    temperature: float = 4.0
    label_weight: float = 0.1
    sampling: Literal["uniform", "sandwich", "cheapest"] = "uniform"
    distil_from: Literal["teacher", "student"] = "teacher"
    recalibrate_batches: int | None = None
    patience: int = 0
    variants: int = 8
    cache_mb: float = 256.0
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    flip: bool = True
    crop: float = 0.125
    seed: int = 0
    branch_weights: str | None = None
    checkpoint_seconds: float = 30.0
    renditions: tuple[RenditionName, ...] = ("fp32",)
    chips: tuple[str, ...] = DEFAULT_CHIPS
    input_sizes: tuple[tuple[int, ...], ...] | Literal["auto"] = "auto"
    bottlenecks: int = 0
    joint_exits: int = 0

    def __post_init__(self) -> None:
        if self.steps is None and self.budget_minutes is None:
            raise UsageError("the recipe has neither steps nor budget_minutes")
        if self.steps is not None and self.budget_minutes is not None:
            raise UsageError("the recipe has both steps and budget_minutes", hint="give one of them")
        for name, tuned in _TUNED.items():
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, tuned if self.budget_minutes is None else "auto")
        for name, value in self.choices().items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"the recipe's {name} is not a finite number")
        require_numbers(self, _NOT_NEGATIVE, lambda value: value >= 0, "negative")
        for name, least in (("max_span", self.max_span), ("batch", self.largest_batch)):
            if least < 1:
                raise UsageError(f"the recipe's {name} is below 1")
        if self.largest_batch < 2 and self.exit_positions:
            raise UsageError(
                "exits cannot be trained with a batch of 1", hint="set batch above 1 or exit_positions to 0"
            )
        rates = {name: self.highest_rate(name) for name in _TUNED if name != "batch"}
        for name, value in (rates | {"temperature": self.temperature}).items():
            if value <= 0:
                raise UsageError(f"the recipe's {name} is not above 0")
        chips_named(self.chips)
        if not self.chips:
            raise UsageError("the recipe's chips are empty", hint="leave chips out for " + ", ".join(DEFAULT_CHIPS))
        shares = ("distil_share", "exit_share", "label_weight")
        require_numbers(self, shares, lambda value: 0 <= value <= 1, "not between 0 and 1")
        if self.input_sizes != "auto" and not all(size and min(size) > 0 for size in self.input_sizes):
            raise UsageError("the recipe's input_sizes are not all above 0")
        if not isinstance(self.shrink_rates, str) and not all(0 < rate < 1 for rate in self.shrink_rates):
            raise UsageError("the recipe's shrink_rates are not all between 0 and 1")

    @property
    def largest_batch(self) -> int:
        """Samples in a batch; with ``auto`` it may be split into several updates."""
        return int(_TUNED["batch"]) if self.batch in ("auto", None) else int(self.batch)

    def highest_rate(self, name: str) -> float:
        """The learning rate ``name``; for ``auto`` the one for a few thousand steps with batches of 128."""
        value = getattr(self, name)
        return _TUNED[name] if value in ("auto", None) else float(value)

    def choices(self) -> dict[str, str | int | float | bool | None]:
        """The fields as plain values, for the manifest and for comparing runs; lists are joined by commas."""
        values = msgspec.to_builtins(self)
        return {name: ", ".join(map(str, v)) if isinstance(v, list | tuple) else v for name, v in values.items()}


def require_numbers(
    recipe: msgspec.Struct, names: Iterable[str], fits: Callable[[float], bool], otherwise: str
) -> None:
    """Refuse a recipe of which a number among ``names`` does not fit; None, and what is no number, does.

    Raises:
        UsageError: says that it is ``otherwise``.
    """
    for name in names:
        value = getattr(recipe, name)
        if isinstance(value, (int, float)) and not fits(value):
            raise UsageError(f"the recipe's {name} is {otherwise}")


def load_recipe(path: Path | None, **overrides: object) -> Recipe:
    """The recipe in a TOML file, with the overrides that are not None. Raises as ``read_toml`` and ``chosen``."""
    return chosen(Recipe, read_toml(path), overrides)


def read_toml(path: Path | None) -> dict[str, Any]:
    """The values of a TOML file; none without a file.

    Raises:
        UsageError: the file is missing, or not TOML.
    """
    try:
        return {} if path is None else tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the recipe {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error


def chosen(kind: type[Choices], values: Mapping[str, object], overrides: Mapping[str, object]) -> Choices:
    """``values`` as a struct of ``kind``, with the overrides that are not None.

    Of ``steps`` and ``budget_minutes`` the one that overrides puts the other aside.

    Raises:
        UsageError: a value is unknown or wrong.
    """
    values = dict(values)
    for length, other in (("steps", "budget_minutes"), ("budget_minutes", "steps")):
        if overrides.get(length) is not None and overrides.get(other) is None:
            values.pop(other, None)
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"the recipe is invalid: {error}") from error
