"""The photographs of ``real-size``, with device-side imports only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import RawInputs
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.data.records import part_of
from device_sdk.data.sources import open_records

SIDE = 224


@dataclass(frozen=True)
class Photographs:
    """Raw images uint8 [height, width, 3], each of its own size, and their labels [count] among the 1,000 classes."""

    images: list[npt.NDArray[np.uint8]]
    labels: npt.NDArray[np.int64]

    def inputs(self, preprocessing: Preprocessing) -> RawInputs:
        """The images as inputs of a search."""
        return RawInputs(self.images, preprocessing, (3, SIDE, SIDE))


def load_photographs(data_folder: Path, parts: tuple[str, ...], *, limit: int | None = None) -> Photographs:
    """The photographs of ``parts`` of val.zip, spread evenly over the classes where there is a ``limit``."""
    wnids = (data_folder / "imagenette" / "imagenet_wnids.txt").read_text().split()
    records = open_records(str(data_folder / "imagenette" / "val.zip"))
    chosen = [at for at, name in enumerate(records.names) if part_of(name) in parts]
    if limit is not None:
        chosen = [chosen[place] for place in np.linspace(0, len(chosen) - 1, min(limit, len(chosen)), dtype=int)]
    images = [records.image(at) for at in chosen]
    images = [image if image.shape[2] == 3 else np.repeat(image, 3, axis=2) for image in images]
    return Photographs(images, np.array([wnids.index(records.labels[at]) for at in chosen]))
