"""JPEG encoding and decoding of samples, with bounds on what is decoded."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError

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
