from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from device_sdk.errors import DataError, UsageError
from device_sdk.progress import SilentProgress
from packager.errors import ModelLoadError, WeightsError
from packager.job_loader import load_job
from packager.model_loader import load_model

DIGITS = {"training": "digits#train", "validation": "digits#search", "overrides": {"steps": 0}}


def job_of(specification: str = "zoo:resnet_digits", **choices):
    return load_job(specification, **(DIGITS | choices), progress=SilentProgress())


@pytest.fixture
def two_digits(tmp_path) -> str:
    """A folder with large colour images of the classes 3 and 7."""
    random = np.random.default_rng(0)
    for name in ("3", "7"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 256, (20, 30), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return str(tmp_path / "pictures")


def test_a_job_has_everything_loaded():
    job = job_of()
    assert (job.name, job.version, job.weights_sha256) == ("resnet_digits", 1, None)
    assert (len(job.training), len(job.validation)) == (907, 372)
    assert job.training.class_names == job.validation.class_names == tuple("0123456789")
    assert (job.training_reference, job.validation_reference) == ("digits#train", "digits#search")
    assert job.recipe.steps == 0


def test_images_are_resized_to_the_model_and_labelled_by_its_classes(two_digits):
    job = job_of(training=two_digits)
    assert job.training.images.shape == (8, 8, 8, 1)
    assert set(job.training.labels.tolist()) == {3, 7}
    assert job.training.class_names == tuple("0123456789")
    assert job.model.preprocessing.resize == (8, 8)


def test_another_input_shape_resizes_to_that():
    job = job_of(input_shape=(1, 12, 10))
    assert job.training.images.shape[1:] == (12, 10, 1)
    assert job.model.preprocessing.resize == (12, 10)


def test_references_are_stored_without_their_folders(two_digits):
    assert job_of(training=two_digits).training_reference == "pictures"
    assert job_of(training=f"{two_digits}#report").training_reference == "pictures#report"


def test_weights_are_named_by_their_digest(tmp_path):
    path = tmp_path / "w.safetensors"
    save_file(load_model("zoo:resnet_digits").module.state_dict(), path)
    assert job_of(weights=path).weights_sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["a", "r20.int8_v-2", "0" * 128])
def test_a_name_that_manifests_accept_is_kept(name):
    assert job_of(name=name).name == name


@pytest.mark.parametrize("name", ["", "my model", "../x", "-x", ".hidden", "a" * 129, "x\n"])
def test_a_name_that_no_device_would_accept_is_refused_at_once(name):
    with pytest.raises(UsageError, match="cannot be the name of a bundle"):
        job_of(name=name)


# What a job depends on


def test_equal_jobs_have_equal_descriptions():
    assert job_of().description() == job_of().description()


@pytest.mark.parametrize(
    ("choices", "changed"),
    [
        ({"name": "other"}, {"name"}),
        ({"version": 2}, {"version"}),
        ({"training": "digits#report"}, {"training data"}),
        ({"validation": "digits#report"}, {"validation data"}),
        ({"overrides": {"steps": 0, "seed": 1}}, {"recipe"}),
    ],
)
def test_whatever_changes_the_bundle_changes_the_description(choices, changed):
    first, second = job_of().description(), job_of(**choices).description()
    assert {key for key in first if first[key] != second[key]} == changed


def test_a_model_that_changes_under_its_name_changes_the_description():
    job = job_of()
    first = job.description()
    with torch.no_grad():
        next(job.model.module.parameters()).add_(1e-6)
    second = job.description()
    assert {key for key in first if first[key] != second[key]} == {"module"}


# What is refused


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({"specification": "zoo:resnet_digit"}, ModelLoadError, "zoo has no model"),
        ({"specification": "zoo:resnet20_cifar10"}, DataError, "classes that the model does not know: 0, 1, 2"),
        ({"training": "digits#nothing"}, DataError, "no part 'nothing'"),
        ({"training": "nowhere"}, DataError, "there is no data at nowhere"),
        ({"overrides": {}}, UsageError, "neither steps nor budget_minutes"),
        ({"overrides": {"steps": 1, "gamma": -1.0}}, UsageError, "gamma is negative"),
    ],
)
def test_names_of_nothing_usable_are_refused(choices, error, message):
    with pytest.raises(error, match=message):
        job_of(**choices)


def test_missing_weights_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="there is no weights file"):
        job_of(weights=tmp_path / "nowhere.safetensors")
