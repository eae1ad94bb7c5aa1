"""Images with boxes of objects, in the layouts of Pascal VOC and of YOLO."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import numpy as np
import numpy.typing as npt

from device_sdk.data.targets.file_tree import FileTree, image_of, images_below, open_tree, stem, text_of
from device_sdk.data.targets.target_dataset import LAYOUTS, Size, TargetDataset, with_target
from device_sdk.errors import DataError

_MOST_BOXES = 10_000  # of one image
Rows = list[list[float]]  # class, left, top, right, bottom in shares of the image


def load_boxes(reference: str, class_names: Sequence[str], size: Size, limit: int | None = None) -> TargetDataset:
    """The images of a folder or zip with the boxes of their annotations.

    Pascal VOC: ``JPEGImages/NAME.jpg``, ``Annotations/NAME.xml``, of a ``#part`` those that
    ``ImageSets/Main/PART.txt`` lists. YOLO: ``images/NAME.jpg``, ``labels/NAME.txt``, of a ``#part`` below
    ``images/PART`` and ``labels/PART``; a line is a class number, then centre and extent in shares of the image.
    ``labels``: float32 [count, most, 5]: class, left, top, right, bottom in shares; rows of class −1 are padding. An
    annotation without boxes is an image of nothing.

    Args, errors: as of ``load_maps``.
    """
    with open_tree(reference) as (tree, part):
        names = tree.names()
        if images_below(names, "JPEGImages"):
            targets, parsed = _voc(tree, names, part), _voc_boxes
        else:
            targets, parsed = _yolo(reference, names, part), _yolo_boxes
        kept, notes = with_target(targets, set(names), limit, location=reference, wanted="annotation of boxes")
        images = np.stack([image_of(tree, name, size) for name in kept])
        found = [_array(tree, targets[name], class_names, parsed) for name in kept]
    boxes = np.full((len(kept), max(1, *map(len, found)), 5), -1.0, dtype=np.float32)
    for row, one in zip(boxes, found, strict=True):
        row[: len(one)] = one
    return TargetDataset(images, boxes, tuple(class_names), tuple(kept), notes)


def classes_of_boxes(reference: str) -> tuple[str, ...]:
    """The classes that the annotations of Pascal VOC name, sorted (DataError; YOLO's files name none)."""
    with open_tree(reference) as (tree, part):
        names = tree.names()
        if not images_below(names, "JPEGImages"):
            raise DataError(f"{reference} does not name its classes", hint="--classes FILE, one per line")
        present, found = set(names), set[str]()
        for label in _voc(tree, names, part).values():
            root = _parsed(tree, label) if label in present else ElementTree.Element("annotation")
            found |= {(thing.findtext("name") or "").strip() for thing in root.iter("object")}
    return tuple(sorted(found))


def _voc(tree: FileTree, names: Sequence[str], part: str | None) -> dict[str, str]:
    """The annotation of each image."""
    images = {PurePosixPath(name).stem: name for name in images_below(names, "JPEGImages")}
    listed = list(images) if part is None else text_of(tree, f"ImageSets/Main/{part}.txt").split()
    unknown = [one for one in listed if one not in images]
    if unknown:
        raise DataError(f"{tree.location}: the part {part} lists {unknown[0]}, which is not in JPEGImages/")
    return {images[one]: f"Annotations/{one}.xml" for one in listed}


def _yolo(reference: str, names: Sequence[str], part: str | None) -> dict[str, str]:
    below = f"/{part}" if part else ""
    images = images_below(names, f"images{below}")
    if not images:
        raise DataError(f"{reference} has no images in JPEGImages/ or images{below}/", hint=LAYOUTS)
    return {name: f"labels{stem(name).removeprefix('images')}.txt" for name in images}


def _array(
    tree: FileTree, label: str, class_names: Sequence[str], parsed: Callable[[FileTree, str, Sequence[str]], Rows]
) -> npt.NDArray[np.float32]:
    """The boxes of one image [boxes, 5], within the image; empty ones are left out."""
    rows = np.array(parsed(tree, label, class_names), dtype=np.float32).reshape(-1, 5)
    if len(rows) > _MOST_BOXES or not np.isfinite(rows).all():
        raise DataError(f"{tree.location}: {label} has boxes that are not finite, or more than {_MOST_BOXES:,}")
    rows[:, 1:] = rows[:, 1:].clip(0.0, 1.0)
    return rows[(rows[:, 3] > rows[:, 1]) & (rows[:, 4] > rows[:, 2])]


def _parsed(tree: FileTree, label: str) -> ElementTree.Element:
    text = text_of(tree, label)
    if "<!ENTITY" in text:
        raise DataError(f"{tree.location}: {label} defines entities, which are not read")
    try:
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{tree.location}: {label} is not an annotation that can be read: {error}") from error


def _voc_boxes(tree: FileTree, label: str, class_names: Sequence[str]) -> Rows:
    root, rows = _parsed(tree, label), []
    width, height = (_number(root, f"size/{side}", tree, label) for side in ("width", "height"))
    if not (width > 0 and height > 0):
        raise DataError(f"{tree.location}: {label} does not state the image's size")
    for thing in root.iter("object"):
        name = (thing.findtext("name") or "").strip()
        if name not in class_names:
            raise DataError(
                f"{tree.location}: {label} has a box of {name[:80]!r}", hint=f"the classes are {', '.join(class_names)}"
            )
        left, top, right, bottom = (
            _number(thing, f"bndbox/{side}", tree, label) for side in ("xmin", "ymin", "xmax", "ymax")
        )
        rows.append([float(class_names.index(name)), left / width, top / height, right / width, bottom / height])
    return rows


def _number(parent: ElementTree.Element, path: str, tree: FileTree, label: str) -> float:
    try:
        value = float(parent.findtext(path) or "nan")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{tree.location}: {label} has no number at {path}")
    return value


def _yolo_boxes(tree: FileTree, label: str, class_names: Sequence[str]) -> Rows:
    rows: Rows = []
    for number, line in enumerate(text_of(tree, label).splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        where = f"{tree.location}: line {number} of {label}"
        try:
            kind, x, y, width, height = int(fields[0]), *map(float, fields[1:])
        except ValueError:
            raise DataError(f"{where} is not a class number and four shares of the image") from None
        if not 0 <= kind < len(class_names):
            raise DataError(
                f"{where} has the class {kind}", hint=f"the classes are numbered 0 to {len(class_names) - 1}"
            )
        rows.append([float(kind), x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    return rows
