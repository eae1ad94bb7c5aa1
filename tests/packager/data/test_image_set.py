"""Images that are decoded when they are needed: the same pixels as in memory, corrupt ones left out, flat memory."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from device_sdk.data.datasets import ImageDataset, load_dataset
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import DataError
from device_sdk.progress import SilentProgress
from packager.data.image_set import UNLABELLED, BatchDecoder, ImageSet, Loaded, load_images

COLOUR = Preprocessing(1 / 255, (0.5,) * 3, (0.5,) * 3, resize=(6, 6), crop=0.9, interpolation="bicubic")
GREY = Preprocessing(1 / 255, (0.5,), (0.5,), resize=(6, 6), channels=1)


def jpeg(number: int, *, mode: str = "RGB") -> bytes:
    random = np.random.default_rng(number)
    buffer = io.BytesIO()
    Image.fromarray(random.integers(0, 256, (9, 12 + number % 3, 3), dtype=np.uint8)).convert(mode).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path) -> Path:
    """250 photographs of two classes, some grey, some CMYK."""
    for number in range(250):
        folder = tmp_path / "pictures" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        mode = {3: "L", 5: "CMYK"}.get(number % 7, "RGB")
        (folder / f"{number:04d}.jpg").write_bytes(jpeg(number, mode=mode))
    return tmp_path / "pictures"


def by_data(classes, indexed):
    return tuple(classes), range(len(classes))


def load(reference: object, *, streamed: bool, preprocessing: Preprocessing = COLOUR) -> Loaded:
    size = preprocessing.resize
    kept = {"kept_bytes": 0} if streamed else {}
    return load_images(str(reference), preprocessing, size=size, label=by_data, progress=SilentProgress(), **kept)


def spoil(folder: Path, numbers: range, *, head: bool) -> None:
    """Images that are no images, or that end early."""
    for number in numbers:
        path = folder / ("cat", "dog")[number % 2] / f"{number:04d}.jpg"
        path.write_bytes(b"nothing" if head else path.read_bytes()[:-60])


def all_batches(decoder: BatchDecoder, steps: int) -> None:
    for step in range(steps):
        decoder.batch(step)


def test_a_small_set_is_decoded_once_as_on_the_device(pictures):
    images = load(pictures, streamed=False).images
    expected = load_dataset(str(pictures), preprocessing=COLOUR)
    assert isinstance(images, ImageDataset)
    np.testing.assert_array_equal(images.images, expected.images)
    assert images.labels.tolist() == expected.labels.tolist()
    assert (images.names, images.class_names) == (expected.names, expected.class_names)


@pytest.mark.parametrize("part", ["", "#search"])
def test_a_large_set_reads_the_same_pixels_when_they_are_needed(pictures, part):
    kept, streamed = (load(f"{pictures}{part}", streamed=one).images for one in (False, True))
    assert isinstance(streamed, ImageSet)
    assert list(streamed.names) == list(kept.names)
    assert streamed.labels.tolist() == kept.labels.tolist()
    chosen = np.array([5, 0, 9, 5])
    np.testing.assert_array_equal(streamed.read(chosen).pixels, kept.images[chosen])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_few_corrupt_images_are_left_out_and_counted(pictures, streamed):
    spoil(pictures, range(10, 12), head=True)
    loaded = load(pictures, streamed=streamed)
    assert len(loaded.images) == 248
    assert loaded.report.notes[0].startswith(
        "2 of 250 images are corrupt and were left out: cat/0010.jpg, dog/0011.jpg"
    )
    assert "cat/0010.jpg" not in loaded.images.names


@pytest.mark.parametrize("streamed", [False, True])
def test_more_than_a_tenth_of_corrupt_images_is_refused(pictures, streamed):
    spoil(pictures, range(10, 36), head=True)
    with pytest.raises(DataError, match=r"26 of the 250 images of .* are corrupt, more than 10%: .*cat/0010\.jpg"):
        load(pictures, streamed=streamed)


def test_images_that_end_early_are_replaced_by_the_next_or_left_out(pictures):
    spoil(pictures, range(10, 14, 2), head=False)  # neighbours among the cats
    images = load(pictures, streamed=True).images
    at = list(images.names).index("cat/0010.jpg")
    wanted = np.array([at - 1, at, at + 3])
    assert images.read(wanted).positions.tolist() == [at - 1, at + 3]
    filled = images.read(wanted, fill=True)
    assert filled.positions.tolist() == [at - 1, at + 2, at + 3]
    assert sorted(filled.corrupt) == [at, at + 1]
    np.testing.assert_array_equal(filled.pixels[1], images.read(np.array([at + 2])).pixels[0])
    images.note(filled.corrupt)


def test_corrupt_images_that_are_met_one_after_the_other_add_up(pictures):
    spoil(pictures, range(10, 40), head=False)
    images = load(pictures, streamed=True).images
    decoder = BatchDecoder(images, lambda step: np.arange(step * 10, step * 10 + 10), fill=True, workers=0)
    with pytest.raises(DataError, match="more than 10%"):
        all_batches(decoder, 25)


def test_colour_images_for_a_grey_model_are_refused_by_name(pictures):
    with pytest.raises(DataError, match=r"cat/0000\.jpg is a colour image; the model takes 1 channel"):
        load(pictures, streamed=False, preprocessing=GREY)


def test_images_without_labels_say_so(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
    for streamed in (False, True):
        assert load(tmp_path, streamed=streamed).images.labels.tolist() == [UNLABELLED] * 3


def test_a_part_that_is_not_there_names_those_that_are(pictures):
    with pytest.raises(DataError, match="no part 'train'") as caught:
        load(f"{pictures}#train", streamed=False)
    assert "search, calibration, report" in str(caught.value.hint)


# What a packaging run depends on


def test_the_digest_needs_no_pixels_and_follows_the_files(pictures):
    first = load(pictures, streamed=True).images.digest()
    assert load(pictures, streamed=True).images.digest() == first
    (pictures / "cat" / "0000.jpg").write_bytes(jpeg(1000))
    changed = load(pictures, streamed=True).images.digest()
    (pictures / "cat" / "0000.jpg").unlink()
    assert len({first, changed, load(pictures, streamed=True).images.digest()}) == 3


# Batches decoded ahead


def batches_of(total: int):
    return lambda step: None if step >= total else np.array([step, 3 * step + 1, 7])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_step_gives_the_same_images_whoever_decodes_them(pictures, workers):
    images = load(pictures, streamed=True).images
    decoder = BatchDecoder(images, batches_of(20), fill=True, workers=workers)
    for step in (0, 1, 2, 3, 3, 7, 8, 9, 2, 18, 19):  # with repetitions and leaps, and to the end
        positions = batches_of(20)(step)
        decoded = decoder.batch(step)
        assert decoded.positions.tolist() == positions.tolist()
        np.testing.assert_array_equal(decoded.pixels, images.read(positions).pixels)
    decoder.close()


def test_a_lost_worker_is_done_without(pictures):
    import multiprocessing

    images = load(pictures, streamed=True).images
    decoder = BatchDecoder(images, batches_of(50), fill=True, workers=1)
    before = set(multiprocessing.active_children())
    decoder.batch(0)
    decoder.batch(1)
    (worker,) = set(multiprocessing.active_children()) - before
    worker.kill()
    for step in range(2, 12):
        np.testing.assert_array_equal(decoder.batch(step).pixels, images.read(batches_of(50)(step)).pixels)


def test_what_a_worker_cannot_use_keeps_its_message(pictures):
    Image.new("1", (10_000, 5_001)).save(pictures / "cat" / "0008.png")
    images = load_images_without_check(pictures)
    at = list(images.names).index("cat/0008.png")
    decoder = BatchDecoder(images, lambda step: np.array([step]), fill=True, workers=1)
    with pytest.raises(DataError, match=r"0008\.png decodes to 10000×5001 pixels"):
        all_batches(decoder, at + 1)


def test_an_image_of_sixteen_bits_is_left_out_and_counted(pictures):
    Image.new("I;16", (9, 9)).save(pictures / "cat" / "0008.png")
    loaded = load(pictures, streamed=False)
    assert "1 of 251 images are corrupt and were left out: cat/0008.png" in loaded.report.notes[0]


def load_images_without_check(folder: Path) -> ImageSet:
    from device_sdk.data.sources import open_records

    records = open_records(str(folder))
    return ImageSet(records, COLOUR, (6, 6), np.zeros(len(records), dtype=np.int64), ("cat", "dog"))


# Memory

_TRAINS = """
import resource, sys
import numpy as np
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.progress import SilentProgress
from packager.data.image_set import load_images
from packager.data.batches import BatchSource
import torch.utils.data

own = Preprocessing(1 / 255, (0.5,) * 3, (0.5,) * 3, resize=(224, 224), crop=0.875)
label = lambda classes, indexed: (tuple(classes), range(len(classes)))
images = load_images(
    sys.argv[1], own, size=(224, 224), label=label, progress=SilentProgress(), kept_bytes=int(sys.argv[2])
).images
source = BatchSource(images, own, batch=16, seed=0, flip=True, crop=0.125)
for step in range(12):
    source.batch(step)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_mb(folder: Path, *, kept_bytes: int = 0) -> float:
    command = [sys.executable, "-c", _TRAINS, str(folder), str(kept_bytes)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout) / 1e3


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Folders of so many small photographs."""
    data = jpeg(0), jpeg(1)

    def make(count: int) -> Path:
        root = tmp_path_factory.mktemp(f"images{count}")
        for number in range(count):
            folder = root / ("cat", "dog")[number % 2]
            folder.mkdir(exist_ok=True)
            (folder / f"{number:06d}.jpg").write_bytes(data[number % 2])
        return root

    return make


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in other units elsewhere")
def test_ten_times_the_images_take_no_more_memory(many):
    few, more = peak_mb(many(300)), peak_mb(many(3_000))
    assert more - few < 20  # their pixels are 45 and 451 MB


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ru_maxrss is in other units elsewhere")
def test_a_hundred_thousand_images_take_little_more_than_a_thousand(many):
    few, more = peak_mb(many(1_000)), peak_mb(many(100_000))
    assert more - few < 60  # names and labels
