"""Labelled images that are decoded on demand, so memory does not grow with their number, ahead of their use in worker
processes where the machine has the cores.

The model's input (``device_sdk.data.preprocessing.fit_image``) is computed from the file each time. A set whose pixels
take little memory is decoded once instead; ``load_images`` decides.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.data.datasets import ImageDataset
from device_sdk.data.image_files import Pixels, check_image, in_channels
from device_sdk.data.preprocessing import Preprocessing, fit_image
from device_sdk.data.records import Positions, Records
from device_sdk.data.sources import MAX_CORRUPT_SHARE, SourceReport, open_records
from device_sdk.errors import CorruptImageError, DataError, PathweaveError
from device_sdk.machine import usable_cores
from device_sdk.progress import Progress, Task

UNLABELLED = -1
KEPT_BYTES = 160_000_000  # of pixels: sets up to this size are decoded once and kept; CIFAR's training images fit

_REPORT_EVERY = 100
_SAMPLED = 64  # files whose content is part of the digest
_MOST_WORKERS = 4
_AHEAD = 2  # batches that each worker prepares ahead


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
    """Images in files. ``labels`` int64 [count]: positions in ``class_names``, or UNLABELLED; of other tasks targets.

    ``size``: height and width that ``preprocessing`` produces. ``corrupt``: corrupt images found so far.
    """

    records: Records
    preprocessing: Preprocessing
    size: tuple[int, int]
    labels: npt.NDArray[Any]
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

    def read(self, positions: Positions, *, fill: bool = False) -> Decoded:
        """The images at ``positions`` without the corrupt ones. No side effects: safe in any process.

        With ``fill`` each corrupt one is replaced by the next readable one.

        Raises:
            DataError: an intact image is unusable: too large, or in colour for a grey model; or with ``fill`` more
                consecutive images are corrupt than a set may contain.
        """
        pixels = np.empty((len(positions), *self.shape), dtype=np.uint8)
        found: list[int] = []
        corrupt: dict[int, str] = {}
        for wanted in positions:
            for position in self._candidates(int(wanted), fill=fill):
                try:
                    pixels[len(found)] = self._one(position)
                except CorruptImageError as error:
                    corrupt[position] = str(error)
                else:
                    found.append(position)
                    break
            else:
                if fill:
                    SourceReport.of(self.records, corrupt).require_few_corrupt()
        return Decoded(pixels[: len(found)], np.array(found, dtype=np.int64), corrupt)

    def note(self, corrupt: Mapping[int, str]) -> None:
        """Record images that were found corrupt.

        Raises:
            DataError: more than a tenth of the set is corrupt; names the first few.
        """
        self.corrupt.update(corrupt)
        self.report.require_few_corrupt()

    @property
    def report(self) -> SourceReport:
        """Report on the records of the source that were seen and left out so far."""
        return SourceReport.of(self.records, self.corrupt)

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

    def _candidates(self, position: int, *, fill: bool) -> Iterator[int]:
        count = 1 if not fill else min(len(self), round(MAX_CORRUPT_SHARE * len(self)) + 2)
        return ((position + step) % len(self) for step in range(count))

    def _one(self, position: int) -> Pixels:
        """Uint8 [height, width, channels]."""
        image = self.records.image(position)
        if image.shape[2] > self.preprocessing.channels:
            image = in_channels(image, self.preprocessing.channels, where=self.records.where(position))
        return np.broadcast_to(fit_image(image, self.preprocessing, size=self.size), self.shape)


Images = ImageDataset | ImageSet


@dataclass(frozen=True)
class Loaded:
    """The result of ``load_images``, and the report of its source."""

    images: Images
    report: SourceReport


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
    if preprocessing.channels not in (1, 3):
        raise DataError(f"the model takes {preprocessing.channels} channels; images have 1 or 3")
    records = open_records(reference)
    names, numbers = _labelled(records, label)
    images = ImageSet(records, preprocessing, size, numbers, names)
    if len(images) * int(np.prod(images.shape)) <= kept_bytes:
        return _decoded(images, progress)
    return _checked(images, progress)


def _labelled(
    records: Records, label: Callable[[Sequence[str], bool], tuple[tuple[str, ...], Sequence[int]]]
) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    if not records.labels:
        return label((), False)[0], np.full(len(records), UNLABELLED, dtype=np.int64)
    classes = records.classes()
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
    return Loaded(whole, images.report)


def _checked(images: ImageSet, progress: Progress) -> Loaded:
    """The images without those with a corrupt header."""
    with progress.task(f"checking {images.records.location}", total=len(images)) as task:
        for first in range(0, len(images), _REPORT_EVERY):
            some = range(first, min(first + _REPORT_EVERY, len(images)))
            _tell(images, dict(filter(None, map(images_head(images), some))), task, done=len(some))
    images.note({})
    if not images.corrupt:
        return Loaded(images, images.report)
    kept = np.setdiff1d(np.arange(len(images)), np.array(sorted(images.corrupt), dtype=np.int64))
    readable = ImageSet(
        images.records.take(kept), images.preprocessing, images.size, images.labels[kept], images.class_names
    )
    return Loaded(readable, images.report)


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


class BatchDecoder:
    """Decodes the batch of each step; ``positions_of(step)`` returns its image positions, None after the last step.

    The result depends only on the positions, not on the process. If steps are consecutive, the next ones are decoded
    ahead. With ``fill`` corrupt images are replaced by the next readable ones, otherwise they are left out.
    """

    def __init__(
        self, images: ImageSet, positions_of: Callable[[int], Positions | None], *, fill: bool, workers: int
    ) -> None:
        self._images = images
        self._positions_of = positions_of
        self._reading = _Reading(images, fill)
        self._workers = workers
        self._ahead: Iterator[Decoded | PathweaveError] | None = None
        self._next = 0  # the next step that ``_ahead`` yields
        self._last: tuple[int, Decoded] | None = None

    def batch(self, step: int) -> Decoded:
        """The images of ``step``, for which ``positions_of`` must not return None.

        Raises:
            DataError: see ``ImageSet.read`` and ``ImageSet.note``.
        """
        if self._last is not None and self._last[0] == step:
            return self._last[1]
        decoded = self._fetch(step)
        if isinstance(decoded, PathweaveError):
            self.close()
            raise decoded
        self._images.note(decoded.corrupt)
        self._last = step, decoded
        return decoded

    def close(self) -> None:
        """Stop the workers."""
        self._ahead = None

    def _fetch(self, step: int) -> Decoded | PathweaveError:
        follows = self._last is not None and step == self._last[0] + 1
        if self._ahead is not None and step != self._next:
            self.close()
        if self._ahead is None and follows and self._workers:
            self._ahead, self._next = self._start(step), step
        if self._ahead is not None:
            try:
                decoded = next(self._ahead)
            except (RuntimeError, OSError):  # a worker has died, possibly out of memory: continue without workers
                self.close()
                self._workers = 0
            else:
                self._next = step + 1
                return decoded
        positions = self._positions_of(step)
        assert positions is not None, "the step does not exist"
        return self._reading[positions]

    def _start(self, step: int) -> Iterator[Decoded | PathweaveError]:
        """Workers that decode from ``step`` on. Their own generator leaves torch's global one unchanged."""
        loader = torch.utils.data.DataLoader(
            self._reading,
            batch_size=None,
            sampler=_Steps(self._positions_of, step),
            num_workers=self._workers,
            prefetch_factor=_AHEAD,
            collate_fn=_as_it_is,  # tensors would be sent through shared memory, which is small in containers
            generator=torch.Generator(),
        )
        return iter(loader)


def worker_count(*, processes: int = 1) -> int:
    """Workers for each of ``processes`` training processes on the cores that this one may use; 0 on a single core."""
    cores = usable_cores()
    return 0 if cores < 2 else min(_MOST_WORKERS, max(1, cores // processes - 1))


@dataclass(frozen=True)
class _Reading(torch.utils.data.Dataset[Any]):
    """Decodes the images at some positions. Errors are returned, since raising them in a worker loses their hint."""

    images: ImageSet
    fill: bool

    def __getitem__(self, positions: Positions) -> Decoded | PathweaveError:
        try:
            return self.images.read(positions, fill=self.fill)
        except PathweaveError as error:
            return error


@dataclass(frozen=True)
class _Steps:
    positions_of: Callable[[int], Positions | None]
    first: int

    def __iter__(self) -> Iterator[Positions]:
        step = self.first
        while (positions := self.positions_of(step)) is not None:
            yield positions
            step += 1


def _as_it_is(decoded: Any) -> Any:
    return decoded
