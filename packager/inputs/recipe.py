"""The recipe: every choice of a packaging run, read from TOML or from the command line."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from device_sdk.errors import UsageError

RenditionName = Literal["fp32", "int8", "fp16", "xnnpack"]
Auto = Literal["auto"]

_TUNED = {"batch": 128, "distil_rate": 2e-3, "tune_rate": 2e-2, "exit_rate": 5e-2}  # for a few thousand steps
_NOT_NEGATIVE = (
    *("steps", "budget_minutes", "gamma", "exit_positions", "variants", "crop", "checkpoint_seconds"),
    *("identity_points", "recalibrate_batches", "patience", "cache_mb"),
)


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model becomes a supernet. Lengths of training are either ``steps`` or ``budget_minutes``.

    ``gamma``: neighbouring cells are joined while a block has at most gamma · P0 parameters (AdaptiveNet §4.1).
    ``fused``: operators that stay with the layer before them; not given: those that inference engines fuse.
    ``max_span``: a merged block, or an identity, replaces at most so many originals.
    ``tiled``: merged blocks begin at every ``max_span``th original only: fewer of them, each trained more often.
    ``shrink_rates``: for each a shrunk block beside every original, with that share of its inner channels; ``auto``
    takes 0.5 and 0.25 for a model below 10 million parameters, else none (AdaptiveNet §7.2).
    ``identity``: also add skips over spans that keep their shape; those that no budget would want are left out before
    the training, those that lose more than ``identity_points`` percentage points after it.
    ``exit_positions``: exits are attached to so many cut points at most, 0 for none.
    ``exit_share``: share of the training for the exits; of the rest, ``distil_share`` is for branch-wise distillation
    and what remains tunes. Where there are no merged blocks the exits get all of it, and the other way round.
    ``precision``: ``auto`` trains in bfloat16 where the processor has matrix units for it, else in float32; weights and
    optimizer stay in float32.
    ``sampling``: the path that a tuning step trains: from a range of MACs drawn at random (``uniform``), or every other
    time the cheapest of all, and in between in turns one that lies between it and the original and a uniform one
    (``sandwich``), or never a uniform one (``cheapest``): blocks that are not on the cheapest path stay as distilled.
    ``distil_from``: added blocks imitate from the teacher's features (``teacher``, all at once and independently) or
    from those of a sampled path (``student``).
    ``recalibrate_batches``: after tuning, batch-norm statistics are taken again from so many batches; 0: they stay; not
    given: from 30 if there was a step of tuning.
    ``patience``: tuning ends early when so many looks in a row, one every 100 steps, saw no better accuracy; 0: never.
    ``device``: ``auto`` takes CUDA or MPS where there is one.
    ``cache_mb``: features that the exits learn from are kept on disk between the rounds of ``variants`` if all fit.
    ``variants``: so many augmented editions of the training data come round and round, and the teacher answers each
    only once; 0 for a new one in every epoch.
    ``batch``, ``distil_rate``, ``tune_rate``, ``exit_rate``: numbers, or ``auto``: made to fit the number of updates
    that there is time for (``packager/training/updates.py``). Not given: ``auto`` with ``budget_minutes``; with
    ``steps`` batches of 128 and rates for a few thousand of them.
    ``branch_weights``: a safetensors file beside the recipe from which the added blocks and exits start (``package
    --save-branches`` writes one).
    ``input_sizes``: smaller inputs, [height, width] each, at which paths of the same blocks may run as well; ``auto``
    tries multiples of 16 pixels where the model's own input has 96 or more; an empty list keeps to the model's own.
    ``renditions``: forms in which blocks are packaged; fp32 is always among them.
    ``crop``: random shifts up to this share of the image's side.
    """

    gamma: float = 0.0
    fused: tuple[str, ...] | None = None
    max_span: int = 3
    tiled: bool = False
    shrink_rates: tuple[float, ...] | Literal["auto"] = ()
    identity: bool = True
    identity_points: float = 2.0
    exit_positions: int = 3
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
    input_sizes: tuple[tuple[int, int], ...] | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.steps is None and self.budget_minutes is None:
            raise UsageError("the recipe says neither steps nor budget_minutes")
        if self.steps is not None and self.budget_minutes is not None:
            raise UsageError("the recipe says both steps and budget_minutes", hint="give one of them")
        for name, tuned in _TUNED.items():
            if getattr(self, name) is None:
                msgspec.structs.force_setattr(self, name, tuned if self.budget_minutes is None else "auto")
        for name, value in self.choices().items():
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"the recipe's {name} is not a finite number")
        for name in _NOT_NEGATIVE:
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"the recipe's {name} is negative")
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
        for name in ("distil_share", "exit_share", "label_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"the recipe's {name} is not between 0 and 1")

        if self.input_sizes != "auto" and not all(min(size) > 0 for size in self.input_sizes):
            raise UsageError("the recipe's input_sizes are not all above 0")
        if self.shrink_rates != "auto" and not all(0 < rate < 1 for rate in self.shrink_rates):
            raise UsageError("the recipe's shrink_rates are not all between 0 and 1")

    @property
    def largest_batch(self) -> int:
        """Samples in a batch; with ``auto`` they may be divided among several updates."""
        return int(_TUNED["batch"]) if self.batch in ("auto", None) else int(self.batch)

    def highest_rate(self, name: str) -> float:
        """The learning rate ``name``; where it is ``auto`` that of a few thousand steps with batches of 128."""
        value = getattr(self, name)
        return _TUNED[name] if value in ("auto", None) else float(value)

    def choices(self) -> dict[str, str | int | float | bool | None]:
        """The fields as plain values, for the manifest and for telling two runs apart; lists are joined by commas."""
        values = msgspec.to_builtins(self)
        return {name: ", ".join(map(str, v)) if isinstance(v, list | tuple) else v for name, v in values.items()}


def load_recipe(path: Path | None, **overrides: object) -> Recipe:
    """The recipe in a TOML file, changed by the overrides that are not None.

    Raises:
        UsageError: the file is missing, not TOML, or has unknown or wrong values.
    """
    values: dict[str, object] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read the recipe {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} is not TOML: {error}") from error
    for length, other in (("steps", "budget_minutes"), ("budget_minutes", "steps")):
        if overrides.get(length) is not None and overrides.get(other) is None:
            values.pop(other, None)
    values |= {name: value for name, value in overrides.items() if value is not None}
    try:
        return msgspec.convert(values, Recipe)
    except msgspec.ValidationError as error:
        raise UsageError(f"the recipe is wrong: {error}") from error
