"""Two networks that know the digits, a weak and a strong one, and what hybrid training makes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from packager.data.batches import BatchSource
from packager.hybrid.job import HybridJob, HybridRecipe
from packager.inputs.job import Job
from packager.inputs.model_loader import LoadedModel
from packager.inputs.recipe import Recipe
from packager.zoo.resnet import SmallResNet


def _trained(digits, preprocessing, *, widths: tuple[int, ...], steps: int, name: str) -> LoadedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module = SmallResNet(channels=1, widths=widths, depth=1, classes=10)
    source = BatchSource(digits("train"), preprocessing, batch=64, seed=0)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for step in range(steps):
        images, labels = source.batch(step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(images), labels).backward()
        optimizer.step()
    module.eval().requires_grad_(False)
    return LoadedModel(module, (1, 8, 8), preprocessing, tuple("0123456789"), name, None, "a test")


@pytest.fixture(scope="session")
def models(digits, digits_preprocessing) -> tuple[LoadedModel, LoadedModel]:
    """Base and global network."""
    return (
        _trained(digits, digits_preprocessing, widths=(4, 8), steps=14, name="weak"),
        _trained(digits, digits_preprocessing, widths=(8, 16), steps=90, name="strong"),
    )


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
