"""A data set of images of one size with targets, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from device_sdk.data.image_files import Pixels
from device_sdk.errors import DataError

Size: TypeAlias = tuple[int, int]  # height, width


@dataclass(frozen=True, eq=False)
class TargetDataset:
    """Images of one size with targets.

    ``images``: uint8 [count, height, width, channels]; ``labels``: [count, …], as the task defines its targets;
    ``notes``: a sentence on each kind of images that were left out.
    """

    images: Pixels
    labels: npt.NDArray[np.generic]
    class_names: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def samples(self) -> Pixels:
        """The images."""
        return self.images

    def take(self, positions: Sequence[int] | npt.NDArray[np.integer]) -> TargetDataset:
        """The images at these positions."""
        names = tuple(self.names[int(at)] for at in positions)
        return replace(self, images=self.images[positions], labels=self.labels[positions], names=names)


def spread(names: Sequence[str], limit: int | None) -> list[str]:
    """At most ``limit`` of ``names``, spread evenly."""
    if limit is None or limit >= len(names):
        return list(names)
    return [names[int(at)] for at in np.linspace(0, len(names) - 1, limit)]


def without_target(missing: Sequence[str], found: int, *, location: str, wanted: str) -> tuple[str, ...]:
    """The note on images without a target.

    Raises:
        DataError: no image has one.
    """
    if not found:
        raise DataError(f"{location} has no image with {wanted}", hint=LAYOUTS)
    if not missing:
        return ()
    return (f"{len(missing)} of {found + len(missing)} images have no {wanted}: {', '.join(missing[:3])}",)


LAYOUTS = (
    "maps: images/ and labels/ with a PNG of class numbers each; boxes: Pascal VOC's layout, or YOLO's (the guide)"
)
