from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from device_sdk.data.datasets import load_dataset
from device_sdk.errors import DataError, UsageError
from device_sdk.progress import SilentProgress
from packager.data.batches import WHOLE, Share
from packager.data.image_set import ImageSet, load_images
from packager.errors import ModelLoadError, WeightsError
from packager.inputs.job import load_job
from packager.inputs.model_loader import load_model

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


# Classes of the model and of the data


@pytest.fixture
def ten_names(tmp_path) -> str:
    lines = [f"number {digit}\tn{digit}" for digit in range(10)]
    (tmp_path / "names.txt").write_text("\n".join(lines))
    return str(tmp_path / "names.txt")


def pictures_of(folder, *names: str) -> str:
    for position, name in enumerate(names):
        path = folder / "named" / name
        path.mkdir(parents=True)
        Image.fromarray(np.full((9, 9), position * 40, dtype=np.uint8)).save(path / "0.png")
        Image.fromarray(np.full((9, 9), position * 40 + 9, dtype=np.uint8)).save(path / "1.png")
    return str(folder / "named")


@pytest.mark.parametrize("folders", [("number 3", "number 7"), ("Number_3", "n7"), ("N3", "NUMBER 7")])
def test_data_may_have_some_of_the_listed_classes_by_name_or_id(tmp_path, ten_names, folders):
    pictures = pictures_of(tmp_path, *folders)
    job = job_of(training=pictures, validation=pictures, classes=ten_names)
    assert set(job.training.labels.tolist()) == {3, 7}
    assert job.model.class_names == job.training.class_names == tuple(f"number {digit}" for digit in range(10))
    assert job.model.class_ids[3] == ("n3",)


def test_two_spellings_of_a_class_in_one_data_set_are_refused(tmp_path, ten_names):
    pictures = pictures_of(tmp_path, "number 3", "n3", "n7")
    with pytest.raises(DataError, match="n3 and number 3 are two spellings of one class"):
        job_of(training=pictures, validation=pictures, classes=ten_names)


def test_a_list_of_another_number_of_classes_is_refused(tmp_path):
    (tmp_path / "names.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match="lists 2 classes, the model has 10 outputs"):
        job_of(classes=str(tmp_path / "names.txt"))


def test_data_that_do_not_fit_a_model_of_imagenet_hear_of_its_list(tmp_path):
    pytest.importorskip("timm")
    pictures = pictures_of(tmp_path, "tench", "crane")
    with pytest.raises(DataError, match="has 1000 outputs, the data has 2 classes") as caught:
        job_of("timm:mobilenetv3_small_050", training=pictures, validation=pictures, input_shape=(1, 64, 64))
    assert "--classes imagenet-1k" in str(caught.value.hint)


def test_imagenet_is_known_by_wordnet_id(shared_data):
    pytest.importorskip("timm")
    reference = str(shared_data / "imagenette" / "val.zip#search")
    model = "torchvision:mobilenet_v2"
    pytest.importorskip("torchvision")
    job = job_of(model, training=reference, validation=reference, classes="imagenet-1k", input_shape=(3, 64, 64))
    assert len(job.model.class_names) == 1000
    assert len(set(job.validation.labels.tolist())) == 10
    assert {job.model.class_ids[label][0] for label in job.validation.labels} == {
        name.split("/")[0] for name in job.validation.names
    }


def test_shards_with_numbers_are_labelled_by_them(tmp_path):
    (pictures, expected) = shards_of(tmp_path, (3, 7, 3))
    assert job_of(training=pictures).training.labels.tolist() == expected
    with pytest.raises(DataError, match="does not know: 12"):
        job_of(training=shards_of(tmp_path, (3, 12))[0])


def shards_of(folder, labels) -> tuple[str, list[int]]:
    path = folder / f"{len(labels)}.tar"
    with tarfile.open(path, "w") as archive:
        for number, label in enumerate(labels):
            picture = io.BytesIO()
            Image.new("L", (8, 8), number).save(picture, "PNG")
            for name, data in ((f"{number}.png", picture.getvalue()), (f"{number}.cls", str(label).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return str(path), list(labels)


# No labels


@pytest.fixture
def unlabelled(tmp_path) -> str:
    """A flat folder of digits."""
    digits = load_dataset("digits#train", limit=40)
    (tmp_path / "flat").mkdir()
    for position, image in enumerate(digits.images):
        Image.fromarray(image[..., 0]).save(tmp_path / "flat" / f"{position:02d}.png")
    return str(tmp_path / "flat")


def test_images_without_labels_learn_what_the_full_model_answers(unlabelled):
    job = job_of(training=unlabelled, overrides={"steps": 0, "batch": 20})
    assert job.training.class_names == tuple("0123456789")
    images, labels = job.batches().batch(0)
    with torch.no_grad():
        assert labels.tolist() == job.model.module(images).argmax(1).tolist()


def test_the_names_of_classes_may_come_from_the_validation_data_alone(unlabelled, user_model):
    job = job_of(user_model, training=unlabelled)
    assert job.training.class_names == job.model.class_names == tuple("0123456789")


@pytest.fixture
def user_model(tmp_path, monkeypatch) -> str:
    """A model that does not name its classes."""
    name = f"nameless_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "from packager.inputs.model_loader import load_model\n"
        "def build():\n"
        "    loaded = load_model('zoo:resnet_digits')\n"
        "    loaded.module.input_shape = loaded.input_shape\n"
        "    loaded.module.preprocessing = loaded.preprocessing\n"
        "    return loaded.module\n"
    )
    monkeypatch.chdir(tmp_path)
    return f"{name}:build"


def test_validation_data_need_labels(unlabelled):
    with pytest.raises(DataError, match=r"validation samples of .*flat have no labels") as caught:
        job_of(validation=unlabelled)
    assert "one folder per class" in str(caught.value.hint)


# What is left out


def test_corrupt_images_are_told_in_the_notes(tmp_path):
    for number in range(120):
        folder = tmp_path / "many" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), number).save(folder / f"{number:03d}.png")
    (tmp_path / "many" / "0" / "004.png").write_bytes(b"broken")
    job = job_of(training=str(tmp_path / "many"))
    assert len(job.training) == 119
    assert job.notes[0] == "1 of 120 images are corrupt and were left out: 0/004.png"


# Samples, from memory or from files


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("count", [None, 7])
def test_validation_comes_in_batches_in_stored_order(two_digits, streamed, count):
    job = job_of(validation=two_digits)
    if streamed:
        job = replace(job, validation=in_files(two_digits, job))
    batches = list(job.validation_batches(count=count, batch=3))
    assert [len(labels) for _, labels in batches] == ([3, 3, 2] if count is None else [3, 3, 1])
    images, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    assert (images.dtype, labels.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(images, job.prepared(count=count))
    if count is None:
        assert labels.tolist() == job.validation.labels.tolist()
        np.testing.assert_array_equal(job.held_out(100)[0].numpy(), images)


def in_files(reference: str, job) -> ImageSet:
    label = lambda classes, _: (job.model.class_names, [int(one) for one in classes])  # noqa: E731
    own = job.model.preprocessing
    loaded = load_images(reference, own, size=own.resize, label=label, progress=SilentProgress(), kept_bytes=0)
    return loaded.images


@pytest.mark.parametrize("share", [WHOLE, Share(1, 2)])
def test_training_from_files_sees_the_batches_of_memory(two_digits, share):
    job = job_of(training=two_digits, overrides={"steps": 0, "batch": 4, "variants": 2})
    streamed = replace(job, training=in_files(two_digits, job))
    kept, decoded = job.batches(share), streamed.batches(share)
    for step in (0, 1, 2, 3, 8, 1):
        for first, second in zip(kept.batch(step), decoded.batch(step), strict=True):
            assert torch.equal(first, second)
    assert torch.equal(kept.plain(2, 5)[0], decoded.plain(2, 5)[0])
    assert torch.equal(job.training_samples(5), streamed.training_samples(5))


def test_a_job_whose_data_stay_in_files_is_described_by_them(two_digits):
    job = job_of(training=two_digits)
    first, second = (replace(job, training=in_files(two_digits, job)).description() for _ in range(2))
    assert first == second


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
