"""Two small networks that know the digits, as the members of a family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from packager.data.batches import BatchSource
from packager.family.members import FamilyMember, as_member
from packager.family.pipeline import PackagedFamily, package_family
from packager.inputs.job import Job
from packager.inputs.model_loader import LoadedModel
from packager.inputs.recipe import Recipe
from packager.supernet.blocks.trainable import count_macs
from packager.zoo.resnet import SmallResNet

NAMES = tuple("0123456789")


@pytest.fixture(scope="session")
def loaded(digits, digits_preprocessing) -> tuple[LoadedModel, LoadedModel]:
    """The large network and the small one."""

    def trained(name: str, widths: tuple[int, ...], depth: int, steps: int) -> LoadedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            module = SmallResNet(channels=1, widths=widths, depth=depth, classes=10)
        source = BatchSource(digits("train"), digits_preprocessing, batch=64, seed=0)
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for step in range(steps):
            images, labels = source.batch(step)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(images), labels).backward()
            optimizer.step()
        module.eval().requires_grad_(False)
        return LoadedModel(module, (1, 8, 8), digits_preprocessing, NAMES, name, None, "a test")

    return trained("large", (8, 16), 3, 120), trained("small", (4, 8), 2, 30)


@pytest.fixture(scope="session")
def make_members(loaded, digits) -> Callable[..., list[FamilyMember]]:
    """The members' jobs on the digits, with these choices of the recipe."""

    def make(**choices: Any) -> list[FamilyMember]:
        recipe = Recipe(**({"steps": 0, "max_span": 1, "exit_positions": 1, "renditions": ("fp32", "int8")} | choices))
        training = replace(digits("train", 300), class_names=NAMES)
        members = []
        for model in loaded:
            own = model if model is loaded[0] else as_member(model, loaded[0])
            job = Job(own, training, "digits#train", digits("search"), "digits#search", recipe, model.name)
            members.append(FamilyMember(model.name, job, count_macs(model.module, model.input_shape), (8, 8)))
        return members

    return make


@pytest.fixture(scope="session")
def family(make_members, tmp_path_factory) -> PackagedFamily:
    """The packaged family, without training."""
    return package_family(make_members(), tmp_path_factory.mktemp("family") / "digits")
