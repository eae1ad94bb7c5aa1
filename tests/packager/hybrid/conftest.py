"""Two networks that know the digits, a weak and a strong one, and what hybrid training makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from packager.hybrid.job import HybridJob, HybridRecipe
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe


@pytest.fixture(scope="session")
def models(network_of_digits, digits_preprocessing) -> tuple[LoadedModel, LoadedModel]:
    """Base and global network."""

    def loaded(name: str, widths: tuple[int, ...], steps: int) -> LoadedModel:
        module = network_of_digits(widths, depth=1, steps=steps, seed=7).eval()
        return LoadedModel(module, (1, 8, 8), digits_preprocessing, tuple("0123456789"), name, None, "a test")

    return loaded("weak", (4, 8), 14), loaded("strong", (8, 16), 90)


@pytest.fixture(scope="session")
def make_job(models, digits) -> Callable[..., HybridJob]:
    """A hybrid's job on the digits, with these choices of the recipe."""

    def job(model: LoadedModel, part: str, recipe: HybridRecipe, judging: str = "calibration") -> Job:
        shared = {name: getattr(recipe, name) for name in ("batch", "variants", "flip", "crop", "precision")}
        table = recipe.base if model is models[0] else recipe.global_
        own = msgspec.convert({**recipe.of_part(table), **shared}, Recipe)
        training = replace(digits(part), class_names=tuple("0123456789"))
        return Job(model, training, part, digits(judging), judging, own, model.name)

    def make(**choices: Any) -> HybridJob:
        known = {"steps": 12, "rounds": 1, "global_share": 0.5, "batch": 32, "variants": 1, "router_views": 2}
        fixed = {
            "flip": False,
            "crop": 0.0,
            "precision": "float32",
            "checkpoint_seconds": 0.0,
            "base_rate": 5e-3,
            "recalibrate_batches": 4,
        }
        recipe = HybridRecipe(**(known | fixed | choices))
        base, global_ = models
        return HybridJob(
            base=job(base, "train", recipe),
            global_=job(global_, "train", recipe),
            base_routing=job(base, "calibration", recipe, "search"),
            global_routing=job(global_, "calibration", recipe, "search"),
            recipe=recipe,
        )

    return make


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "hybrid"
