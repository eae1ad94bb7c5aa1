"""Images of libraries: Hugging Face data sets on disk, and scikit-learn's digits."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.data.image_files import Pixels
from device_sdk.data.records import Records, stamps
from device_sdk.errors import CorruptImageError, DataError
from device_sdk.extras import require

DIGITS_PARTS = ("search", "search", "calibration", "report", "report", *("train",) * 5)


@dataclass(frozen=True, eq=False)
class _Digits(Records):
    """scikit-learn's digits. ``pixels``: uint8 [8, 8, 1] by name."""

    pixels: Mapping[str, Pixels] = field(default_factory=dict)

    def image(self, position: int) -> Pixels:
        """See ``Records``; these are no files."""
        return self.pixels[self.names[position]]


def digit_records() -> Records:
    """scikit-learn's 1,797 grey digits, 8×8, values 0 to 16, named "3/0013.png" by their position there."""
    bunch = require("sklearn.datasets", extra="packager").load_digits()
    images = bunch.images.astype(np.uint8)[..., np.newaxis]  # [1797, 8, 8, 1], values 0 to 16
    pixels = {f"{label}/{position:04d}.png": images[position] for position, label in enumerate(bunch.target)}
    names = sorted(pixels)
    labels = tuple(name.split("/", 1)[0] for name in names)
    sizes = np.full(len(names), images[0].nbytes)
    reader = _Bytes([pixels[name] for name in names])
    return _Digits("digits", names, labels, stamps(sizes), reader, parts=DIGITS_PARTS, pixels=pixels)


@dataclass(frozen=True, eq=False)
class _Bytes:
    images: Sequence[Pixels]

    def __call__(self, position: int) -> bytes:
        return self.images[position].tobytes()


@dataclass(frozen=True, eq=False)
class _Rows:
    """The column of a ``datasets.Dataset`` that holds encoded images."""

    rows: Any
    column: str

    def __call__(self, position: int) -> bytes:
        image = self.rows[position][self.column]
        if image and image["bytes"]:
            return bytes(image["bytes"])
        try:
            return Path((image or {})["path"]).read_bytes()
        except (KeyError, TypeError, OSError) as error:
            raise CorruptImageError("its row holds no image") from error


def hub_records(folder: Path, split: str | None) -> tuple[Records, bool]:
    """The images of a Hugging Face data set, and whether ``split`` was one of its own splits and has been applied."""
    datasets = require("datasets", extra="data")
    try:
        found = datasets.load_from_disk(str(folder))
    except Exception as error:  # the library raises various errors
        raise DataError(f"{folder} is not a readable data set: {error}") from error
    own_splits = isinstance(found, datasets.DatasetDict)
    if own_splits:
        if split not in found:
            raise DataError(f"{folder} has the splits {', '.join(found)}", hint=f"write {folder}#{next(iter(found))}")
        found = found[split]
    images = [name for name, kind in found.features.items() if isinstance(kind, datasets.Image)]
    classes = [name for name, kind in found.features.items() if isinstance(kind, datasets.ClassLabel)]
    if len(images) != 1 or len(classes) > 1:
        raise DataError(f"{folder} has {len(images)} columns of images and {len(classes)} of classes; one each is read")
    rows = found.cast_column(images[0], datasets.Image(decode=False))
    labels: tuple[str, ...] = ()
    if classes:
        known, numbers = found.features[classes[0]].names, found[classes[0]]
        labels = tuple(known[number] if number is not None and number >= 0 else "" for number in numbers)
        if not all(labels):
            raise DataError(f"{labels.count('')} of the {len(labels)} images of {folder} have no label")
    count = len(found)
    names = [f"{labels[row]}/{row:08d}" if labels else f"{row:08d}" for row in range(count)]
    stamps = np.zeros((count, 2), dtype=np.int64)
    stamps[:, 1] = zlib.crc32(str(found._fingerprint).encode())
    return Records(str(folder), names, labels, stamps, _Rows(rows, images[0])), own_splits
