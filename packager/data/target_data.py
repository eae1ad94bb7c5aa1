"""Images with dense targets: label maps for segmentation, boxes for detection (Pascal VOC's layout)."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ElementTree
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.image_files import Pixels
from device_sdk.data.preprocessing import resize_image
from device_sdk.errors import DataError

_ARCHIVE_BYTES = 4_000_000_000  # maximum unpacked size of an archive


@dataclass(frozen=True, eq=False)
class TargetDataset:
    """Images of one size with targets.

    ``images``: uint8 [count, height, width, channels]; ``labels``: [count, …], as the task defines its targets.
    """

    images: Pixels
    labels: npt.NDArray[np.generic]
    class_names: tuple[str, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


def load_label_maps(
    archive: Path, *, images: str, labels: str, class_names: Sequence[str], size: tuple[int, int], ignored: int
) -> TargetDataset:
    """The images of the folder ``images`` in a zip, each with the label map of the same name in the folder ``labels``.

    ``size``: (height, width); label maps are resized by nearest neighbour. ``labels`` of the data set: uint8
    [count, height, width], ``ignored`` for values that are not a class.

    Raises:
        DataError: the archive or one of its files is missing or damaged; names it.
    """
    from PIL import Image

    with _Archive(archive) as files:
        names = files.below(images, (".jpg", ".jpeg", ".png"))
        pixels = np.stack([resize_image(files.image(name), size) for name in names])
        maps = []
        for name in names:
            found = Image.open(io.BytesIO(files.read(f"{labels}/{Path(name).stem}.png")))
            classes = np.asarray(found.resize((size[1], size[0]), Image.Resampling.NEAREST))
            maps.append(np.where(classes < len(class_names), classes, ignored).astype(np.uint8))
    return TargetDataset(pixels, np.stack(maps), tuple(class_names), tuple(names))


def load_voc(archive: Path, *, part: str, class_names: Sequence[str], size: tuple[int, int]) -> TargetDataset:
    """The images that ``ImageSets/Main/<part>.txt`` of a zip lists, with the boxes of their annotations.

    ``labels``: float32 [count, most, 5]: class, left, top, right, bottom relative to the image; rows of class −1 are
    padding.

    Raises:
        DataError: the archive or one of its files is missing or damaged, or a class is unknown; names it.
    """
    with _Archive(archive) as files:
        names = files.read(f"ImageSets/Main/{part}.txt").decode().split()
        pixels = np.stack([resize_image(files.image(f"JPEGImages/{name}.jpg"), size) for name in names])
        found = [_boxes(files.read(f"Annotations/{name}.xml"), class_names, name) for name in names]
    boxes = np.full((len(names), max(len(boxes_) for boxes_ in found), 5), -1.0, dtype=np.float32)
    for row, one in zip(boxes, found, strict=True):
        row[: len(one)] = one
    return TargetDataset(pixels, boxes, tuple(class_names), tuple(names))


def _boxes(annotation: bytes, class_names: Sequence[str], name: str) -> npt.NDArray[np.float32]:
    """The boxes of one image [boxes, 5]; empty ones are left out."""
    try:
        root = ElementTree.fromstring(annotation)
        width, height = (float(root.findtext(f"size/{side}") or 0) for side in ("width", "height"))
        rows = []
        for thing in root.iter("object"):
            left, top, right, bottom = (
                float(thing.findtext(f"bndbox/{side}") or 0) for side in ("xmin", "ymin", "xmax", "ymax")
            )
            kind = class_names.index(thing.findtext("name") or "")
            if right > left and bottom > top:
                rows.append([kind, left / width, top / height, right / width, bottom / height])
    except (ElementTree.ParseError, ValueError, ZeroDivisionError) as error:
        raise DataError(f"the annotation of {name} cannot be read: {error}") from error
    return np.array(rows, dtype=np.float32).reshape(-1, 5)


class _Archive:
    """A zip of images, opened for reading; missing or damaged members raise DataError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"{path} is not a zip that can be read: {error}") from error
        if sum(member.file_size for member in self._zip.infolist()) > _ARCHIVE_BYTES:
            raise DataError(f"{path} unpacks to more than {_ARCHIVE_BYTES:,} bytes")

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def below(self, folder: str, endings: tuple[str, ...]) -> list[str]:
        """The files of a folder, sorted."""
        names = sorted(n for n in self._zip.namelist() if n.startswith(f"{folder}/") and n.lower().endswith(endings))
        if not names:
            raise DataError(f"{self._path} has no images in {folder}/")
        return names

    def read(self, name: str) -> bytes:
        try:
            return self._zip.read(name)
        except (KeyError, zipfile.BadZipFile, OSError) as error:
            raise DataError(f"{self._path}: {name} is missing or damaged") from error

    def image(self, name: str) -> Pixels:
        """[height, width, 3] uint8."""
        from PIL import Image

        try:
            return np.asarray(Image.open(io.BytesIO(self.read(name))).convert("RGB"))
        except (OSError, ValueError) as error:
            raise DataError(f"{self._path}: {name} is not an image that can be read") from error
