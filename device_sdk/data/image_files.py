"""Image files of all common kinds, decoded within bounds; JPEGs also encoded."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.data.preprocessing import DEEP_MODES, GREY_MODES, upright
from device_sdk.errors import CorruptImageError, DataError, InputError, PathweaveError, UsageError

if TYPE_CHECKING:
    from PIL import Image

MAX_IMAGE_PIXELS = 50_000_000  # a file that decodes to more is refused
MAX_IMAGE_FILE_BYTES = 256_000_000
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "AVIF", "PPM", "TIFF")

Pixels = npt.NDArray[np.uint8]


def read_image(path: Path, *, channels: int) -> Pixels:
    """One image file as uint8 [height, width, channels], 1 (grey) or 3 (RGB).

    Raises:
        DataError: missing, not an image, too large, or a colour image for a model that takes grey ones.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise _unreadable(str(path), error) from error
    return in_channels(decode_image(data, where=str(path)), channels, where=str(path))


def read_file(path: Path) -> bytes:
    """The bytes of an image file, up to one more than are accepted. Raises OSError."""
    with path.open("rb") as file:
        return file.read(MAX_IMAGE_FILE_BYTES + 1)


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
    from PIL import Image

    _check_bytes(len(data), where=where)
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _check_pixels(image.size, image.mode, where=where)
            pixels = np.asarray(_converted(upright(image)))
    except PathweaveError:
        raise
    except Exception as error:  # decoders raise many kinds on damaged bytes
        raise _unreadable(where, error) from error
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]


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


QUALITY = 90  # Pillow's scale, 1 to 95
MAX_SIDE = 1024  # pixels of a decoded image's height and width
CONTENT = "image/jpeg"
_MODES = {1: "L", 3: "RGB"}  # channels -> Pillow's mode


def encode_jpeg(image: npt.NDArray[np.uint8], *, quality: int = QUALITY) -> bytes:
    """uint8 [h, w, c], c 1 or 3, as a JPEG; colours are subsampled below quality 90 only.

    Raises:
        InputError: another number of channels, or a side above ``MAX_SIDE``.
        UsageError: ``quality`` is not 1 to 95.
    """
    from PIL import Image

    check_quality(quality)
    if image.ndim != 3 or image.shape[2] not in _MODES or not 0 < max(image.shape[:2]) <= MAX_SIDE:
        raise InputError(f"a JPEG takes up to {MAX_SIDE} x {MAX_SIDE} pixels of 1 or 3 channels, not {image.shape}")
    pixels = image[..., 0] if image.shape[2] == 1 else image
    encoded = io.BytesIO()
    full = {"subsampling": 0} if image.shape[2] == 3 and quality >= 90 else {}
    Image.fromarray(pixels).save(encoded, "JPEG", quality=quality, **full)
    return encoded.getvalue()


def check_quality(quality: int) -> None:
    """Raises UsageError unless ``quality`` is a JPEG's, from 1 to 95."""
    if not 1 <= quality <= 95:
        raise UsageError(f"the JPEG quality is {quality}; it must be from 1 to 95")


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Height and width that the header of a JPEG states; nothing is decoded.

    Raises:
        InputError: not a JPEG, or a side above ``MAX_SIDE``.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            width, height = image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError("an image is not a JPEG") from error
    if not 0 < max(width, height) <= MAX_SIDE:
        raise InputError(f"a JPEG has {width} x {height} pixels, the limit is {MAX_SIDE} x {MAX_SIDE}")
    return height, width


def decode_jpeg(data: bytes, *, channels: int) -> npt.NDArray[np.uint8]:
    """The pixels of a JPEG, uint8 [h, w, channels]. Orientation tags are ignored.

    Raises:
        InputError: not a JPEG, cut short, a side above ``MAX_SIDE``, or other channels.
    """
    from PIL import Image

    jpeg_size(data)
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            if image.mode != _MODES.get(channels):
                raise InputError(f"a JPEG has mode {image.mode}, the model takes {channels} channels")
            pixels = np.asarray(image)
    except (OSError, ValueError, SyntaxError) as error:
        raise InputError("a JPEG is damaged or cut short") from error
    return pixels.reshape(*pixels.shape[:2], channels)


def encode_all(images: Sequence[npt.NDArray[np.uint8]], *, quality: int = QUALITY) -> npt.NDArray[np.object_]:
    """Each image as a JPEG; bytes objects [n]."""
    encoded = np.empty(len(images), object)
    encoded[:] = [encode_jpeg(image, quality=quality) for image in images]
    return encoded
