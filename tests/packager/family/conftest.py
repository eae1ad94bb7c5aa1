"""Two small networks that know the digits, as the members of a family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from packager.family.members import FamilyMember, as_member
from packager.family.pipeline import PackagedFamily, package_family
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.supernet.blocks.trainable import count_macs

NAMES = tuple("0123456789")


@pytest.fixture(scope="session")
def loaded(network_of_digits, digits_preprocessing) -> tuple[LoadedModel, LoadedModel]:
    """The large network and the small one, which knows less."""

    def one(name: str, widths: tuple[int, ...], depth: int, steps: int) -> LoadedModel:
        module = network_of_digits(widths, depth=depth, steps=steps, seed=5).eval()
        return LoadedModel(module, (1, 8, 8), digits_preprocessing, NAMES, name, None, "a test")

    return one("large", (8, 16), 3, 120), one("small", (4, 8), 2, 30)


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
