"""Images in zip files, and in WebDataset shards (tar files): read where they lie in the archive, never extracted."""

from __future__ import annotations

import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from device_sdk.data.file_names import SUFFIXES, portable
from device_sdk.data.image_files import MAX_IMAGE_FILE_BYTES
from device_sdk.data.records import Positions, Records, interned, named, some_of, stamps
from device_sdk.errors import CorruptImageError, DataError

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
