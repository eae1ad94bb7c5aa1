from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from device_sdk.data.targets import classes_of_boxes, load_boxes
from device_sdk.errors import DataError

CLASSES = ("cell", "plate")
BOX = "<object><name>{}</name><bndbox><xmin>2</xmin><ymin>0</ymin><xmax>{}</xmax><ymax>3</ymax></bndbox></object>"
SIZE = "<size><width>6</width><height>4</height></size>"


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".jpg"):
        Image.fromarray(np.zeros((4, 6, 3), dtype=np.uint8)).save(path)
    else:
        path.write_text(text)


@pytest.fixture
def voc(tmp_path):
    for name in ("a", "b"):
        write(tmp_path, f"JPEGImages/{name}.jpg", "")
    write(
        tmp_path, "Annotations/a.xml", f"<annotation>{SIZE}{BOX.format('plate', 8)}{BOX.format('cell', 4)}</annotation>"
    )
    write(tmp_path, "Annotations/b.xml", f"<annotation>{SIZE}</annotation>")
    write(tmp_path, "ImageSets/Main/val.txt", "a\nb\n")
    return tmp_path


@pytest.fixture
def yolo(tmp_path):
    for name in ("a", "b"):
        write(tmp_path, f"images/val/{name}.jpg", "")
    write(tmp_path, "labels/val/a.txt", "1 0.5 0.375 0.3333333 0.75\n\n0 0.1 0.5 0.4 0.2\n")
    write(tmp_path, "labels/val/b.txt", "")
    return tmp_path


def test_boxes_of_voc_are_shares_of_the_image_and_end_at_its_border(voc):
    found = load_boxes(f"{voc}#val", CLASSES, (2, 3))
    assert found.images.shape == (2, 2, 3, 3)
    np.testing.assert_allclose(found.labels[0], [[1, 1 / 3, 0, 1, 0.75], [0, 1 / 3, 0, 2 / 3, 0.75]], atol=1e-6)
    assert found.labels[1, :, 0].tolist() == [-1, -1]


def test_boxes_of_yolo_are_the_same(yolo):
    found = load_boxes(f"{yolo}#val", CLASSES, (2, 3))
    np.testing.assert_allclose(found.labels[0], [[1, 1 / 3, 0, 2 / 3, 0.75], [0, 0, 0.4, 0.3, 0.6]], atol=1e-6)
    assert found.labels[1, :, 0].tolist() == [-1, -1]


def test_annotations_name_their_classes(voc, tmp_path):
    assert classes_of_boxes(f"{voc}#val") == ("cell", "plate")


def test_numbers_name_none(yolo):
    with pytest.raises(DataError, match="does not name its classes"):
        classes_of_boxes(f"{yolo}#val")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"<annotation>{SIZE}{BOX.format('dog', 4)}</annotation>", "has a box of 'dog'"),
        (f"<annotation>{BOX.format('cell', 4)}</annotation>", "has no number at size/width"),
        (f"<annotation>{SIZE}{BOX.format('cell', 'wide')}</annotation>", "has no number at bndbox/xmax"),
        ("<annotation>", "is not an annotation that can be read"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', "defines entities"),
    ],
)
def test_a_broken_annotation_is_refused_by_name(voc, text, said):
    (voc / "Annotations/a.xml").write_text(text)
    with pytest.raises(DataError, match=f"Annotations/a.xml {said}"):
        load_boxes(f"{voc}#val", CLASSES, (2, 3))


@pytest.mark.parametrize(
    ("line", "said"), [("2 0 0 1 1", "has the class 2"), ("0 0.1 x", "is not a class number and four")]
)
def test_a_broken_line_is_refused_by_number(yolo, line, said):
    (yolo / "labels/val/a.txt").write_text(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises(DataError, match=f"line 2 of labels/val/a.txt {said}"):
        load_boxes(f"{yolo}#val", CLASSES, (2, 3))


def test_a_part_that_lists_no_image_is_refused(voc):
    write(voc, "ImageSets/Main/test.txt", "c")
    with pytest.raises(DataError, match="lists c, which is not in JPEGImages"):
        load_boxes(f"{voc}#test", CLASSES, (2, 3))
