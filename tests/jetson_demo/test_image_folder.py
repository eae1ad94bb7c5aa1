from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from device_sdk.data.image_files import read_image
from jetson_demo.image_folder import NAMED_FILES, ImageFolder, find_images, spread
from pathweave import AdaptiveModel
from pathweave.errors import DataError


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_images_are_found_in_all_folders_below_sorted(tmp_path):
    touch(tmp_path, "b/2.PNG", "a.jpg", "b/c/1.jpeg", "notes.txt", ".hidden.png", ".git/x.png")
    assert [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)] == [
        "a.jpg",
        "b/2.PNG",
        "b/c/1.jpeg",
    ]


@pytest.mark.parametrize("names", [(), ("notes.txt", ".cache/a.png")])
def test_a_folder_without_images_is_an_error(tmp_path, names):
    with pytest.raises(DataError, match="no images"):
        find_images(touch(tmp_path, *names))


@pytest.mark.parametrize("name", ["nowhere", "file.png"])
def test_what_is_no_folder_is_an_error(tmp_path, name):
    touch(tmp_path, "file.png")
    with pytest.raises(DataError, match="no folder"):
        find_images(tmp_path / name)


@given(st.integers(0, 200), st.integers(1, 50))
def test_a_spread_choice_is_in_order_without_repeats_and_covers_all(available, count):
    paths = [Path(f"{number:03d}") for number in range(available)]
    chosen = spread(paths, count)
    assert len(chosen) == min(count, available)
    assert list(chosen) == sorted(set(chosen))
    gaps = np.diff([int(path.name) for path in chosen])
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_images_of_any_size_come_in_the_models_size(model, photos):
    paths = find_images(photos)
    assert len({Image.open(path).size for path in paths}) > 1
    assert ImageFolder(model, paths).sample(40, note=print).shape == (40, 20, 20, 3)


def test_a_frame_is_what_the_model_makes_of_the_image(model, photos):
    path = find_images(photos)[1]
    [frame] = ImageFolder(model, [path]).frames(loop=False, note=print)
    assert frame.name == str(path)
    assert np.array_equal(frame.tensor, model.prepare(read_image(path, channels=3)))


def test_grey_images_are_spread_over_colour(model, tmp_path):
    Image.new("L", (9, 9), 128).save(tmp_path / "grey.png")
    assert ImageFolder(model, [tmp_path / "grey.png"]).sample(1, note=print).shape == (1, 20, 20, 3)


def test_a_broken_image_is_noted_once_and_not_tried_again(model, own_photos):
    broken = own_photos / "broken.png"
    broken.write_bytes(b"\x89PNG")
    reader, notes = ImageFolder(model, find_images(own_photos)), []
    assert len(reader.sample(13, note=notes.append)) == 12
    broken.unlink()  # were it tried again, the reason would be another one
    assert len(list(islice(reader.frames(loop=True, note=notes.append), 30))) == 30
    assert len(notes) == 1
    assert "broken.png" in notes[0]
    assert list(reader.skipped) == [broken]


def test_an_image_that_vanishes_meanwhile_is_skipped(model, own_photos):
    paths = find_images(own_photos)
    reader, notes = ImageFolder(model, paths), []
    paths[3].unlink()
    assert len(list(reader.frames(loop=False, note=notes.append))) == 11
    assert list(reader.skipped) == [paths[3]]


def test_an_image_of_another_size_is_skipped_where_the_model_does_not_resize(tiny_as_it_was, photos, tmp_path):
    notes = []
    with AdaptiveModel.open(tiny_as_it_was, state_folder=tmp_path) as model:
        pixels = ImageFolder(model, find_images(photos)).sample(40, note=notes.append)
    assert pixels.shape == (10, 20, 20, 3)
    assert len(notes) == NAMED_FILES + 1
    assert all("expected images" in note and ".png: " in note for note in notes[:-1])
    assert "only counted" in notes[-1]


@pytest.mark.parametrize("loop", [False, True])
def test_if_no_image_can_be_used_it_says_why_instead_of_looking_for_ever(model, tmp_path, loop):
    touch(tmp_path, "a.png", "b.png")
    reader = ImageFolder(model, find_images(tmp_path))
    with pytest.raises(DataError, match=r"no image could be used; the first: .*a\.png"):
        list(reader.frames(loop=loop, note=lambda _: None))
    with pytest.raises(DataError, match="no image could be used"):
        reader.sample(2, note=lambda _: None)
