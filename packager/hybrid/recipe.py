"""The recipe of hybrid training, read from TOML or the command line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from device_sdk.errors import UsageError
from device_sdk.supernet.plan import MOST_ROUTER_NEURONS
from packager.inputs.recipe import chosen, read_toml

Trained = Literal["r", "rb", "rg", "rbg"]

_OWN = ("copied", "steps", "budget_minutes", "branch_weights")  # of the bundles' recipes: set by hybrid training
_BUNDLE: dict[str, Any] = {"max_span": 1, "identity": False, "exit_positions": 0}


class HybridRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of hybrid training. Its length is either ``steps`` of both networks together or ``budget_minutes``.

    ``train``: the networks that learn: router, base, global. ``coverage``: share of samples that the base answers.
    ``rounds``: router, global and base learn in turn so many times (Hybrid Alg. 3); ``global_share``: of the steps.
    ``base_blocks``, ``global_blocks``: number of last blocks that are copied and trained; ``base_blocks = 0``: all.
    ``base_rate``, ``global_rate``: peak learning rates over all rounds. ``label_weight``: of the labels in the base's
    loss; the rest is for the answers of the original global model at ``temperature``.
    ``coverage_weight``: λ_r of the routing loss. ``router_samples``: images that the router learns from, at most;
    ``router_views``: shifted and mirrored views of each.
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
    coverage_weight: float = 1.0
    router_hidden: tuple[int, int] = (32, 16)
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
        for name in ("label_weight", "global_share", "distortion"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"the recipe's {name} is not between 0 and 1")
        for name in ("rounds", "global_blocks", "batch", "router_samples", "router_views", "variants"):
            if getattr(self, name) < 1:
                raise UsageError(f"the recipe's {name} is below 1")
        for name in (
            "steps",
            "budget_minutes",
            "base_blocks",
            "coverage_weight",
            "crop",
            "cache_mb",
            "recalibrate_batches",
        ):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise UsageError(f"the recipe's {name} is negative or not finite")
        for name in ("base_rate", "global_rate", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"the recipe's {name} is not a number above 0")
        if not all(1 <= neurons <= MOST_ROUTER_NEURONS for neurons in self.router_hidden):
            raise UsageError(f"the recipe's router_hidden are not between 1 and {MOST_ROUTER_NEURONS}")
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
