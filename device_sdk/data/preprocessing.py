"""Preprocessing of raw pixels: bit-identical for single images and batches, on every device.

Shape legend: height h, width w, channels c, images n. Raw images are uint8, channels last, as decoders return them;
prepared tensors are float32, channels first.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError

if TYPE_CHECKING:
    from PIL import Image

Interpolation = Literal["bilinear", "bicubic"]

MAX_SIDE = 16_384  # pixels, the limit in a manifest
_MODES = {1: "L", 3: "RGB"}  # channels -> Pillow's mode
GREY_MODES = frozenset({"1", "L", "LA"})
DEEP_MODES = ("I", "F")  # Pillow would clip them to 8 bits without an error


class AnyPreprocessing:
    """The preprocessing of samples of any kind, as a manifest states it; ``device_sdk.data.kinds`` lists the kinds."""

    __slots__ = ()

    def blobs(self) -> dict[str, int]:
        """Blobs that preparing needs, with their bytes."""
        raise NotImplementedError

    def accepts(self, shape: tuple[int, ...], dtype: str) -> bool:
        """True if a model whose input has this shape, without the batch axis, and type takes what it prepares."""
        raise NotImplementedError

    def of_images(self) -> Preprocessing:
        """The preprocessing of images (UsageError where it is of other samples)."""
        raise UsageError("this needs a model of images; the model takes other samples")


class Preprocessing(msgspec.Struct, AnyPreprocessing, frozen=True):
    """A model's preprocessing of images: ``prepared = (pixel * scale - mean) / std`` per channel, in float32.

    Every step is rounded to float32. ``resize`` (height, width): the model's input size; images of another size are
    resized with Pillow's antialiasing, or refused if it is None. ``crop``: None resizes the whole image, ignoring its
    aspect ratio; a value in (0, 1] resizes the central region with the target's aspect ratio, that fraction of the
    largest such region in height and width (``crop_pct`` of timm, resize and centre crop of torchvision in one step).
    An image of exactly ``resize`` is not cropped.

    Raises:
        ValueError: a value is out of range (msgspec turns it into a validation error when decoding).
    """

    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: tuple[int, int] | None = None
    channels: int = 3
    interpolation: Interpolation = "bilinear"
    crop: float | None = None

    def __post_init__(self) -> None:
        if not len(self.mean) == len(self.std) == self.channels > 0:
            raise ValueError(
                f"{self.channels} channels need as many means and deviations, not {len(self.mean)} and {len(self.std)}"
            )
        if not all(math.isfinite(value) for value in (self.scale, *self.mean, *self.std)):
            raise ValueError("scale, mean and std must be finite")
        if not all(value > 0 for value in self.std):
            raise ValueError("every std must be above zero")
        if self.interpolation not in get_args(Interpolation):
            raise ValueError(f"interpolation is one of {', '.join(get_args(Interpolation))}")
        if self.crop is not None and not 0 < self.crop <= 1:
            raise ValueError("crop is a share above 0 and up to 1")
        if self.resize is not None:
            if not all(1 <= side <= MAX_SIDE for side in self.resize):
                raise ValueError(f"resize must lie between 1 and {MAX_SIDE} pixels")
            if self.channels not in _MODES:
                raise ValueError("resize works with 1 or 3 channels")

    def blobs(self) -> dict[str, int]:
        """None."""
        return {}

    def accepts(self, shape: tuple[int, ...], dtype: str) -> bool:
        """True also for inputs that are no images: these are given prepared."""
        return True

    def of_images(self) -> Preprocessing:
        """Itself."""
        return self


def prepare(
    images: npt.NDArray[np.uint8] | Image.Image,
    preprocessing: Preprocessing,
    *,
    input_shape: tuple[int, int, int],
    input_size: tuple[int, ...] = (),
) -> npt.NDArray[np.float32]:
    """Prepare one image or a batch for a model that takes ``input_shape`` [c, h, w].

    ``input_size``: of the plan, empty for the model's own. Where the preprocessing does not resize pixels, what is
    prepared is resized.

    ``images``: uint8 [h, w, c], grey [h, w], a batch [n, h, w, c], or a Pillow image. If the preprocessing resizes, the
    result has the height and width of ``input_shape``, which may differ from ``preprocessing.resize``.

    Returns: float32 [n, c, h, w], C-contiguous; n is 1 for one image.

    Raises:
        InputError: unexpected rank, type, channel count or size; the message states both.
    """
    if input_size and preprocessing.resize is None:
        return resize_planes(prepare(images, preprocessing, input_shape=input_shape), input_size)
    if input_size:
        input_shape = (input_shape[0], input_size[0], input_size[1])
    batch = _as_batch(images, channels=preprocessing.channels)  # [n, h, w, c]
    if preprocessing.resize is not None and batch.shape[1:3] != input_shape[1:]:
        batch = np.stack([fit_image(image, preprocessing, size=input_shape[1:]) for image in batch])
    channels_first = batch.transpose(0, 3, 1, 2)  # [n, c, h, w]
    if channels_first.shape[1:] != input_shape:
        raise InputError(
            f"expected images of height, width, channels {_last(input_shape)}, got {batch.shape[1:]}",
            hint="resize them to the model's input",
        )
    prepared = np.empty(channels_first.shape, dtype=np.float32)
    np.multiply(channels_first, np.float32(preprocessing.scale), out=prepared)
    prepared -= _per_channel(preprocessing.mean)
    prepared /= _per_channel(preprocessing.std)
    return prepared


def resize_planes(tensors: npt.NDArray[np.float32], size: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Prepared images [count, channels, height, width] at another size, bilinear with antialiasing.

    Resizing is linear, so the result equals that of resizing the pixels, except for their rounding to 8 bits.
    """
    from PIL import Image

    count, channels = tensors.shape[:2]
    resized = np.empty((count, channels, *size), dtype=np.float32)
    for sample in range(count):
        for channel in range(channels):
            plane = Image.fromarray(np.ascontiguousarray(tensors[sample, channel]), mode="F")
            resized[sample, channel] = np.asarray(plane.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    return resized


def unprepare(tensors: npt.NDArray[np.float32], preprocessing: Preprocessing) -> npt.NDArray[np.uint8]:
    """The pixels that ``prepare`` made ``tensors`` [n, c, h, w] from: uint8 [n, h, w, c].

    Exact for 8-bit pixels of the same size that stay distinct in float32 (not with a scale far below the mean); else
    the nearest 8-bit pixels.

    Raises:
        InputError: not a batch with these channels, not finite, or prepared with a scale of zero.
    """
    if tensors.ndim != 4 or tensors.shape[1] != preprocessing.channels:
        raise InputError(f"expected tensors [n, {preprocessing.channels}, h, w], got shape {tensors.shape}")
    if preprocessing.scale == 0:
        raise InputError("a scale of zero leaves nothing to recover pixels from")
    if not np.isfinite(tensors).all():
        raise InputError("tensors that hold NaN or infinity have no pixels")
    scaled = tensors * _per_channel(preprocessing.std, np.float64) + _per_channel(preprocessing.mean, np.float64)
    pixels = np.clip(np.rint(scaled / preprocessing.scale), 0, 255).astype(np.uint8)  # [n, c, h, w]
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))


def fit_image(
    image: npt.NDArray[np.uint8], preprocessing: Preprocessing, *, size: tuple[int, int] | None = None
) -> npt.NDArray[np.uint8]:
    """Crop and resize uint8 [h, w, c] with 1 or 3 channels to ``size`` (height, width).

    ``size``: ``preprocessing.resize`` unless given. An image of ``size`` is returned unchanged; one of
    ``preprocessing.resize`` is resized without cropping.
    """
    size = size or preprocessing.resize
    if size is None or image.shape[:2] == size:
        return image
    crop = None if image.shape[:2] == preprocessing.resize else preprocessing.crop
    box = None if crop is None else _central_box((image.shape[0], image.shape[1]), size, share=crop)
    return resize_image(image, size, interpolation=preprocessing.interpolation, box=box)


def resize_image(
    image: npt.NDArray[np.uint8],
    size: tuple[int, int],
    *,
    interpolation: Interpolation = "bilinear",
    box: tuple[float, float, float, float] | None = None,
) -> npt.NDArray[np.uint8]:
    """Resize uint8 [h, w, c] with 1 or 3 channels to ``size`` (height, width), with antialiasing.

    ``box``: left, top, right, bottom in pixels of the region to resize; None: the whole image.
    """
    from PIL import Image

    if box is None and image.shape[:2] == size:
        return image
    pixels = image[..., 0] if image.shape[2] == 1 else image
    resampling = Image.Resampling.BICUBIC if interpolation == "bicubic" else Image.Resampling.BILINEAR
    resized = Image.fromarray(pixels).resize((size[1], size[0]), resampling, box=box)
    return np.asarray(resized).reshape(*size, image.shape[2])


def _central_box(image: tuple[int, int], size: tuple[int, int], *, share: float) -> tuple[float, float, float, float]:
    """The central region of an image (height, width) with the aspect ratio of ``size``; see ``Preprocessing.crop``."""
    height, width = image
    scale = min(height / size[0], width / size[1]) * share
    half_height, half_width = size[0] * scale / 2, size[1] * scale / 2
    left, top = max(width / 2 - half_width, 0.0), max(height / 2 - half_height, 0.0)
    return left, top, min(width / 2 + half_width, width), min(height / 2 + half_height, height)


def as_pixels(image: npt.NDArray[np.uint8] | Image.Image, *, channels: int) -> npt.NDArray[np.uint8]:
    """One image as uint8 [h, w, c] with the expected channels.

    Raises:
        InputError: another rank, type or channel count than expected.
    """
    batch = _as_batch(image, channels=channels)
    if len(batch) != 1:
        raise InputError(f"expected one image [h, w, {channels}], got shape {_shape(image)}")
    return batch[0]


def _as_batch(images: npt.NDArray[np.uint8] | Image.Image, *, channels: int) -> npt.NDArray[np.uint8]:
    """Uint8 [n, h, w, c] with the expected channels and at least one pixel, or an InputError."""
    pixels = images if isinstance(images, np.ndarray) else _from_pillow(images, channels=channels)
    if pixels.dtype != np.uint8:
        raise InputError(
            f"expected pixels of type uint8, got {pixels.dtype}",
            hint="pass raw pixels 0 to 255; prepared tensors go to model.infer",
        )
    if pixels.ndim == 2:
        pixels = pixels[..., np.newaxis]
    if pixels.ndim == 3:
        pixels = pixels[np.newaxis]
    if pixels.ndim != 4 or pixels.size == 0:
        raise InputError(
            f"expected an image [h, w, {channels}] or a batch [n, h, w, {channels}], got shape {_shape(images)}"
        )
    if pixels.shape[3] != channels:
        raise InputError(
            f"expected {channels} channels last, got shape {_shape(images)}",
            hint="grey images are [h, w] or [n, h, w, 1], colour images [h, w, 3] or [n, h, w, 3]",
        )
    return pixels


def _shape(images: npt.NDArray[np.uint8] | Image.Image) -> tuple[int, ...]:
    """The shape that the caller passed, for messages."""
    return images.shape if isinstance(images, np.ndarray) else (images.height, images.width)


def _from_pillow(image: Image.Image, *, channels: int) -> npt.NDArray[np.uint8]:
    from PIL import Image

    if not isinstance(image, Image.Image):
        raise InputError(f"expected a numpy array or a Pillow image, got {type(image).__name__}")
    if channels not in _MODES:
        raise InputError(f"expected an array with {channels} channels, got a Pillow image of mode {image.mode}")
    if image.mode.startswith(DEEP_MODES):
        raise InputError(
            f"the image has more than 8 bits per channel (mode {image.mode})", hint="convert it to 8 bits per channel"
        )
    if channels == 1 and image.mode not in GREY_MODES:
        raise InputError(
            f"this is a colour image (mode {image.mode}); the model takes 1 channel",
            hint="convert it to grey, as for training: image.convert('L')",
        )
    return np.asarray(upright(image).convert(_MODES[channels]))


def upright(image: Image.Image) -> Image.Image:
    """The image, rotated by its EXIF orientation."""
    from PIL import ExifTags, ImageOps

    if image.getexif().get(ExifTags.Base.Orientation, 1) == 1:
        return image
    return ImageOps.exif_transpose(image)


def _per_channel(values: tuple[float, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
    return np.array(values, dtype=dtype).reshape(-1, 1, 1)


def _last(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    channels, height, width = shape
    return height, width, channels
