"""Encoded images, read one at a time by position, in any process: only names, labels and locations are in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.class_names import in_order
from device_sdk.data.file_names import is_image, paths_by_name, unread
from device_sdk.data.image_files import Pixels, decode_image
from device_sdk.errors import CorruptImageError, DataError

Positions = npt.NDArray[np.int64]

# The part of an image, by the last decimal digit of its name's hash.
PARTS = ("search", "calibration", *("report",) * 8)

_NAMED = 3


@dataclass(frozen=True, eq=False)
class Records:
    """Images as files.

    ``names``: unique, such as "class/name.png", and the key for splitting into ``parts``. ``labels``: the class of
    each, or empty if unlabelled. ``stamps`` int64 [count, 2]: size in bytes and checksum, 0 if unknown.
    ``reader(position)``: returns the bytes, or raises CorruptImageError with only the reason. ``indexed``: labels are
    positions in the model's classes, as decimal text. ``left_out``: sentences on what is there and was not taken.
    """

    location: str
    names: Sequence[str]
    labels: Sequence[str]
    stamps: npt.NDArray[np.int64]
    reader: Callable[[int], bytes]
    indexed: bool = False
    left_out: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS

    def __len__(self) -> int:
        return len(self.names)

    def where(self, position: int) -> str:
        """The location of the image at ``position``, for messages."""
        return f"{self.location}: {self.names[position]}"

    def read(self, position: int) -> bytes:
        """The bytes of the image at ``position``.

        Raises:
            CorruptImageError: they cannot be read; names the image.
        """
        try:
            return self.reader(position)
        except CorruptImageError as error:
            raise CorruptImageError(
                f"{self.where(position)} is not a readable image: {error}", hint="replace or delete it"
            ) from error

    def image(self, position: int) -> Pixels:
        """The image at ``position`` as uint8 [height, width, 1 (grey) or 3].

        Raises:
            CorruptImageError: it cannot be read or decoded.
            DataError: it is too large.
        """
        return decode_image(self.read(position), where=self.where(position))

    def classes(self) -> tuple[str, ...]:
        """The classes of the labels, in order: numbers by value, else alphabetical.

        Raises:
            DataError: there is only one.
        """
        found = tuple(in_order(self.labels))
        if len(found) == 1:
            raise DataError(
                f"{self.location} holds only one class, {found[0]}",
                hint="a classifier needs two classes or more, one folder each",
            )
        return found

    def part(self, part: str) -> Records:
        """The images of one part: the hash of an image's name decides, so its part depends on nothing else.

        Raises:
            DataError: there is no part of this name, or no image in it.
        """
        known = tuple(dict.fromkeys(self.parts))
        if part not in known:
            raise DataError(f"{self.location} has no part {part!r}", hint=f"the parts are {', '.join(known)}")
        chosen = [position for position, name in enumerate(self.names) if part_of(name, self.parts) == part]
        if not chosen:
            raise DataError(
                f"the part {part!r} of {self.location} holds no image",
                hint="add images: with enough of them every part has some",
            )
        return self.take(chosen)

    def take(self, positions: Sequence[int] | Positions) -> Records:
        """The records at ``positions``, in that order."""
        positions = np.asarray(positions, dtype=np.int64)
        return replace(
            self,
            names=tuple(self.names[position] for position in positions),
            labels=tuple(self.labels[position] for position in positions) if self.labels else (),
            stamps=self.stamps[positions],
            reader=_Taken(self.reader, positions),
        )


@dataclass(frozen=True, eq=False)
class _Taken:
    read: Callable[[int], bytes]
    positions: Positions

    def __call__(self, position: int) -> bytes:
        return self.read(int(self.positions[position]))


def hash_of(name: str) -> str:
    """The hexadecimal SHA-256 of an image's name, which decides its part and its place in a sample."""
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()


def part_of(name: str, parts: tuple[str, ...] = PARTS) -> str:
    """The part to which the image of this name belongs."""
    return parts[int(hash_of(name), 16) % 10]


def split_reference(reference: str) -> tuple[str, str | None]:
    """The location of the data, and the part named after a ``#``, if any."""
    if "#" not in reference or os.path.exists(reference):
        return reference, None
    location, _, part = reference.rpartition("#")
    return location, part


@dataclass(frozen=True)
class Named:
    """Images by name, sorted: their paths, and their labels, of which there are none without class folders."""

    names: Sequence[str]
    labels: Sequence[str]
    paths: Sequence[str]
    left_out: tuple[str, ...]


def named(files: Iterable[str], *, location: str, labelled: bool) -> Named:
    """The images among the paths ``files``."""
    files = list(files)
    images = sorted(path for path in files if is_image(PurePosixPath(path)))
    left_out = tuple(filter(None, [unread(files)]))
    if not images:
        raise DataError(
            f"{location} holds no images" + " in class folders" * labelled,
            hint="; ".join(left_out) or "put the images of each class into a folder named after it",
        )
    beside = [path for path in images if "/" not in path]
    if not labelled or len(beside) == len(images):
        return Named(images, (), images, left_out)
    by_name = paths_by_name(images, location=location)
    names = sorted(by_name)
    if beside:
        left_out += (f"{len(beside)} images that lie beside the class folders were left out",)
    labels = tuple(interned(name.split("/", 1)[0] for name in names))
    return Named(names, labels, [by_name[name] for name in names], left_out)


def stamps(sizes: Any) -> npt.NDArray[np.int64]:
    """Sizes in bytes [count], without checksums, as ``Records.stamps``."""
    return np.stack([np.asarray(sizes, dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)], axis=1)


def interned(labels: Iterable[str]) -> Iterable[str]:
    """The labels with equal strings shared in memory."""
    known: dict[str, str] = {}
    return (known.setdefault(label, label) for label in labels)


def some_of(names: Sequence[str]) -> str:
    """The first few of ``names``, for a message."""
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
