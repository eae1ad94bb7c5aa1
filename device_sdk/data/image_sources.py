"""Sources of labelled images: a folder per class, a zip of such folders, or scikit-learn's digits.

Images are decoded in memory, never extracted to disk, and their size is checked before decoding. A new kind of source
is one function that returns a ``Source`` and one line in ``open_source``.
"""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.data.preprocessing import DEEP_MODES, GREY_MODES, upright
from device_sdk.errors import CorruptImageError, DataError, PathweaveError
from device_sdk.extras import require

if TYPE_CHECKING:
    from PIL import Image

# By the last decimal digit of the hash.
PARTS = ("search", "calibration", *("report",) * 8)
DIGITS_PARTS = ("search", "search", "calibration", "report", "report", *("train",) * 5)

MAX_IMAGE_PIXELS = 50_000_000  # a file that decodes to more is refused
MAX_IMAGE_FILE_BYTES = 256_000_000
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".gif", ".webp", ".avif", ".ppm", ".pgm", ".tif", ".tiff"}
)
UNREAD_SUFFIXES = frozenset({".heic", ".heif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raw", ".svg"})
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "AVIF", "PPM", "TIFF")
MAX_CORRUPT_SHARE = 0.1  # of a set; more are refused instead of left out
_NAMED = 3  # images named in a message

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Source:
    """A source of labelled images.

    ``names`` are "class/name.png"; ``read`` decodes one to uint8 [height, width, channels]; ``parts`` names the part of
    an image by the last decimal digit of its name's hash. ``left_out``: a sentence on files that look like images and
    are of a format that is not read; empty without any.
    """

    location: str
    names: tuple[str, ...]
    read: Callable[[str], Pixels]
    parts: tuple[str, ...] = PARTS
    left_out: str = ""


@contextlib.contextmanager
def open_source(location: str, *, labelled: bool = True) -> Iterator[Source]:
    """Open a folder, a zip file or ``digits``; a zip stays open until the context is left.

    Not ``labelled``: all images below the location, wherever they lie; names are their paths.

    Raises:
        DataError: no such path, the file is not a zip, or images are nested deeper than in class folders.
        MissingExtraError: ``digits`` without scikit-learn.
    """
    if location == "digits":
        yield _digits()
    elif os.path.isdir(location):
        yield _folder(Path(location), labelled=labelled)
    elif os.path.exists(location) and is_image(PurePosixPath(Path(location).name)) and not labelled:
        path = Path(location)
        yield Source(location, (path.name,), lambda _: _decode(lambda: path.open("rb"), where=location))
    elif os.path.exists(location):
        with _open_zip(location) as archive:
            yield _zip(archive, location, labelled=labelled)
    else:
        raise DataError(f"there is no data at {location}", hint="give a folder, a .zip file or digits")


def read_image(path: Path, *, channels: int) -> Pixels:
    """One image file as uint8 [height, width, channels], 1 (grey) or 3 (RGB).

    Raises:
        DataError: missing, not an image, too large, or a colour image for a model that takes grey ones.
    """
    return in_channels(_decode(lambda: path.open("rb"), where=str(path)), channels, where=str(path))


def in_channels(pixels: Pixels, channels: int, *, where: str) -> Pixels:
    """``pixels`` [height, width, 1 or 3] with 1 or 3 channels: grey is repeated.

    Raises:
        DataError: a colour image for a model that takes grey ones.
    """
    if pixels.shape[2] == channels:
        return pixels
    if channels != 3:
        raise DataError(
            f"{where} is a colour image; the model takes {channels} channel", hint="convert it to grey, as for training"
        )
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


def files_below(root: Path) -> list[str]:
    """Paths of all files below ``root``, relative to it, with slashes; follows linked folders, but not in circles."""
    found: list[str] = []
    above: dict[str, frozenset[str]] = {str(root): frozenset({os.path.realpath(root)})}
    for folder, folders, names in os.walk(root, followlinks=True):
        seen = above.pop(folder)
        real = {name: os.path.realpath(os.path.join(folder, name)) for name in folders}
        folders[:] = [name for name in folders if real[name] not in seen]
        above |= {os.path.join(folder, name): seen | {real[name]} for name in folders}
        found += [Path(folder, name).relative_to(root).as_posix() for name in names]
    return found


def portable(names: Iterable[str]) -> dict[str, str]:
    """Names of a zip's members with slashes, and as they stand there: older tools on Windows write backslashes."""
    return {name.replace("\\", "/"): name for name in names}


def unread(files: Iterable[str]) -> str:
    """A sentence on files that look like images and are of a format that is not read; empty without any."""
    paths = [PurePosixPath(file) for file in files]
    others = [path for path in paths if path.suffix.lower() in UNREAD_SUFFIXES and not _is_hidden(path)]
    if not others:
        return ""
    kinds = ", ".join(sorted({path.suffix.lower() for path in others}))
    return f"{len(others)} files of formats that are not read ({kinds}) were left out"


def _paths(files: Iterable[str], *, labelled: bool, location: str) -> dict[str, str]:
    if labelled:
        return paths_by_name(files, location=location)
    return {file: file for file in files if is_image(PurePosixPath(file))}


def _folder(root: Path, *, labelled: bool) -> Source:
    files = files_below(root)
    paths = _paths(files, labelled=labelled, location=str(root))

    def read(name: str) -> Pixels:
        path = root / paths[name]
        return _decode(lambda: path.open("rb"), where=str(path))

    return Source(str(root), tuple(paths), read, left_out=unread(files))


def _open_zip(location: str) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(location)
    except Exception as error:  # damaged archives raise many kinds
        raise DataError(f"{location} is not a readable zip file: {error}") from error


def _zip(archive: zipfile.ZipFile, location: str, *, labelled: bool) -> Source:
    members = portable(archive.namelist())
    paths = _paths(members, labelled=labelled, location=location)

    def read(name: str) -> Pixels:
        return _decode(lambda: archive.open(members[paths[name]]), where=f"{location}: {paths[name]}")

    return Source(location, tuple(paths), read, left_out=unread(members))


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
    return path.suffix.lower() in SUFFIXES and not _is_hidden(path)


def _is_hidden(path: PurePosixPath) -> bool:
    return any(piece.startswith(".") or piece == "__MACOSX" for piece in path.parts)


def _decode(open_file: Callable[[], IO[bytes]], *, where: str) -> Pixels:
    """Uint8 [height, width, 1] for grey images, [height, width, 3] for all others."""
    from PIL import Image

    try:
        with open_file() as file:
            data = file.read(MAX_IMAGE_FILE_BYTES + 1)
        _check_bytes(len(data), where=where)
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image.size, image.mode, where=where)
            pixels = np.asarray(_converted(upright(image)))
    except PathweaveError:
        raise
    except Exception as error:  # decoders and archives raise many kinds on damaged bytes
        raise _unreadable(where, error) from error
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]


def _unreadable(where: str, error: Exception) -> CorruptImageError:
    from PIL import Image

    reason = "unknown format" if isinstance(error, Image.UnidentifiedImageError) else error
    return CorruptImageError(f"{where} is not a readable image: {reason}", hint="replace or delete it")


def _converted(image: Image.Image) -> Image.Image:
    """The image as grey or RGB: palettes resolved, other colour spaces converted, transparency dropped."""
    wanted = "L" if image.mode in GREY_MODES else "RGB"
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == wanted else image.convert(wanted)


def require_few_corrupt(reasons: Sequence[str], *, total: int, location: str) -> None:
    """Refuse more than a tenth of images that cannot be read; names the first few (DataError)."""
    if len(reasons) > MAX_CORRUPT_SHARE * total:
        raise DataError(
            f"{len(reasons)} of the {total} images of {location} are corrupt,"
            f" more than {MAX_CORRUPT_SHARE:.0%}: {'; '.join(reasons[:_NAMED])}",
            hint="replace or delete them",
        )


def _check_bytes(count: int, *, where: str) -> None:
    if count > MAX_IMAGE_FILE_BYTES:
        raise DataError(f"{where} is larger than {MAX_IMAGE_FILE_BYTES} bytes")


def _check_pixels(size: tuple[int, int], mode: str, *, where: str) -> None:
    if size[0] * size[1] > MAX_IMAGE_PIXELS:
        raise DataError(f"{where} decodes to {size[0]}×{size[1]} pixels; at most {MAX_IMAGE_PIXELS} are accepted")
    if mode.startswith(DEEP_MODES):
        raise CorruptImageError(
            f"{where} has more than 8 bits per channel (mode {mode})", hint="convert it to 8 bits per channel"
        )
