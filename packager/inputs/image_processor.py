"""Preprocessing of a Hugging Face image processor, as devices do it: read from its fields, then compared with it.

A processor resizes and crops in steps of whole pixels; devices do both at once (``Preprocessing``). The comparison runs
the processor itself on smooth pictures of several sizes, so that a step that devices lack is found whatever it is
called.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.preprocessing import Interpolation, Preprocessing, prepare
from packager.errors import ModelLoadError

_NEAREST, _LANCZOS, _BILINEAR, _BICUBIC = 0, 1, 2, 3  # Pillow's numbers
_SHARP = (_LANCZOS, _BICUBIC)
_NAMES = {_NEAREST: "nearest", _LANCZOS: "lanczos", 4: "box", 5: "hamming"}
_SQUASHED_FROM = 384  # pixels: ConvNeXt's processor does not crop from this side on
_LEVIT = 256 / 224  # of the side that LeViT's processor resizes to
_PICTURES = ((500, 500), (301, 257), (240, 400))  # height, width; the first has the shape of most inputs
_ROUNDING = 0.01  # of the spread of what the processor returns

_STRETCHED = "the folder's images are stretched to a square and cropped; devices crop them and keep their aspect ratio"
_HINT = "give --preprocessing, --interpolation and --crop, which take the place of the folder's"


@dataclass(frozen=True)
class ProcessedImages:
    """``preprocessing`` gives what the processor gives, for a model that takes ``input_shape`` [channels, h, w].

    ``reversed_channels``: the model itself gets blue first. ``notes``: sentences on what is done a little differently.
    """

    preprocessing: Preprocessing
    input_shape: tuple[int, int, int]
    reversed_channels: bool = False
    notes: tuple[str, ...] = ()


def read_processor(processor: Any, *, channels: int = 3) -> ProcessedImages:
    """The preprocessing of a transformers image processor.

    Raises:
        ModelLoadError: a step that devices lack, such as padding, or answers that differ from the processor's own.
    """
    settings = processor.to_dict()
    if settings.get("do_pad"):
        raise ModelLoadError("the folder's image processor pads images, which devices do not", hint=_HINT)
    geometry = _geometry(settings, type(processor).__name__)
    interpolation, notes = _interpolation(settings.get("resample"))
    notes = (*notes, _STRETCHED) if geometry.stretched else notes
    scale, mean, std = _normalisation(settings, channels)
    try:
        preprocessing = Preprocessing(
            scale=scale,
            mean=mean,
            std=std,
            resize=geometry.side,
            channels=channels,
            interpolation=interpolation,
            crop=geometry.crop,
        )
    except ValueError as error:
        raise ModelLoadError(f"the folder's image processor cannot be used: {error}", hint=_HINT) from error
    found = ProcessedImages(
        preprocessing, (channels, *geometry.side), bool(settings.get("do_flip_channel_order")), notes
    )
    _require_equal(found, processor, _PICTURES[:1] if geometry.stretched else _PICTURES)
    return found


def resizing_whole(processor: Any, side: tuple[int, int] | None) -> Any:
    """The processor of a detector with images resized to ``side``, or to its own size, and neither padded nor cropped.

    Raises:
        ModelLoadError: its images have no size of their own.
    """
    settings = processor.to_dict()
    own = side or _size(settings.get("size"))
    if not isinstance(own, tuple):
        raise ModelLoadError(
            "the folder's image processor keeps the shape of images: they have no size of their own",
            hint="give --input-shape, such as 3x512x512: images are resized to it as a whole",
        )
    size = {"height": own[0], "width": own[1]}
    changed = settings | {"size": size, "do_pad": False, "pad_size": None, "do_center_crop": False}
    return type(processor).from_dict(changed)


@dataclass(frozen=True)
class _Geometry:
    """Height and width of the input, and the share that is cropped of the largest region of that shape.

    ``stretched``: the processor changes the shape of images before it crops.
    """

    side: tuple[int, int]
    crop: float | None = None
    stretched: bool = False


def _geometry(settings: dict[str, Any], name: str) -> _Geometry:
    """The geometry that a processor's settings state; ``name``: of its class, of which two have rules of their own."""
    size, crop = _size(settings.get("size")), _size(settings.get("crop_size"))
    if not settings.get("do_resize", True):
        size = None
    cropped = crop if settings.get("do_center_crop") else None
    if size is None and cropped is None:
        raise ModelLoadError("the folder's image processor does not say the size of images", hint=_HINT)
    if not isinstance(size, int):
        if cropped is None and size is not None:
            return _Geometry(size)
        if size is None or not isinstance(cropped, tuple):
            raise ModelLoadError("the folder's image processor crops images that it does not resize", hint=_HINT)
        share = max(inner / outer for inner, outer in zip(cropped, size, strict=True))
        return _Geometry(cropped, share, stretched=True) if share < 1 else _Geometry(cropped)
    if name.startswith("ConvNext"):
        return _Geometry((size, size), None if size >= _SQUASHED_FROM else float(settings.get("crop_pct") or 1.0))
    if not isinstance(cropped, tuple):
        raise ModelLoadError(
            f"the folder's image processor resizes the shorter side to {size} and keeps the other: no size of its own",
            hint="give --input-shape with --preprocessing, --interpolation and --crop",
        )
    resized = size / float(settings.get("crop_pct") or 1.0) * (_LEVIT if name.startswith("Levit") else 1.0)
    return _Geometry(cropped, min(max(cropped) / int(resized), 1.0))


def _size(value: Any) -> int | tuple[int, int] | None:
    """A shorter side, or height and width; None if ``value`` states neither."""
    if isinstance(value, dict):
        if value.get("shortest_edge"):
            return int(value["shortest_edge"])
        if value.get("height") and value.get("width"):
            return int(value["height"]), int(value["width"])
        return None
    return (value, value) if isinstance(value, int) and value > 0 else None


def _interpolation(resample: Any) -> tuple[Interpolation, tuple[str, ...]]:
    number = int(resample) if isinstance(resample, numbers.Integral) else _BILINEAR
    chosen: Interpolation = "bicubic" if number in _SHARP else "bilinear"
    if number in (_BILINEAR, _BICUBIC):
        return chosen, ()
    said = f"the folder's images are resized by {_NAMES.get(number, number)}; devices do it by {chosen}"
    return chosen, (said,)


def _normalisation(settings: dict[str, Any], channels: int) -> tuple[float, tuple[float, ...], tuple[float, ...]]:
    """Scale of pixels, mean and deviation per channel, of all that the processor does to values."""
    scale = float(settings.get("rescale_factor") or 1 / 255) if settings.get("do_rescale", True) else 1.0
    mean, std = [0.0] * channels, [1.0] * channels
    if settings.get("do_normalize"):
        mean, std = (_per_channel(settings.get(name), channels) for name in ("image_mean", "image_std"))
    if settings.get("rescale_offset"):
        mean = [value + 1.0 for value in mean]
    if settings.get("include_top"):  # EfficientNet's processor divides once more
        std = [value**2 for value in std]
    if settings.get("do_flip_channel_order"):  # its channels are blue first
        mean, std = mean[::-1], std[::-1]
    return scale, tuple(mean), tuple(std)


def _per_channel(value: Any, channels: int) -> list[float]:
    listed = [value] * channels if isinstance(value, numbers.Real) else value
    if not isinstance(listed, (list, tuple)) or len(listed) != channels:
        raise ModelLoadError(
            f"the folder's image processor has no mean and deviation for {channels} channels", hint=_HINT
        )
    return [float(number) for number in listed]


def _require_equal(found: ProcessedImages, processor: Any, sizes: Sequence[tuple[int, int]]) -> None:
    """Refuse a preprocessing that differs by more than a pixel's shift from what the processor makes of pictures."""
    for height, width in sizes:
        picture = _picture(height, width)
        try:
            theirs = np.asarray(processor(images=[picture], return_tensors="np")["pixel_values"])
        except Exception as error:  # a processor may raise anything
            raise ModelLoadError(f"the folder's image processor fails on a picture: {error}", hint=_HINT) from error
        ours = prepare(picture, found.preprocessing, input_shape=found.input_shape)
        ours = ours[:, ::-1] if found.reversed_channels else ours
        if theirs.shape != ours.shape:
            raise ModelLoadError(
                f"the folder's image processor makes pictures of shape {theirs.shape[1:]}, not {ours.shape[1:]}",
                hint=_HINT,
            )
        spread = max(float(theirs.std()), 1e-6)
        shifted = float(np.abs(theirs[..., 1:, 1:] - theirs[..., :-1, :-1]).mean())  # by a pixel
        difference = float(np.abs(theirs - ours).mean())
        if difference > shifted + _ROUNDING * spread:
            raise ModelLoadError(
                "the folder's image processor does what devices cannot: its pictures differ by"
                f" {difference / spread:.0%} of their spread",
                hint=_HINT,
            )


def _picture(height: int, width: int) -> npt.NDArray[np.uint8]:
    """A smooth colour picture, each channel with a course of its own: uint8 [height, width, 3]."""
    down, across = np.linspace(0, 1, height)[:, None], np.linspace(0, 1, width)[None, :]
    red = down + 0 * across
    green = 0 * down + across
    blue = 0.5 + 0.5 * np.sin(6 * down + 4 * across)
    return np.rint(255 * np.stack([red, green, blue], axis=2)).astype(np.uint8)
