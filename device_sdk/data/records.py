"""Images with labels before they are decoded: folders, zips, lists, shards and data sets."""

from __future__ import annotations

import csv
import hashlib
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.class_names import in_order
from device_sdk.data.file_names import SUFFIXES, files_below, is_image, paths_by_name, portable, unread
from device_sdk.data.image_files import MAX_IMAGE_FILE_BYTES, Pixels, decode_image, read_file
from device_sdk.errors import CorruptImageError, DataError
from device_sdk.extras import require

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


@dataclass(frozen=True, eq=False)
class _Files:
    """Files below a folder."""

    root: str
    paths: Sequence[str]

    def __call__(self, position: int) -> bytes:
        path = Path(self.root, self.paths[position])
        try:
            return read_file(path)
        except OSError as error:
            raise CorruptImageError(error.strerror or "it cannot be read") from error


def folder_records(root: Path, *, labelled: bool) -> Records:
    """The images below a folder: their classes are the folders directly in it, if they are ``labelled``."""
    found = named(files_below(root), location=str(root), labelled=labelled)
    sizes = [_size(root / path) for path in found.paths]
    reader = _Files(str(root), found.paths)
    return Records(str(root), found.names, found.labels, stamps(sizes), reader, left_out=found.left_out)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a link that leads nowhere: found when it is read
        return 0


def single_record(file: Path) -> Records:
    """One image, without a label."""
    return Records(str(file), (file.name,), (), stamps([_size(file)]), _Files(str(file.parent), [file.name]))


def listed_records(file: Path) -> Records:
    """The images that a CSV file lists in the column ``image``, relative to it; their classes in ``label``."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            columns = reader.fieldnames or ()
            rows = [(row["image"] or "", (row.get("label") or "").strip()) for row in reader if "image" in columns]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read as CSV: {error}") from error
    if "image" not in columns:
        raise DataError(f"{file} has no column image", hint="the first line names the columns: image,label")
    if not rows:
        raise DataError(f"{file} lists no images")
    _require_listed(file, rows)
    labelled = any(label for _, label in rows)
    entries = sorted((f"{label}/{path}" if labelled else path, label, path) for path, label in rows)
    root = file.parent
    sizes = [os.stat(root / path).st_size for _, _, path in entries]
    labels = tuple(interned(label for _, label, _ in entries)) if labelled else ()
    paths = [path for _, _, path in entries]
    return Records(str(file), [name for name, _, _ in entries], labels, stamps(sizes), _Files(str(root), paths))


def _require_listed(file: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Refuse a list with missing or duplicate images, or with labels for only some of them."""
    seen: set[str] = set()
    twice = [path for path, _ in rows if path in seen or seen.add(path)]  # type: ignore[func-returns-value]
    if twice:
        raise DataError(f"{file} lists an image twice: {some_of(twice)}")
    missing = [path for path in seen if not path or not (file.parent / path).is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(rows)} images that {file} lists are missing: {some_of(sorted(missing))}",
            hint="paths are relative to the folder of the CSV file",
        )
    bare = [path for path, label in rows if not label]
    if bare and len(bare) < len(rows):
        raise DataError(
            f"{len(bare)} of the {len(rows)} images that {file} lists have no label: {some_of(bare)}",
            hint="label them all, or none",
        )


_LABEL_BYTES = 1_000
_MOST_OPEN = 16  # archives
_ZIP_HEADER = struct.Struct("<26xHH")  # of a member: lengths of its name and extra field
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


class _Spans:
    """Files inside archives, by offset, length and compression.

    ``starts`` int64 [count, 3]: index of the archive, offset, stored bytes. Every process opens the archives itself.
    """

    def __init__(
        self, archives: Sequence[str], starts: Positions, packed: Mapping[str, Positions] | None = None
    ) -> None:
        self._archives = archives
        self._starts = starts
        self._packed = packed  # of a zip: "method" and "crc" of each member
        self._open: dict[int, IO[bytes]] = {}
        self._process = 0

    def __call__(self, position: int) -> bytes:
        archive, offset, length = (int(number) for number in self._starts[position])
        try:
            return self._unpacked(position, archive, offset, length)
        except (OSError, EOFError, struct.error, zlib.error, ValueError) as error:
            raise CorruptImageError(str(error)) from error

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_process": 0}

    def _unpacked(self, position: int, archive: int, offset: int, length: int) -> bytes:
        file = self._file(archive)
        file.seek(offset)
        most = MAX_IMAGE_FILE_BYTES + 1  # what is longer is refused when it is decoded
        if self._packed is None:
            return file.read(min(length, most))
        name, more = _ZIP_HEADER.unpack(file.read(_ZIP_HEADER.size))
        file.seek(name + more, os.SEEK_CUR)
        data = file.read(min(length, most))
        if self._packed["method"][position] == _DEFLATED:
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)
        if len(data) == most:
            return data
        if zlib.crc32(data) != self._packed["crc"][position]:
            raise ValueError("wrong checksum")
        return data

    def _file(self, archive: int) -> IO[bytes]:
        if self._process != os.getpid():  # a file opened before a fork shares its position with the parent's
            self._open, self._process = {}, os.getpid()
        if archive not in self._open:
            while len(self._open) >= _MOST_OPEN:
                self._open.pop(next(iter(self._open))).close()
            self._open[archive] = open(self._archives[archive], "rb")  # noqa: SIM115  # stays open
        return self._open[archive]


def zip_records(file: Path, *, labelled: bool) -> Records:
    """The images in a zip: their classes are the folders directly in it, if they are ``labelled``."""
    try:
        with zipfile.ZipFile(file) as archive:
            infos = {member.filename: member for member in archive.infolist() if not member.is_dir()}
            members = {name: infos[own] for name, own in portable(infos).items()}
    except Exception as error:  # damaged archives raise various errors
        raise DataError(f"{file} is not a readable zip file: {error}") from error
    found = named(members, location=str(file), labelled=labelled)
    chosen = [members[path] for path in found.paths]
    odd = [
        member.filename for member in chosen if member.flag_bits & 1 or member.compress_type not in (_STORED, _DEFLATED)
    ]
    if odd:
        raise DataError(f"{file} holds images that are encrypted or packed in another way than deflate: {some_of(odd)}")
    starts = np.array([(0, member.header_offset, member.compress_size) for member in chosen], dtype=np.int64).reshape(
        -1, 3
    )
    packed = {
        "method": np.array([member.compress_type for member in chosen], dtype=np.int64),
        "crc": np.array([member.CRC for member in chosen], dtype=np.int64),
    }
    stamps = np.stack([np.array([member.file_size for member in chosen], dtype=np.int64), packed["crc"]], axis=1)
    reader = _Spans([str(file)], starts, packed)
    return Records(str(file), found.names, found.labels, stamps, reader, left_out=found.left_out)


def shard_records(location: str, files: Sequence[Path]) -> Records:
    """WebDataset: the files of a sample are consecutive, and differ in the part after the first dot."""
    spans: list[tuple[str, int, int, int]] = []  # key, archive, offset, bytes
    labels: dict[str, str] = {}
    for number, file in enumerate(files):
        try:
            with tarfile.open(file, "r:") as archive:
                for member in archive:
                    _take_member(archive, member, number, spans, labels)
                    archive.members = []  # type: ignore[attr-defined]  # frees the list of members, which grows without bound
        except (tarfile.TarError, OSError) as error:
            raise DataError(f"{file} is not a readable tar file: {error}", hint="shards are not compressed") from error
    if not spans:
        raise DataError(f"{location} holds no images")
    spans.sort()
    keys = [key for key, *_ in spans]
    if len(set(keys)) < len(keys):
        raise DataError(f"{location} holds several images under one key", hint="one image for each sample")
    bare = [key for key in keys if key not in labels]
    if bare and labels:
        raise DataError(
            f"{len(bare)} of the {len(keys)} images of {location} have no .cls beside them: {some_of(bare)}"
        )
    found = tuple(interned(labels[key] for key in keys)) if labels else ()
    starts = np.array([span for _, *span in spans], dtype=np.int64)
    indexed = bool(found) and all(label.isdecimal() for label in set(found))
    reader = _Spans([str(file) for file in files], starts)
    return Records(location, keys, found, stamps(starts[:, 2]), reader, indexed=indexed)


def _take_member(
    archive: tarfile.TarFile,
    member: tarfile.TarInfo,
    number: int,
    spans: list[tuple[str, int, int, int]],
    labels: dict[str, str],
) -> None:
    """Record one file of a shard: an image or a class; others are ignored."""
    folder, _, name = member.name.rpartition("/")
    stem, _, ending = name.partition(".")
    key = f"{folder}/{stem}" if folder else stem
    if not member.isfile() or not stem:
        return
    if f".{ending.rpartition('.')[2].lower()}" in SUFFIXES:
        spans.append((key, number, member.offset_data, member.size))
    elif ending == "cls" and (content := archive.extractfile(member)) is not None:
        labels[key] = content.read(_LABEL_BYTES).decode("utf-8", "replace").strip()


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
