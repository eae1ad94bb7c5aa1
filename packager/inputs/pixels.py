"""Preprocessing given by the user, for a model with unknown or wrong preprocessing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from device_sdk.data.preprocessing import Interpolation, Preprocessing
from device_sdk.errors import UsageError

Numbers = tuple[float, ...]

_BRIGHTEST = 255
_BRIGHT_UNITS = 16.0  # a range above it is of no pixels 0 to 1, nor of any unit near it

# Mean and standard deviation of pixels from 0 to 1.
NAMED: dict[str, tuple[Numbers, Numbers]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "inception": ((0.5,), (0.5,)),  # from −1 to 1
    "unit": ((0.0,), (1.0,)),
}


@dataclass(frozen=True)
class Pixels:
    """Overrides of a model's own preprocessing; None keeps a part.

    ``normalisation``: mean and standard deviation of pixels from 0 to 1, one number or one per channel. ``crop``: a
    share, or "whole" (see ``Preprocessing.crop``).
    """

    normalisation: tuple[Numbers, Numbers] | None = None
    interpolation: Interpolation | None = None
    crop: float | Literal["whole"] | None = None

    def alone(self, channels: int) -> Preprocessing | None:
        """The preprocessing for a model without its own; None without a normalisation.

        Raises:
            UsageError: the normalisation is for another number of channels.
        """
        if self.normalisation is None:
            return None
        return self.applied_to(Preprocessing(1 / 255, (0.0,) * channels, (1.0,) * channels, channels=channels))

    def applied_to(self, own: Preprocessing) -> Preprocessing:
        """``own`` with these overrides.

        Raises:
            UsageError: as for ``alone``.
        """
        chosen = msgspec.structs.replace(
            own,
            interpolation=self.interpolation or own.interpolation,
            crop=own.crop if self.crop is None else None if self.crop == "whole" else self.crop,
        )
        if self.normalisation is None:
            return chosen
        mean, std = (_spread(values, own.channels) for values in self.normalisation)
        return msgspec.structs.replace(chosen, scale=1 / 255, mean=mean, std=std)


def parse_normalisation(text: str) -> tuple[Numbers, Numbers]:
    """``imagenet``, ``inception``, ``unit``, or ``MEAN/STD``: numbers for pixels from 0 to 1, such as 0.5,0.5,0.5/0.25.

    Raises:
        ValueError: none of these; the message lists them.
    """
    if text in NAMED:
        return NAMED[text]
    mean, separator, std = text.partition("/")
    try:
        numbers = tuple(tuple(float(number) for number in part.split(",")) for part in (mean, std))
    except ValueError:
        numbers = ()
    if not separator or not numbers:
        raise ValueError(
            f"give {', '.join(NAMED)}, or MEAN/STD of pixels from 0 to 1, such as 0.5,0.5,0.5/0.25,0.25,0.25"
        )
    if not all(math.isfinite(number) for number in numbers[0] + numbers[1]) or min(numbers[1]) <= 0:
        raise ValueError("means must be finite, deviations above zero")
    return numbers[0], numbers[1]


def require_fitting_scale(preprocessing: Preprocessing) -> None:
    """Refuse means and deviations that are for pixels of another range than the scale makes.

    Raises:
        UsageError: a mean lies outside the range of scaled pixels, or both are for pixels 0 to 1 and these are not.
    """
    top = _BRIGHTEST * preprocessing.scale
    mean, std = preprocessing.mean, preprocessing.std
    least, most = min(0.0, top), max(0.0, top)
    if any(not least - 1 <= value <= most + 1 for value in mean):
        raise UsageError(
            f"pixels are scaled to {least:g} to {most:g}, but the means are {_listed(mean)}",
            hint=f"for pixels 0 to 1 they are {_listed(value / _BRIGHTEST for value in mean)}, with deviations"
            f" {_listed(value / _BRIGHTEST for value in std)}",
        )
    if top > _BRIGHT_UNITS and 0 < max(mean) <= 1 and max(std) <= 1:
        raise UsageError(
            f"pixels are scaled to 0 to {most:g}, but means {_listed(mean)}, deviations {_listed(std)} are for 0 to 1",
            hint="scale pixels to 0 to 1 (scale 1/255), or multiply means and deviations by 255",
        )


def _listed(values: Iterable[float]) -> str:
    return ",".join(f"{value:.4g}" for value in values)


def nearest_interpolation(name: str) -> Interpolation:
    """The interpolation of this name, or the nearest that devices support: sharp kernels become bicubic."""
    return "bicubic" if name in ("bicubic", "lanczos") else "bilinear"


def _spread(values: Numbers, channels: int) -> Numbers:
    if len(values) == 1:
        return values * channels
    if len(values) != channels:
        raise UsageError(
            f"the preprocessing is for {len(values)} channels, the model takes {channels}",
            hint="one number for each channel, or one for all",
        )
    return values
