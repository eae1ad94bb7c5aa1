"""Images with targets for each pixel or object, from folders and zips: a file per kind of target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from device_sdk.data.targets.boxes import classes_of_boxes, load_boxes
from device_sdk.data.targets.maps import load_maps
from device_sdk.data.targets.target_dataset import Size, TargetDataset

__all__ = ["LOADERS", "TargetDataset", "classes_of_boxes", "load_boxes", "load_maps"]

# by the kind of a task: reference, classes, size, limit
LOADERS: Mapping[str, Callable[[str, Sequence[str], Size, int | None], TargetDataset]] = {
    "segmentation": load_maps,
    "detection": load_boxes,
}
