"""A data set of images of one size with targets, in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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


def with_target(
    targets: Mapping[str, str], present: Collection[str], limit: int | None, *, location: str, wanted: str
) -> tuple[list[str], tuple[str, ...]]:
    """The images whose target is ``present``, at most ``limit`` of them, spread evenly, and a note on the others.

    ``targets``: the file of each image's target; ``wanted``: what it holds, in words.

    Raises:
        DataError: no image has one.
    """
    found = [name for name, target in targets.items() if target in present]
    missing = [name for name, target in targets.items() if target not in present]
    if not found:
        raise DataError(f"{location} has no image with {wanted}", hint=LAYOUTS)
    notes = (f"{len(missing)} of {len(targets)} images have no {wanted}: {', '.join(missing[:3])}",) if missing else ()
    if limit is not None and limit < len(found):
        found = [found[int(at)] for at in np.linspace(0, len(found) - 1, limit)]
    return found, notes


LAYOUTS = (
    "maps: images/ and labels/ with a PNG of class numbers each; boxes: Pascal VOC's layout, or YOLO's (the guide)"
)
