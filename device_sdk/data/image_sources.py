"""Sources of labelled images: a folder per class, a zip of such folders, or scikit-learn's digits.

Images are decoded in memory, never extracted to disk, and their size is checked before decoding. A new kind of source
is one function that returns a ``Source`` and one line in ``open_source``.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.errors import CorruptImageError, DataError, PathweaveError
from device_sdk.extras import require

if TYPE_CHECKING:
    from PIL import Image

# By the last decimal digit of the hash.
PARTS = ("search", "calibration", *("report",) * 8)
DIGITS_PARTS = ("search", "search", "calibration", "report", "report", *("train",) * 5)

MAX_IMAGE_PIXELS = 50_000_000  # a file that decodes to more is refused
MAX_IMAGE_FILE_BYTES = 256_000_000
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_GREY_MODES = frozenset({"1", "L", "LA"})
_DEEP_MODES = ("I", "F")  # Pillow would clip them to 8 bits without an error

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """A source of labelled images.

    ``names`` are "class/name.png"; ``read`` decodes one to uint8 [height, width, channels]; ``parts`` names the part of
    an image by the last decimal digit of its name's hash.
    """

    location: str
    names: tuple[str, ...]
    read: Callable[[str], Pixels]
    parts: tuple[str, ...] = PARTS


@contextlib.contextmanager
def open_source(location: str) -> Iterator[Source]:
    """Open a folder, a zip file or ``digits``; a zip stays open until the context is left.

    Raises:
        DataError: no such path, the file is not a zip, or images are nested deeper than in class folders.
        MissingExtraError: ``digits`` without scikit-learn.
    """
    if location == "digits":
        yield _digits()
    elif os.path.isdir(location):
        yield _folder(Path(location))
    elif os.path.exists(location):
        with _open_zip(location) as archive:
            yield _zip(archive, location)
    else:
        raise DataError(f"there is no data at {location}", hint="give a folder, a .zip file or digits")


def read_image(path: Path, *, channels: int) -> Pixels:
    """One image file as uint8 [height, width, channels], 1 (grey) or 3 (RGB).

    Raises:
        DataError: missing, not an image, too large, or a colour image for a model that takes grey ones.
    """
    pixels = _decode(lambda: path.open("rb"), where=str(path))
    if pixels.shape[2] == channels:
        return pixels
    if channels != 3:
        raise DataError(f"{path} is a colour image; the model takes {channels} channel")
    return np.repeat(pixels, 3, axis=2)


def decode_image(data: bytes, *, where: str) -> Pixels:
    """The bytes of an image file as uint8 [height, width, 1 (grey) or 3]; ``where`` names it in errors.

    Raises:
        CorruptImageError: the bytes cannot be decoded as an image.
        DataError: the image is too large or has more than 8 bits per channel.
    """
    return _decode(lambda: io.BytesIO(data), where=where)


def check_image(data: bytes, *, where: str) -> None:
    """Check the header of an image file only; much faster than decoding it.

    Raises:
        CorruptImageError, DataError: as ``decode_image``, as far as the header shows.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image.size, image.mode, where=where)
    except PathweaveError:
        raise
    except Exception as error:  # as above
        raise _unreadable(where, error) from error


def _folder(root: Path) -> Source:
    files = (Path(folder, name).relative_to(root).as_posix() for folder, _, names in os.walk(root) for name in names)
    paths = paths_by_name(files, location=str(root))

    def read(name: str) -> Pixels:
        path = root / paths[name]
        return _decode(lambda: path.open("rb"), where=str(path))

    return Source(str(root), tuple(paths), read)


def _open_zip(location: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(location)
    except Exception as error:  # damaged archives raise many kinds
        raise DataError(f"{location} is not a readable zip file: {error}") from error


def _zip(archive: zipfile.ZipFile, location: str) -> Source:
    paths = paths_by_name(archive.namelist(), location=location)

    def read(name: str) -> Pixels:
        return _decode(lambda: archive.open(paths[name]), where=f"{location}: {paths[name]}")

    return Source(location, tuple(paths), read)


def _digits() -> Source:
    bunch = require("sklearn.datasets", extra="packager").load_digits()
    images = bunch.images.astype(np.uint8)[..., np.newaxis]  # [1797, 8, 8, 1]
    positions = {f"{label}/{position:04d}.png": position for position, label in enumerate(bunch.target)}
    return Source("digits", tuple(positions), lambda name: images[positions[name]], DIGITS_PARTS)


def paths_by_name(paths: Iterable[str], *, location: str) -> dict[str, str]:
    """Image names "class/name.png" -> their paths. Folders that wrap all classes are stripped."""
    pieces = {path: path.split("/") for path in paths if "/" in path and is_image(PurePosixPath(path))}
    while pieces and all(len(piece) > 2 for piece in pieces.values()) and _one_top(pieces.values()):
        pieces = {path: piece[1:] for path, piece in pieces.items()}
    for path, piece in pieces.items():
        if len(piece) != 2:
            raise DataError(
                f"{location}: {path} does not lie directly in a class folder",
                hint="point at the folder that holds one folder per class",
            )
    return {"/".join(piece): path for path, piece in pieces.items()}


def _one_top(pieces: Iterable[list[str]]) -> bool:
    return len({piece[0] for piece in pieces}) == 1


def is_image(path: PurePosixPath) -> bool:
    """Whether a file of this name counts as an image: a known suffix, and not hidden."""
    hidden = any(piece.startswith(".") or piece == "__MACOSX" for piece in path.parts)
    return path.suffix.lower() in SUFFIXES and not hidden


def _decode(open_file: Callable[[], IO[bytes]], *, where: str) -> Pixels:
    """Uint8 [height, width, 1] for grey images, [height, width, 3] for all others."""
    from PIL import Image

    try:
        with open_file() as file:
            data = file.read(MAX_IMAGE_FILE_BYTES + 1)
        _check_bytes(len(data), where=where)
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image.size, image.mode, where=where)
            pixels = np.asarray(_converted(_upright(image)))
    except PathweaveError:
        raise
    except Exception as error:  # decoders and archives raise many kinds on damaged bytes
        raise _unreadable(where, error) from error
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]


def _unreadable(where: str, error: Exception) -> CorruptImageError:
    from PIL import Image

    reason = "unknown format" if isinstance(error, Image.UnidentifiedImageError) else error
    return CorruptImageError(f"{where} is not a readable image: {reason}", hint="replace or delete it")


def _upright(image: Image.Image) -> Image.Image:
    """The image, rotated by its EXIF orientation."""
    from PIL import ExifTags, ImageOps

    if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def _converted(image: Image.Image) -> Image.Image:
    """The image as grey or RGB: palettes resolved, other colour spaces converted, transparency dropped."""
    wanted = "L" if image.mode in _GREY_MODES else "RGB"
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == wanted else image.convert(wanted)


def _check_bytes(count: int, *, where: str) -> None:
    if count > MAX_IMAGE_FILE_BYTES:
        raise DataError(f"{where} is larger than {MAX_IMAGE_FILE_BYTES} bytes")


def _check_pixels(size: tuple[int, int], mode: str, *, where: str) -> None:
    if size[0] * size[1] > MAX_IMAGE_PIXELS:
        raise DataError(f"{where} decodes to {size[0]}×{size[1]} pixels; at most {MAX_IMAGE_PIXELS} are accepted")
    if mode.startswith(_DEEP_MODES):
        raise DataError(
            f"{where} has more than 8 bits per channel (mode {mode})", hint="convert it to 8 bits per channel"
        )
