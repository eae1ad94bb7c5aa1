from __future__ import annotations

import contextlib
import hashlib
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from device_sdk.data.datasets import ImageDataset, dirichlet_shift, draw_like, load_dataset, split
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.data.records import part_of
from device_sdk.errors import DataError, UsageError


def dataset(labels: list[int], *, classes: int | None = None) -> ImageDataset:
    """One pixel per image, holding its position."""
    count = len(labels)
    class_names = tuple(f"class{label}" for label in range(classes or max(labels) + 1))
    return ImageDataset(
        images=np.arange(count, dtype=np.uint8).reshape(count, 1, 1, 1),
        labels=np.array(labels, dtype=np.int64),
        class_names=class_names,
        names=tuple(f"class{label}/{position}.png" for position, label in enumerate(labels)),
    )


def mix(data: ImageDataset) -> list[int]:
    return np.bincount(data.labels, minlength=len(data.class_names)).tolist()


def save(path, *, size=(4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size).save(path)


class RecordingProgress:
    """Adds up what is reported."""

    def __init__(self) -> None:
        self.total = 0.0
        self.done = 0.0

    @contextlib.contextmanager
    def task(self, name: str, total: float) -> Iterator[RecordingProgress]:
        self.total = total
        yield self

    def advance(self, amount: float = 1.0) -> None:
        self.done += amount

    def note(self, text: str) -> None:
        raise AssertionError("nothing to remark on reading")


labels_of_classes = st.lists(st.integers(0, 4), min_size=2, max_size=120)


# Parts


@given(name=st.text(st.characters(codec="utf-8"), min_size=1))
def test_the_part_of_an_image_is_the_last_digit_of_its_names_hash(name):
    digit = int(hashlib.sha256(name.encode()).hexdigest(), 16) % 10
    assert part_of(name) == {0: "search", 1: "calibration"}.get(digit, "report")


@pytest.mark.parametrize(("part", "count"), [("search", 512), ("calibration", 499), ("report", 3989)])
def test_the_parts_of_cifar10_have_their_published_sizes(shared_data, part, count):
    data = load_dataset(f"{shared_data}/cifar10/test.zip#{part}")
    assert len(data) == count
    assert data.images.shape == (count, 32, 32, 3)
    assert data.class_names[:4] == ("airplane", "automobile", "bird", "cat")


def test_parts_of_a_folder_are_disjoint_and_complete(tmp_path):
    for number in range(30):
        save(tmp_path / ("cat", "dog")[number % 2] / f"{number}.png")
    parts = [load_dataset(f"{tmp_path}#{part}").names for part in ("search", "calibration", "report")]
    assert sorted(sum(parts, ())) == list(load_dataset(str(tmp_path)).names)


def test_an_unknown_part_names_the_known_ones(tmp_path):
    save(tmp_path / "cat/1.png")
    save(tmp_path / "dog/1.png")
    with pytest.raises(DataError, match="no part 'train'") as caught:
        load_dataset(f"{tmp_path}#train")
    assert "search, calibration, report" in str(caught.value.hint)


def test_an_empty_part_is_refused(tmp_path):
    names = ("cat/1.png", "dog/1.png")
    for name in names:
        save(tmp_path / name)
    filled = {part_of(name) for name in names}
    empty = next(part for part in ("search", "calibration", "report") if part not in filled)
    with pytest.raises(DataError, match=f"the part '{empty}' of .* holds no image"):
        load_dataset(f"{tmp_path}#{empty}")


def test_a_folder_with_a_hash_in_its_name_can_be_loaded(tmp_path):
    save(tmp_path / "a#b" / "cat/1.png")
    save(tmp_path / "a#b" / "dog/1.png")
    assert len(load_dataset(f"{tmp_path}/a#b")) == 2


# Digits


def test_digits_are_grey_images_of_ten_classes():
    data = load_dataset("digits")
    assert data.images.shape == (1797, 8, 8, 1)
    assert (data.images.dtype, data.images.max()) == (np.uint8, 16)
    assert data.class_names == tuple("0123456789")


def test_the_parts_of_digits_are_disjoint_complete_and_hold_all_classes():
    parts = [load_dataset(f"digits#{part}") for part in ("search", "calibration", "report", "train")]
    names = sorted(name for part in parts for name in part.names)
    assert names == list(load_dataset("digits").names)
    assert [len(part) for part in parts] == [372, 178, 340, 907]
    assert all(min(mix(part)) > 10 for part in parts)


# Loading


def test_a_limit_keeps_a_fixed_sample_of_all_classes(shared_data):
    reference = f"{shared_data}/cifar10/test.zip#search"
    few, more = load_dataset(reference, limit=100), load_dataset(reference, limit=200)
    assert (len(few), len(more)) == (100, 200)
    assert set(few.names) < set(more.names)
    assert min(mix(few)) > 0


def test_images_of_different_sizes_are_refused_by_name(tmp_path):
    save(tmp_path / "cat/1.png")
    save(tmp_path / "dog/1.png", size=(6, 4))
    with pytest.raises(DataError, match=r"cat/1\.png is 4×4, dog/1\.png is 4×6"):
        load_dataset(str(tmp_path))


def test_resizing_brings_images_to_one_size(tmp_path):
    save(tmp_path / "cat/1.png")
    save(tmp_path / "dog/1.png", size=(6, 4))
    assert load_dataset(str(tmp_path), resize=(3, 5)).images.shape == (2, 3, 5, 3)


def test_progress_counts_every_image():
    progress = RecordingProgress()
    data = load_dataset("digits", progress=progress)
    assert progress.done == progress.total == len(data)


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"limit": -1}, {"resize": (0, 4)}])
def test_senseless_arguments_are_usage_errors(arguments):
    with pytest.raises(UsageError):
        load_dataset("digits", **arguments)


@pytest.mark.alone
def test_reading_images_takes_little_longer_than_decoding_them(shared_data):
    path = shared_data / "cifar10" / "test.zip"

    def decode():
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".png"):
                    Image.open(BytesIO(archive.read(name))).convert("RGB").tobytes()

    assert processor_seconds(lambda: load_dataset(str(path))) < 5 * processor_seconds(decode)


def processor_seconds(call):
    start = time.process_time()
    call()
    return time.process_time() - start


# Labels of another list of classes


def test_relabelling_follows_the_names_of_the_classes():
    data = dataset([0, 1, 1]).relabelled(("x", "class1", "y", "class0"))
    assert data.labels.tolist() == [3, 1, 1]


def test_relabelling_refuses_classes_that_the_model_does_not_know():
    with pytest.raises(DataError, match="class1"):
        dataset([0, 1]).relabelled(("class0", "other"))


def test_relabelling_takes_further_names_of_a_class():
    data = dataset([0, 1, 1]).relabelled(("cat", "dog"), (("class1",), ("class0",)))
    assert data.labels.tolist() == [1, 0, 0]
    assert data.class_names == ("cat", "dog")


def test_loading_for_a_model_crops_as_it_does(tmp_path):
    save(tmp_path / "cat/1.png", size=(9, 4))
    save(tmp_path / "dog/1.png", size=(6, 4))
    own = Preprocessing(1.0, (0.0,) * 3, (1.0,) * 3, resize=(2, 2), crop=0.5)
    assert load_dataset(str(tmp_path), preprocessing=own).images.shape == (2, 2, 2, 3)


# Splitting


@given(labels=labels_of_classes, share=st.floats(0.01, 0.99), seed=st.integers(0, 2**64 - 1))
def test_a_split_is_disjoint_complete_and_stratified(labels, share, seed):
    data = dataset(labels)
    kept, held = split(data, holdout_share=share, seed=seed)
    assert sorted(kept.names + held.names) == sorted(data.names)
    for label, count in Counter(labels).items():
        held_of_class = held.labels.tolist().count(label)
        assert abs(held_of_class - share * count) <= 1
        assert count == 1 or 0 < held_of_class < count


@given(labels=labels_of_classes, seed=st.integers(0, 99))
def test_a_split_is_decided_by_its_seed(labels, seed):
    first, second = (split(dataset(labels), holdout_share=0.4, seed=seed)[1] for _ in range(2))
    assert first.names == second.names


def test_a_split_keeps_images_with_their_names_and_labels():
    data = dataset([0, 1] * 20)
    for side in split(data, holdout_share=0.3, seed=1):
        positions = side.images[:, 0, 0, 0].tolist()
        assert side.names == tuple(data.names[position] for position in positions)
        assert side.labels.tolist() == [int(data.labels[position]) for position in positions]


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UsageError, match="between 0 and 1"):
        split(dataset([0, 1]), holdout_share=share, seed=0)


# Label shift


@settings(deadline=None)
@given(
    labels=labels_of_classes,
    alpha=st.floats(0.05, 50),
    share=st.floats(0.01, 1),
    seed=st.integers(0, 2**32),
)
def test_a_shifted_sample_has_its_size_and_no_image_twice(labels, alpha, share, seed):
    data = dataset(labels, classes=5)
    count = max(1, round(share * len(data)))
    sample = dirichlet_shift(data, alpha=alpha, count=count, seed=seed)
    assert len(sample) == len(set(sample.names)) == count
    assert set(sample.names) <= set(data.names)
    assert sample.names == dirichlet_shift(data, alpha=alpha, count=count, seed=seed).names


def test_a_small_alpha_shifts_and_a_large_one_does_not():
    data = dataset([label for label in range(10) for _ in range(25)])
    even = mix(dirichlet_shift(data, alpha=1e5, count=100, seed=3))
    shifted = mix(dirichlet_shift(data, alpha=0.1, count=100, seed=3))
    assert max(even) - min(even) <= 2
    assert shifted.count(0) >= 3


def test_devices_with_other_seeds_get_other_mixes():
    data = dataset([label for label in range(10) for _ in range(25)])
    mixes = {tuple(mix(dirichlet_shift(data, alpha=0.5, count=100, seed=seed))) for seed in range(5)}
    assert len(mixes) == 5


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), alpha=st.floats(0.1, 10))
def test_a_second_sample_is_disjoint_and_has_exactly_the_same_mix(seed, alpha):
    data = dataset([label for label in range(5) for _ in range(50)])
    first = dirichlet_shift(data, alpha=alpha, count=25, seed=seed)
    second = draw_like(data, like=first, count=25, seed=seed)
    assert not set(first.names) & set(second.names)
    assert mix(first) == mix(second)


def test_a_mix_that_cannot_be_kept_is_refused_instead_of_bent():
    data = dataset([0] * 10 + [1] * 50)
    like = data.take(list(range(8)))
    with pytest.raises(DataError, match="needs 5 images of class0, but only 2 are left"):
        draw_like(data, like=like, count=5, seed=0)


def test_more_images_than_there_are_cannot_be_drawn():
    with pytest.raises(DataError, match="3 images are needed, but there are only 2"):
        dirichlet_shift(dataset([0, 1]), alpha=1, count=3, seed=0)


@pytest.mark.parametrize(("alpha", "count"), [(0, 1), (-1, 1), (1, 0), (1, -1)])
def test_senseless_draws_are_usage_errors(alpha, count):
    with pytest.raises(UsageError, match="above zero"):
        dirichlet_shift(dataset([0, 1]), alpha=alpha, count=count, seed=0)


def test_samples_of_different_classes_have_no_common_mix():
    with pytest.raises(UsageError, match="different classes"):
        draw_like(dataset([0, 1]), like=dataset([0, 1, 2]), count=1, seed=0)
