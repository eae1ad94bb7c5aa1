"""A small network that knows the digits, and its bundle with joint exits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from device_sdk.bundles.bundle import Bundle
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.joint_exits.pipeline import package_with_joint_exits

NAMES = tuple("0123456789")


@pytest.fixture(scope="session")
def make_job(network_of_digits, digits_preprocessing, digits) -> Callable[..., Job]:
    """The network's job on the digits, with these choices of the recipe."""
    module = network_of_digits((8, 16), depth=3, steps=120, seed=5).eval()
    model = LoadedModel(module, (1, 8, 8), digits_preprocessing, NAMES, "digits", None, "a test")
    training = replace(digits("train", 600), class_names=NAMES)

    def make(**choices: Any) -> Job:
        own: dict[str, Any] = {"steps": 150, "max_span": 1, "exit_positions": 0, "joint_exits": 2, "flip": False}
        own |= {"batch": 32, "crop": 0.0, "exit_rate": 0.1, "tune_rate": 0.02}
        recipe = Recipe(**(own | choices))
        return Job(model, training, "digits#train", digits("search"), "digits#search", recipe, model.name)

    return make


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory):
    """The file to which the branches and what the copy learned are saved."""
    return tmp_path_factory.mktemp("joint") / "branches.safetensors"


@pytest.fixture(scope="session")
def bundle(make_job, weights_file) -> Bundle:
    """The packaged network and its copy with joint exits."""
    package_with_joint_exits(make_job(), weights_file.parent / "digits", save_branches=weights_file)
    return Bundle.open(weights_file.parent / "digits")
