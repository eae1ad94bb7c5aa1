"""Sources of encoded images, read one at a time by position, in any process.

Folders and zips with one folder per class or none, lists in CSV files, WebDataset shards (tar files), and Hugging Face
``datasets`` on disk. Only names, labels and locations are in memory. A new kind is a function that returns ``Records``
and a line in ``open_records``.
"""

from __future__ import annotations

import csv
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.image_sources import SUFFIXES, files_below, is_image, paths_by_name, portable, unread
from device_sdk.errors import CorruptImageError, DataError
from device_sdk.extras import require

Positions = npt.NDArray[np.int64]

_NAMED = 3
_LABEL_BYTES = 1_000
_MOST_OPEN = 16  # archives
_ZIP_HEADER = struct.Struct("<26xHH")  # of a member: lengths of its name and extra field
_STORED, _DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


@dataclass(frozen=True, eq=False)
class Records:
    """Images as files.

    ``names``: unique, and the key for splitting into parts. ``labels``: the class of each, or empty if unlabelled.
    ``stamps`` int64 [count, 2]: size in bytes and checksum, 0 if unknown. ``reader(position)``: returns the bytes, or
    raises CorruptImageError with only the reason. ``indexed``: labels are positions in the model's classes, as decimal
    text. ``left_out``: a sentence on files of formats that are not read; empty without any.
    """

    location: str
    names: Sequence[str]
    labels: Sequence[str]
    stamps: npt.NDArray[np.int64]
    reader: Callable[[int], bytes]
    indexed: bool = False
    left_out: str = ""

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
            raise CorruptImageError(f"{self.where(position)} is not a readable image: {error}") from error

    def take(self, positions: Positions) -> Records:
        """The records at ``positions``, in that order."""
        return replace(
            self,
            names=tuple(self.names[position] for position in positions),
            labels=tuple(self.labels[position] for position in positions) if self.labels else (),
            stamps=self.stamps[positions],
            reader=_Taken(self.reader, np.asarray(positions, dtype=np.int64)),
        )


@dataclass(frozen=True, eq=False)
class _Taken:
    read: Callable[[int], bytes]
    positions: Positions

    def __call__(self, position: int) -> bytes:
        return self.read(int(self.positions[position]))


def open_records(location: str, *, split: str | None = None) -> tuple[Records, bool]:
    """The images at ``location``, and whether ``split`` was one of its own splits and has been applied.

    Raises:
        DataError: missing, empty, or invalid data.
        MissingExtraError: a Hugging Face data set without the library.
    """
    path = Path(location)
    if not path.exists():
        raise DataError(
            f"there is no data at {location}", hint="give a folder, a .zip, a .csv, .tar shards or a data set on disk"
        )
    if path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists()):
        return _hub(path, split)
    if path.is_dir():
        shards = sorted(path.glob("*.tar"))
        return (_shards(location, shards) if shards else _folder(path)), False
    kind = {".csv": _listed, ".tar": lambda file: _shards(str(file), [file])}.get(path.suffix.lower(), _zip)
    return kind(path), False


# Folders and lists


@dataclass(frozen=True, eq=False)
class _Files:
    """Files below a folder."""

    root: str
    paths: Sequence[str]

    def __call__(self, position: int) -> bytes:
        path = Path(self.root, self.paths[position])
        try:
            return path.read_bytes()
        except OSError as error:
            raise CorruptImageError(error.strerror or "it cannot be read") from error


def _folder(root: Path) -> Records:
    found = files_below(root)
    names, labels, paths = _by_class(found, location=str(root))
    sizes = [(root / path).stat().st_size for path in paths]
    return Records(str(root), names, labels, _stamps(sizes), _Files(str(root), paths), left_out=unread(found))


def _by_class(found: Iterable[str], *, location: str) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """Names, labels and paths of the images among ``found``, sorted by name; no labels without folders."""
    images = [path for path in found if is_image(PurePosixPath(path))]
    if images and not any("/" in path for path in images):
        flat = sorted(images)
        return flat, (), flat
    by_name = paths_by_name(images, location=location)
    names = sorted(by_name)
    if not names:
        raise DataError(
            f"{location} holds no images in class folders",
            hint="put the images of each class into a folder named after it",
        )
    return names, tuple(_interned(name.split("/", 1)[0] for name in names)), [by_name[name] for name in names]


def _listed(file: Path) -> Records:
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
    labels = tuple(_interned(label for _, label, _ in entries)) if labelled else ()
    paths = [path for _, _, path in entries]
    return Records(str(file), [name for name, _, _ in entries], labels, _stamps(sizes), _Files(str(root), paths))


def _require_listed(file: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Refuse a list with missing or duplicate images, or with labels for only some of them."""
    seen: set[str] = set()
    twice = [path for path, _ in rows if path in seen or seen.add(path)]  # type: ignore[func-returns-value]
    if twice:
        raise DataError(f"{file} lists an image twice: {_some(twice)}")
    missing = [path for path in seen if not path or not (file.parent / path).is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(rows)} images that {file} lists are missing: {_some(sorted(missing))}",
            hint="paths are relative to the folder of the CSV file",
        )
    bare = [path for path, label in rows if not label]
    if bare and len(bare) < len(rows):
        raise DataError(
            f"{len(bare)} of the {len(rows)} images that {file} lists have no label: {_some(bare)}",
            hint="label them all, or none",
        )


# Archives


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
        if self._packed is None:
            return file.read(length)
        name, more = _ZIP_HEADER.unpack(file.read(_ZIP_HEADER.size))
        file.seek(name + more, os.SEEK_CUR)
        data = file.read(length)
        if self._packed["method"][position] == _DEFLATED:
            data = zlib.decompress(data, -zlib.MAX_WBITS)
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


def _zip(file: Path) -> Records:
    try:
        with zipfile.ZipFile(file) as archive:
            infos = {member.filename: member for member in archive.infolist() if not member.is_dir()}
            members = {name: infos[own] for name, own in portable(infos).items()}
    except Exception as error:  # damaged archives raise various errors
        raise DataError(f"{file} is not a readable zip file: {error}") from error
    names, labels, paths = _by_class(members, location=str(file))
    chosen = [members[path] for path in paths]
    odd = [
        member.filename for member in chosen if member.flag_bits & 1 or member.compress_type not in (_STORED, _DEFLATED)
    ]
    if odd:
        raise DataError(f"{file} holds images that are encrypted or packed in another way than deflate: {_some(odd)}")
    starts = np.array([(0, member.header_offset, member.compress_size) for member in chosen], dtype=np.int64).reshape(
        -1, 3
    )
    packed = {
        "method": np.array([member.compress_type for member in chosen], dtype=np.int64),
        "crc": np.array([member.CRC for member in chosen], dtype=np.int64),
    }
    stamps = np.stack([np.array([member.file_size for member in chosen], dtype=np.int64), packed["crc"]], axis=1)
    return Records(str(file), names, labels, stamps, _Spans([str(file)], starts, packed), left_out=unread(members))


def _shards(location: str, files: Sequence[Path]) -> Records:
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
        raise DataError(f"{len(bare)} of the {len(keys)} images of {location} have no .cls beside them: {_some(bare)}")
    found = tuple(_interned(labels[key] for key in keys)) if labels else ()
    starts = np.array([span for _, *span in spans], dtype=np.int64)
    indexed = bool(found) and all(label.isdecimal() for label in set(found))
    reader = _Spans([str(file) for file in files], starts)
    return Records(location, keys, found, _stamps(starts[:, 2]), reader, indexed=indexed)


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


# Hugging Face


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


def _hub(folder: Path, split: str | None) -> tuple[Records, bool]:
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


def _stamps(sizes: Any) -> npt.NDArray[np.int64]:
    return np.stack([np.asarray(sizes, dtype=np.int64), np.zeros(len(sizes), dtype=np.int64)], axis=1)


def _interned(labels: Iterable[str]) -> Iterable[str]:
    """The labels with equal strings shared in memory."""
    known: dict[str, str] = {}
    return (known.setdefault(label, label) for label in labels)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
