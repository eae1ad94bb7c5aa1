"""Images with a map of classes each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from device_sdk.data.targets.file_tree import class_numbers_of, image_of, images_below, open_tree, stem
from device_sdk.data.targets.target_dataset import LAYOUTS, Size, TargetDataset, with_target
from device_sdk.data.unlabelled import IGNORED
from device_sdk.errors import DataError


def load_maps(reference: str, class_names: Sequence[str], size: Size, limit: int | None = None) -> TargetDataset:
    """The images of a folder or zip with a PNG of class numbers each; numbers that are no class become ``IGNORED``.

    ``images/NAME.jpg`` with ``labels/NAME.png``, for a ``#part`` below ``images/PART`` and ``labels/PART``; or ``PART``
    with ``PARTannot`` (SegNet's layout). ``labels``: uint8 [count, height, width].

    Args:
        size: height and width that images and maps are resized to, whatever their shape.
        limit: at most so many images, spread evenly.

    Raises:
        DataError: no such files, a damaged one, or a map that is not of class numbers; names it.
    """
    with open_tree(reference) as (tree, part):
        names = tree.names()
        below = f"/{part}" if part else ""
        pairs = [(f"images{below}", f"labels{below}"), *([(part, f"{part}annot")] if part else [])]
        folder, annotations = next((one for one in pairs if images_below(names, one[0])), (None, ""))
        if folder is None:
            raise DataError(f"{reference} has no images in {' or '.join(f'{one}/' for one, _ in pairs)}", hint=LAYOUTS)
        targets = {name: f"{annotations}{stem(name)[len(folder) :]}.png" for name in images_below(names, folder)}
        kept, notes = with_target(targets, set(names), limit, location=reference, wanted="map of classes")
        images = np.stack([image_of(tree, name, size) for name in kept])
        maps = np.stack([class_numbers_of(tree, targets[name], size) for name in kept])
    maps[maps >= len(class_names)] = IGNORED
    if (maps == IGNORED).all():
        raise DataError(f"{reference}: no pixel has one of the {len(class_names)} classes", hint=LAYOUTS)
    return TargetDataset(images, maps, tuple(class_names), tuple(kept), notes)
