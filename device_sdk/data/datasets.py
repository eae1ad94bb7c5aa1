"""Labelled image sets for the device and the packager: loaded by reference, in parts, split and shifted.

A reference may end in ``#part`` (see ``Records.part``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.class_names import ClassNames
from device_sdk.data.image_files import Pixels
from device_sdk.data.preprocessing import Preprocessing, fit_image, resize_image
from device_sdk.data.records import Records, hash_of
from device_sdk.data.sources import SourceReport, open_records
from device_sdk.errors import CorruptImageError, DataError, UsageError
from device_sdk.progress import Progress, SilentProgress
from device_sdk.random_source import SplitMix64

_REPORT_EVERY = 200  # images


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images of one size with their labels.

    ``images`` uint8 [count, height, width, channels]; ``labels`` int64 [count] are positions in
    ``class_names``; ``names`` are "class/name.png". ``report``: of the source. ``indexed``: the class names are
    positions in a model's classes, as decimal text.
    """

    images: Pixels
    labels: npt.NDArray[Any]
    class_names: tuple[str, ...]
    names: tuple[str, ...]
    report: SourceReport | None = None
    indexed: bool = False

    def __len__(self) -> int:
        return len(self.names)

    @property
    def samples(self) -> Pixels:
        """The images."""
        return self.images

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on each kind of file that was left out."""
        return () if self.report is None else self.report.notes

    def take(self, positions: Sequence[int] | npt.NDArray[np.int64]) -> ImageDataset:
        """The images at ``positions``, in that order."""
        chosen = np.asarray(positions, dtype=np.int64)
        names = tuple(self.names[position] for position in chosen)
        return replace(self, images=self.images[chosen], labels=self.labels[chosen], names=names)

    def relabelled(self, class_names: Sequence[str], class_ids: Sequence[Sequence[str]] = ()) -> ImageDataset:
        """The same images with labels that are positions in ``class_names``, such as those of a model.

        The set may have some of these classes only. ``class_ids``: further names of each (see ``ClassNames``).

        Raises:
            DataError: a class of this set is unknown or ambiguous, or appears in two spellings.
        """
        if self.indexed:
            positions = as_positions(self.class_names, count=len(class_names))
        else:
            positions = ClassNames(class_names, class_ids).positions(self.class_names)
        labels = np.array(positions, dtype=np.int64)[self.labels]
        return replace(self, labels=labels, class_names=tuple(class_names), indexed=False)

    def with_targets(self, table: npt.NDArray[np.generic]) -> ImageDataset:
        """The same samples with the rows of their labels in ``table`` [classes, …] in place of these."""
        return replace(self, labels=table[self.labels])


def load_dataset(
    reference: str,
    *,
    progress: Progress = SilentProgress(),  # noqa: B008  # stateless
    limit: int | None = None,
    resize: tuple[int, int] | None = None,
    preprocessing: Preprocessing | None = None,
    labelled: bool = True,
) -> ImageDataset:
    """Load what ``open_records`` opens, each optionally with ``#part``: a folder or zip with one folder per class, a
    CSV file, WebDataset shards, a data set on disk, or ``digits``.

    Parts: ``search``, ``calibration`` and ``report`` are the images whose
    ``sha256("class/name.png") % 10`` is 0, 1 and 2–9. ``digits`` (1,797 grey images, 8×8, values 0–16, named
    "3/0013.png" by their position in scikit-learn's set) has no separate training file, so it has four parts:
    ``search`` 0–1, ``calibration`` 2, ``report`` 3–4, ``train`` 5–9. A folder of that name is ``./digits``.

    ``limit`` keeps at most that many images, those with the smallest hashes: a fixed sample of all classes. ``resize``
    (height, width) resizes images of other sizes, ignoring their aspect ratio; ``preprocessing`` crops and resizes them
    for a model. If any image is RGB, all become RGB; grey sets stay [height, width, 1]. Up to a tenth of the images may
    be corrupt: they are left out (``report``). Not ``labelled``: all images of a folder or zip, or one file; all labels
    are 0 and there are no classes.

    Raises:
        DataError: no such file, not a zip, no images, only one class, an unknown or empty part, more than a tenth of
            corrupt images, or one that is too large or of another size than the first; the message names the file.
        MissingExtraError: ``digits`` without scikit-learn.
        UsageError: ``limit`` or a side of ``resize`` is not above zero.
    """
    if limit is not None and limit <= 0:
        raise UsageError(f"the limit of images is {limit}; it must be above zero")
    if resize is not None and min(resize) <= 0:
        raise UsageError(f"the size to resize to is {resize[0]}×{resize[1]}; both must be above zero")
    records = _limited(open_records(reference, labelled=labelled), limit)
    if labelled and not records.labels:
        raise DataError(
            f"the images of {records.location} have no labels",
            hint="put the images of each class into a folder named after it, or list them in a CSV: image,label",
        )
    class_names = records.classes()
    images, kept, report = _read_all(records, fit=_fit(resize, preprocessing), progress=progress)
    number_of = {name: number for number, name in enumerate(class_names)}
    labels = np.array([number_of[records.labels[at]] if labelled else 0 for at in kept], dtype=np.int64)
    names = tuple(records.names[at] for at in kept)
    return ImageDataset(images, labels, class_names, names, report, records.indexed)


def split(dataset: ImageDataset, *, holdout_share: float, seed: int) -> tuple[ImageDataset, ImageDataset]:
    """Split into a kept and a held-out set (see ``split_positions``)."""
    kept, held = split_positions(dataset.labels, holdout_share=holdout_share, seed=seed)
    return dataset.take(kept), dataset.take(held)


def split_positions(
    labels: npt.NDArray[np.int64], *, holdout_share: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Positions in ``labels`` [count] to keep and to hold out, ``holdout_share`` of every class held out (rounded).

    A class of two samples or more is in both parts. The order is kept.

    Raises:
        UsageError: the share does not lie between 0 and 1.
    """
    if not 0 < holdout_share < 1:
        raise UsageError(f"the held-out share is {holdout_share:g}; it must lie between 0 and 1")
    random = SplitMix64(seed)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        positions = np.flatnonzero(labels == label).tolist()
        wanted = round(holdout_share * len(positions))
        if len(positions) > 1:
            wanted = min(max(wanted, 1), len(positions) - 1)
        held[random.shuffled(positions)[:wanted]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def dirichlet_shift(dataset: ImageDataset, *, alpha: float, count: int, seed: int) -> ImageDataset:
    """Draw ``count`` images without replacement, their class mix from a symmetric Dirichlet distribution.

    A small ``alpha`` concentrates on few classes, a large one is near uniform. If a class has too few images, the
    others fill the rest in proportion. The order is random. For two disjoint samples of one mix draw both at once and
    ``split`` them.

    Source: Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019, §3.

    Raises:
        UsageError: ``alpha`` or ``count`` is not above zero.
        DataError: the set holds fewer images than ``count``.
    """
    if not alpha > 0:
        raise UsageError(f"alpha is {alpha:g}; it must be above zero")
    _check_count(count, available=len(dataset))
    random = SplitMix64(seed)
    positions = _positions_by_class(dataset)
    mix = np.random.default_rng(random.next()).dirichlet(np.full(len(positions), alpha))
    counts = _allocate(mix, available=[len(of_class) for of_class in positions], count=count)
    return _draw(dataset, counts, random=random)


def draw_like(dataset: ImageDataset, *, like: ImageDataset, count: int, seed: int) -> ImageDataset:
    """Draw ``count`` images with the class mix of ``like``, excluding images of ``like`` (by name).

    ``dataset`` is the set from which ``like`` was drawn, or another part with the same classes.

    Raises:
        UsageError: ``count`` is not above zero, or the two sets have different classes.
        DataError: a class has too few images left for the mix; the message names it.
    """
    if dataset.class_names != like.class_names:
        raise UsageError("the two sets have different classes")
    used = set(like.names)
    rest = dataset.take([position for position, name in enumerate(dataset.names) if name not in used])
    _check_count(count, available=len(rest))
    mix = np.bincount(like.labels, minlength=len(like.class_names)) / len(like)
    counts = _allocate(mix, available=[count] * len(mix), count=count)
    for name, of_class, wanted in zip(rest.class_names, _positions_by_class(rest), counts, strict=True):
        if wanted > len(of_class):
            raise DataError(
                f"the class mix needs {wanted} images of {name}, but only {len(of_class)} are left",
                hint="draw fewer, or draw both samples at once and split them",
            )
    return _draw(rest, counts, random=SplitMix64(seed))


def as_positions(labels: Sequence[str], *, count: int) -> list[int]:
    """Labels that are positions among ``count`` classes, as decimal text.

    Raises:
        DataError: there is no such class.
    """
    positions = [int(label) for label in labels]
    if max(positions, default=0) >= count:
        raise DataError(
            f"the data has classes that the model does not know: {max(positions)}",
            hint=f"the model has {count} classes, numbered from 0",
        )
    return positions


# Drawing


def _check_count(count: int, *, available: int) -> None:
    if count <= 0:
        raise UsageError(f"the number of images to draw is {count}; it must be above zero")
    if count > available:
        raise DataError(
            f"{count} images are needed, but there are only {available}",
            hint="draw fewer images or add data",
        )


def _draw(dataset: ImageDataset, counts: Sequence[int], *, random: SplitMix64) -> ImageDataset:
    """``counts[label]`` images of each class, in random order."""
    drawn: list[int] = []
    for of_class, wanted in zip(_positions_by_class(dataset), counts, strict=True):
        drawn += random.shuffled(of_class)[:wanted]
    return dataset.take(random.shuffled(drawn))


def _allocate(mix: npt.NDArray[np.float64], *, available: Sequence[int], count: int) -> list[int]:
    """Whole numbers that sum to ``count``, in proportion to ``mix`` as far as ``available`` allows.

    Source: the method of Webster and Sainte-Laguë; exact wherever ``count * mix`` is whole and available.
    """
    counts = [0] * len(available)
    for _ in range(count):
        open_classes = [index for index, limit in enumerate(available) if counts[index] < limit]
        best = max(open_classes, key=lambda index: (mix[index] / (counts[index] + 0.5), -counts[index]))
        counts[best] += 1
    return counts


def _positions_by_class(dataset: ImageDataset) -> list[list[int]]:
    return [np.flatnonzero(dataset.labels == label).tolist() for label in range(len(dataset.class_names))]


# Reading


def _limited(records: Records, limit: int | None) -> Records:
    """The records with the ``limit`` smallest hashes, in the order of their names."""
    if limit is None or len(records) <= limit:
        return records
    return records.take(sorted(sorted(range(len(records)), key=lambda at: hash_of(records.names[at]))[:limit]))


def _fit(resize: tuple[int, int] | None, preprocessing: Preprocessing | None) -> Callable[[Pixels], Pixels]:
    """The function that resizes an image to the requested size; the identity if there is none."""
    if preprocessing is not None:
        return lambda image: fit_image(image, preprocessing)
    return lambda image: image if resize is None else resize_image(image, resize)


def _read_all(
    records: Records, *, fit: Callable[[Pixels], Pixels], progress: Progress
) -> tuple[Pixels, list[int], SourceReport]:
    """Uint8 [count, height, width, channels] of the readable images, and their positions."""
    images: Pixels | None = None
    kept: list[int] = []
    corrupt: dict[int, str] = {}
    with progress.task(f"reading {records.location}", total=len(records)) as task:
        for position in range(len(records)):
            if (position + 1) % _REPORT_EVERY == 0:
                task.advance(_REPORT_EVERY)
            try:
                image = fit(records.image(position))
            except CorruptImageError as error:
                corrupt[position] = str(error)
                continue
            if images is None:
                images = _allocate_images(len(records), image.shape, location=records.location)
            elif image.shape[:2] != images.shape[1:3]:
                raise _sizes_differ(records, kept[0], images.shape[1:3], position, image.shape[:2])
            elif image.shape[2] > images.shape[3]:
                images = np.repeat(images, image.shape[2], axis=3)
            images[len(kept)] = image  # grey spreads over RGB
            kept.append(position)
        task.advance(len(records) % _REPORT_EVERY)
    report = SourceReport.of(records, corrupt)
    report.require_few_corrupt()
    assert images is not None  # most of them are readable
    return images[: len(kept)], kept, report


def _allocate_images(count: int, shape: tuple[int, ...], *, location: str) -> Pixels:
    try:
        return np.empty((count, *shape), dtype=np.uint8)
    except MemoryError as error:
        raise DataError(
            f"{count} images of {shape[0]}×{shape[1]} pixels from {location} do not fit into memory",
            hint="resize them or limit their number",
        ) from error


def _sizes_differ(
    records: Records, first: int, first_size: tuple[int, ...], second: int, second_size: tuple[int, ...]
) -> DataError:
    return DataError(
        f"{records.location}: images differ in size (height × width): {records.names[first]} is"
        f" {first_size[0]}×{first_size[1]}, {records.names[second]} is {second_size[0]}×{second_size[1]}",
        hint="resize them to one size",
    )
