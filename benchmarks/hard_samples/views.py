"""Ten views of a small image, as a device can make them of its own samples: mirrored and moved by three pixels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MOVED = 3  # pixels
_MOVES = ((0, 0), (MOVED, 0), (-MOVED, 0), (0, MOVED), (0, -MOVED))
VIEWS = 2 * len(_MOVES)


def views(images: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    """Each view of all images [count, height, width, channels]; the first one is the images themselves."""
    height, width = images.shape[1:3]
    for mirrored in (False, True):
        own = images[:, :, ::-1] if mirrored else images
        padded = np.pad(own, ((0, 0), (MOVED, MOVED), (MOVED, MOVED), (0, 0)), mode="reflect")
        for down, right in _MOVES:
            rows, columns = slice(MOVED + down, MOVED + down + height), slice(MOVED + right, MOVED + right + width)
            yield np.ascontiguousarray(padded[:, rows, columns])
