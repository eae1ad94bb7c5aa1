"""Labelled images that are decoded on demand, so memory does not grow with their number.

The model's input (``device_sdk.data.preprocessing.fit_image``) is computed from the file each time. A set whose pixels
take little memory is decoded once instead; ``load_images`` decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.data.class_names import in_order
from device_sdk.data.datasets import ImageDataset, load_dataset, part_of, split_reference
from device_sdk.data.image_sources import (
    MAX_CORRUPT_SHARE,
    PARTS,
    Pixels,
    check_image,
    decode_image,
    in_channels,
    require_few_corrupt,
)
from device_sdk.data.preprocessing import Preprocessing, fit_image
from device_sdk.errors import CorruptImageError, DataError
from device_sdk.progress import Progress, Task
from packager.inputs.records import Positions, Records, open_records

UNLABELLED = -1
KEPT_BYTES = 160_000_000  # of pixels: sets up to this size are decoded once and kept; CIFAR's training images fit

_NAMED = 3  # corrupt images named in a message
_REPORT_EVERY = 100
_SAMPLED = 64  # files whose content is part of the digest


@dataclass(frozen=True)
class Decoded:
    """Decoded images: ``pixels`` uint8 [n, height, width, channels] and their positions in the set.

    ``corrupt``: position -> reason; corrupt images are not among the pixels.
    """

    pixels: Pixels
    positions: Positions
    corrupt: Mapping[int, str]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images in files. ``labels`` int64 [count]: positions in ``class_names``, or UNLABELLED.

    ``size``: height and width that ``preprocessing`` produces. ``corrupt``: corrupt images found so far.
    """

    records: Records
    preprocessing: Preprocessing
    size: tuple[int, int]
    labels: npt.NDArray[np.int64]
    class_names: tuple[str, ...]
    corrupt: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def names(self) -> Sequence[str]:
        """A name for each image."""
        return self.records.names

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return (*self.size, self.preprocessing.channels)

    def read(self, positions: Positions) -> Decoded:
        """The images at ``positions`` without the corrupt ones. No side effects: safe in any process.

        Raises:
            DataError: an intact image is unusable: too large, or in colour for a grey model.
        """
        return self._read(positions, substitute=False)

    def read_filled(self, positions: Positions) -> Decoded:
        """As many images as ``positions``, with each corrupt one replaced by the next readable one.

        Raises:
            DataError: as ``read``, or more consecutive images are corrupt than a set may contain.
        """
        return self._read(positions, substitute=True)

    def note(self, corrupt: Mapping[int, str]) -> None:
        """Record images that were found corrupt.

        Raises:
            DataError: more than a tenth of the set is corrupt; names the first few.
        """
        self.corrupt.update(corrupt)
        require_few(self.corrupt, total=len(self), location=self.records.location)

    def digest(self) -> str:
        """A digest of names, labels, sizes and checksums, and of the content of some files; no image is decoded."""
        digest = hashlib.sha256(repr((self.shape, self.class_names, len(self))).encode())
        for name in self.names:
            digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        digest.update(self.labels.tobytes())
        digest.update(self.records.stamps.tobytes())
        for position in np.linspace(0, len(self) - 1, min(_SAMPLED, len(self)), dtype=np.int64):
            try:
                digest.update(hashlib.sha256(self.records.read(int(position))).digest())
            except CorruptImageError:
                digest.update(b"corrupt")
        return digest.hexdigest()

    def _read(self, positions: Positions, *, substitute: bool) -> Decoded:
        pixels = np.empty((len(positions), *self.shape), dtype=np.uint8)
        found: list[int] = []
        corrupt: dict[int, str] = {}
        for wanted in positions:
            for position in self._candidates(int(wanted), substitute=substitute):
                try:
                    pixels[len(found)] = self._one(position)
                except CorruptImageError as error:
                    corrupt[position] = str(error)
                else:
                    found.append(position)
                    break
            else:
                if substitute:
                    require_few(corrupt, total=len(self), location=self.records.location)
        return Decoded(pixels[: len(found)], np.array(found, dtype=np.int64), corrupt)

    def _candidates(self, position: int, *, substitute: bool) -> Iterator[int]:
        count = 1 if not substitute else min(len(self), round(MAX_CORRUPT_SHARE * len(self)) + 2)
        return ((position + step) % len(self) for step in range(count))

    def _one(self, position: int) -> Pixels:
        """Uint8 [height, width, channels]."""
        where = self.records.where(position)
        image = decode_image(self.records.read(position), where=where)
        if image.shape[2] > self.preprocessing.channels:
            image = in_channels(image, self.preprocessing.channels, where=where)
        return np.broadcast_to(fit_image(image, self.preprocessing, size=self.size), self.shape)


Images = ImageDataset | ImageSet


@dataclass(frozen=True)
class Loaded:
    """The result of ``load_images``. ``skipped``: a sentence on images that were left out, None if there are none."""

    images: Images
    skipped: str | None = None


def load_images(
    reference: str,
    preprocessing: Preprocessing,
    *,
    size: tuple[int, int],
    label: Callable[[Sequence[str], bool], tuple[tuple[str, ...], Sequence[int]]],
    progress: Progress,
    kept_bytes: int = KEPT_BYTES,
) -> Loaded:
    """Load the images of a reference, optionally with ``#part``, as the model's ``preprocessing`` requires.

    Corrupt images are left out. In a set that is not decoded here, corrupt images with an intact header are only found
    when they are read.

    Args:
        label: maps the classes of the data, and whether they are positions already, to the model's classes and the
            position of each data class among them.

    Raises:
        DataError: no data, no images, only one class, an unknown or empty part, more than a tenth of corrupt images.
        MissingExtraError: a required library is not installed.
    """
    location, part = split_reference(reference)
    if location == "digits":
        found = load_dataset(reference, preprocessing=preprocessing, progress=progress)
        names, positions = label(found.class_names, False)
        labels = np.array(positions, dtype=np.int64)[found.labels]
        return Loaded(ImageDataset(found.images, labels, names, found.names))
    if preprocessing.channels not in (1, 3):
        raise DataError(f"the model takes {preprocessing.channels} channels; images have 1 or 3")
    records, taken = open_records(location, split=part)
    records = records if part is None or taken else _part(records, part)
    names, numbers = _labelled(records, label)
    images = ImageSet(records, preprocessing, size, numbers, names)
    if len(images) * int(np.prod(images.shape)) <= kept_bytes:
        return _decoded(images, progress)
    return _checked(images, progress)


def require_few(corrupt: Mapping[int, str], *, total: int, location: str) -> None:
    """Refuse more than a tenth of corrupt images; names the first few (DataError)."""
    require_few_corrupt([corrupt[position] for position in sorted(corrupt)], total=total, location=location)


def _part(records: Records, part: str) -> Records:
    if part not in PARTS:
        known = ", ".join(dict.fromkeys(PARTS))
        raise DataError(f"{records.location} has no part {part!r}", hint=f"the parts are {known}")
    chosen = [position for position, name in enumerate(records.names) if part_of(name) == part]
    if not chosen:
        raise DataError(f"the part {part!r} of {records.location} holds no image", hint="more images fill all parts")
    return records.take(np.array(chosen, dtype=np.int64))


def _labelled(
    records: Records, label: Callable[[Sequence[str], bool], tuple[tuple[str, ...], Sequence[int]]]
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    if not records.labels:
        return label((), False)[0], np.full(len(records), UNLABELLED, dtype=np.int64)
    classes = in_order(records.labels)
    if len(classes) == 1:
        raise DataError(
            f"{records.location} holds only one class, {classes[0]}",
            hint="a classifier needs two classes or more, one folder each",
        )
    names, positions = label(classes, records.indexed)
    number_of = dict(zip(classes, positions, strict=True))
    return names, np.fromiter((number_of[label] for label in records.labels), dtype=np.int64, count=len(records))


def _decoded(images: ImageSet, progress: Progress) -> Loaded:
    """The images decoded in memory, without corrupt ones."""
    pixels = np.empty((len(images), *images.shape), dtype=np.uint8)
    kept: list[int] = []
    with progress.task(f"reading {images.records.location}", total=len(images)) as task:
        for first in range(0, len(images), _REPORT_EVERY):
            some = images.read(np.arange(first, min(first + _REPORT_EVERY, len(images))))
            pixels[len(kept) : len(kept) + len(some.positions)] = some.pixels
            kept += some.positions.tolist()
            _tell(images, some.corrupt, task, done=min(_REPORT_EVERY, len(images) - first))
    images.note({})
    names = tuple(images.names[position] for position in kept)
    chosen = np.array(kept, dtype=np.int64)
    whole = ImageDataset(pixels[: len(kept)], images.labels[chosen], images.class_names, names)
    return Loaded(whole, _skipped(images))


def _checked(images: ImageSet, progress: Progress) -> Loaded:
    """The images without those with a corrupt header."""
    with progress.task(f"checking {images.records.location}", total=len(images)) as task:
        for first in range(0, len(images), _REPORT_EVERY):
            some = range(first, min(first + _REPORT_EVERY, len(images)))
            _tell(images, dict(filter(None, map(images_head(images), some))), task, done=len(some))
    images.note({})
    if not images.corrupt:
        return Loaded(images, _skipped(images))
    kept = np.setdiff1d(np.arange(len(images)), np.array(sorted(images.corrupt), dtype=np.int64))
    readable = ImageSet(
        images.records.take(kept), images.preprocessing, images.size, images.labels[kept], images.class_names
    )
    return Loaded(readable, _skipped(images))


def images_head(images: ImageSet) -> Callable[[int], tuple[int, str] | None]:
    """A check of an image's header: returns the position and the reason if it is corrupt, else None."""

    def look(position: int) -> tuple[int, str] | None:
        try:
            check_image(images.records.read(position), where=images.records.where(position))
        except CorruptImageError as error:
            return position, str(error)
        return None

    return look


def _tell(images: ImageSet, corrupt: Mapping[int, str], task: Task, *, done: int) -> None:
    images.corrupt.update(corrupt)
    if images.corrupt:
        task.note(f"{len(images.corrupt)} corrupt")
    task.advance(done)


def _skipped(images: ImageSet) -> str | None:
    left_out = images.records.left_out
    if not images.corrupt:
        return left_out or None
    some = ", ".join(images.names[position] for position in sorted(images.corrupt)[:_NAMED])
    more = ", …" if len(images.corrupt) > _NAMED else ""
    corrupt = f"{len(images.corrupt)} of {len(images)} images are corrupt and were left out: {some}{more}"
    return f"{corrupt}; {left_out}" if left_out else corrupt
