"""Files of a folder or a zip by their names, read within bounds."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Protocol

import numpy as np
import numpy.typing as npt

from device_sdk.data.image_files import MAX_IMAGE_FILE_BYTES, Pixels, decode_image, in_channels
from device_sdk.data.preprocessing import resize_image
from device_sdk.errors import DataError

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_MOST_FILES = 1_000_000
_ARCHIVE_BYTES = 100_000_000_000  # unpacked
_TEXT_BYTES = 4_000_000  # of a list or an annotation


class FileTree(Protocol):
    """Files below a root by their names, with ``/`` between folders."""

    location: str

    def names(self) -> Sequence[str]:
        """All names, sorted."""

    def read(self, name: str, most: int = MAX_IMAGE_FILE_BYTES) -> bytes:
        """The bytes of a file (DataError if it is missing, damaged, or larger)."""


@contextlib.contextmanager
def open_tree(reference: str) -> Iterator[tuple[FileTree, str | None]]:
    """The files of ``FOLDER``, ``FILE.zip`` or either with ``#part``, and the part.

    Raises:
        DataError: neither a folder nor a zip.
    """
    location, _, part = reference.partition("#")
    path = Path(location)
    if path.is_dir():
        yield _Folder(path), part or None
        return
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{location} is neither a folder nor a zip that can be read: {error}") from error
    with archive:
        yield _Zip(location, archive), part or None


class _Folder:
    def __init__(self, root: Path) -> None:
        self.location, self._root = str(root), root

    def names(self) -> Sequence[str]:
        found = []
        for path in self._root.rglob("*"):
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(self._root).parts):
                found.append(path.relative_to(self._root).as_posix())
            if len(found) > _MOST_FILES:
                raise DataError(f"{self.location} holds more than {_MOST_FILES:,} files")
        return sorted(found)

    def read(self, name: str, most: int = MAX_IMAGE_FILE_BYTES) -> bytes:
        try:
            with (self._root / name).open("rb") as file:
                data = file.read(most + 1)
        except OSError as error:
            raise DataError(f"{self.location}: {name} cannot be read: {error.strerror}") from error
        return _bounded(data, most, f"{self.location}: {name}")


class _Zip:
    def __init__(self, location: str, archive: zipfile.ZipFile) -> None:
        self.location, self._archive = location, archive
        members = archive.infolist()
        if len(members) > _MOST_FILES or sum(member.file_size for member in members) > _ARCHIVE_BYTES:
            raise DataError(f"{location} unpacks to more than {_MOST_FILES:,} files or {_ARCHIVE_BYTES:,} bytes")

    def names(self) -> Sequence[str]:
        return sorted(
            name for name in self._archive.namelist() if not name.endswith("/") and not name.startswith("__MACOSX/")
        )

    def read(self, name: str, most: int = MAX_IMAGE_FILE_BYTES) -> bytes:
        try:
            with self._archive.open(name) as file:
                data = file.read(most + 1)
        except (KeyError, zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
            raise DataError(f"{self.location}: {name} is missing, damaged or encrypted") from error
        return _bounded(data, most, f"{self.location}: {name}")


def _bounded(data: bytes, most: int, where: str) -> bytes:
    if len(data) > most:
        raise DataError(f"{where} is larger than {most:,} bytes")
    return data


def text_of(tree: FileTree, name: str) -> str:
    """A file as text (DataError)."""
    try:
        return tree.read(name, _TEXT_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{tree.location}: {name} is not UTF-8") from error


def image_of(tree: FileTree, name: str, size: tuple[int, int]) -> Pixels:
    """An image, its whole area at ``size`` (height, width): uint8 [height, width, 3] (DataError)."""
    where = f"{tree.location}: {name}"
    return resize_image(in_channels(decode_image(tree.read(name), where=where), 3, where=where), size)


def class_numbers_of(tree: FileTree, name: str, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """A PNG whose pixels, or numbers in its palette, are classes, at ``size`` by its nearest pixels (DataError)."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(tree.read(name)), formats=("PNG",)) as found:
            if found.mode not in ("L", "P", "1"):
                raise DataError(
                    f"{tree.location}: {name} is a {found.mode} image, not one of class numbers",
                    hint="a PNG in grey or with a palette; the number of each pixel is its class",
                )
            return np.asarray(found.resize((size[1], size[0]), Image.Resampling.NEAREST), dtype=np.uint8)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{tree.location}: {name} is not a PNG that can be read") from error


def images_below(names: Sequence[str], folder: str) -> list[str]:
    """The images in ``folder`` and below it."""
    return [name for name in names if name.startswith(f"{folder}/") and name.lower().endswith(IMAGES)]


def stem(name: str) -> str:
    """The name without its suffix."""
    return str(PurePosixPath(name).with_suffix(""))
