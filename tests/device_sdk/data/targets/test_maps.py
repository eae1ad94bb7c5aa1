from __future__ import annotations

import zipfile

import numpy as np
import pytest
from PIL import Image

from device_sdk.data.targets import load_maps
from device_sdk.errors import DataError

CLASSES = ("road", "sky")


def write(root, name, pixels, mode="RGB"):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8), mode=mode).save(path)


@pytest.fixture
def folder(tmp_path):
    for number in range(3):
        write(tmp_path, f"images/val/{number}.png", np.full((4, 6, 3), 60 * number))
        write(tmp_path, f"labels/val/{number}.png", np.array([[0, 1, 7]] * 2), mode="L")
    return tmp_path


def test_images_and_maps_get_the_models_size_and_other_numbers_are_ignored(folder):
    found = load_maps(f"{folder}#val", CLASSES, (2, 3))
    assert found.images.shape == (3, 2, 3, 3)
    assert found.images[2].max() == 120
    assert found.labels.tolist() == [[[0, 1, 255], [0, 1, 255]]] * 3
    assert found.names == ("images/val/0.png", "images/val/1.png", "images/val/2.png")


def test_a_zip_and_the_layout_of_segnet_are_read_alike(folder, tmp_path):
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for number in range(3):
            made.write(folder / f"images/val/{number}.png", f"val/{number}.png")
            made.write(folder / f"labels/val/{number}.png", f"valannot/{number}.png")
    one, other = load_maps(f"{archive}#val", CLASSES, (2, 3)), load_maps(f"{folder}#val", CLASSES, (2, 3))
    np.testing.assert_array_equal(one.images, other.images)
    np.testing.assert_array_equal(one.labels, other.labels)


def test_a_palette_gives_class_numbers(folder):
    picture = Image.fromarray(np.array([[0, 1, 0]] * 2, dtype=np.uint8), mode="P")
    picture.putpalette([10, 20, 30, 200, 0, 0] + [0] * 762)
    picture.save(folder / "labels/val/0.png")
    assert load_maps(f"{folder}#val", CLASSES, (2, 3)).labels[0].tolist() == [[0, 1, 0]] * 2


def test_an_image_without_a_map_is_left_out_and_told(folder):
    (folder / "labels/val/1.png").unlink()
    found = load_maps(f"{folder}#val", CLASSES, (2, 3))
    assert len(found) == 2
    assert "1 of 3 images have no map of classes: images/val/1.png" in found.notes[0]


def test_a_limit_spreads_over_all(folder):
    assert load_maps(f"{folder}#val", CLASSES, (2, 3), 2).names == ("images/val/0.png", "images/val/2.png")


def test_what_is_no_set_of_maps_is_refused_in_one_line(folder):
    with pytest.raises(DataError, match="no images in images/train/ or train/"):
        load_maps(f"{folder}#train", CLASSES, (2, 3))
    write(folder, "labels/val/0.png", np.zeros((2, 3, 3)))
    with pytest.raises(DataError, match=r"labels/val/0\.png is a RGB image"):
        load_maps(f"{folder}#val", CLASSES, (2, 3))
    (folder / "labels/val/0.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match=r"labels/val/0\.png is not a PNG"):
        load_maps(f"{folder}#val", CLASSES, (2, 3))
    for number in range(3):
        write(folder, f"labels/val/{number}.png", np.full((2, 3), 9), mode="L")
    with pytest.raises(DataError, match="no pixel has one of the 2 classes"):
        load_maps(f"{folder}#val", CLASSES, (2, 3))
    with pytest.raises(DataError, match="neither a folder nor a zip"):
        load_maps(str(folder / "nothing"), CLASSES, (2, 3))
