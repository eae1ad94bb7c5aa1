"""A small network that knows the digits, and its bundle with bottlenecks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from device_sdk.bundles.bundle import Bundle
from packager.bottlenecks.pipeline import package_with_bottlenecks
from packager.bottlenecks.placing import Table
from packager.expanding import examples_of, expanded
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.joining.networks import CutNetwork

NAMES = tuple("0123456789")
SLOW = Table(server_macs_per_ms=1e5, call_ms=0.0, call_bytes=0)  # for which so small a network is worth a call


@pytest.fixture(scope="session")
def make_job(network_of_digits, digits_preprocessing, digits) -> Callable[..., Job]:
    """The network's job on the digits, with these choices of the recipe."""
    module = network_of_digits((8, 16), depth=3, steps=120, seed=5).eval()
    model = LoadedModel(module, (1, 8, 8), digits_preprocessing, NAMES, "digits", None, "a test")
    training = replace(digits("train", 300), class_names=NAMES)

    def make(**choices: Any) -> Job:
        recipe = Recipe(**({"steps": 30, "max_span": 1, "exit_positions": 1, "bottlenecks": 2, "batch": 32} | choices))
        return Job(model, training, "digits#train", digits("search"), "digits#search", recipe, model.name)

    return make


@pytest.fixture(scope="session")
def network(make_job) -> CutNetwork:
    """Its original blocks."""
    job = make_job()
    expansion = expanded(job, torch.from_numpy(examples_of(job)))
    return CutNetwork(expansion.originals, tuple(cut.tensors for cut in expansion.cut_points))


@pytest.fixture(scope="session")
def weights_file(tmp_path_factory):
    """The file to which the bundle's branches are saved."""
    return tmp_path_factory.mktemp("bottlenecks") / "branches.safetensors"


@pytest.fixture(scope="session")
def narrow_bundle(make_job, weights_file) -> Bundle:
    """The packaged network with bottlenecks, also in int8."""
    job = make_job(renditions=("fp32", "int8"))
    package_with_bottlenecks(job, weights_file.parent / "digits", save_branches=weights_file, table=SLOW)
    return Bundle.open(weights_file.parent / "digits")
