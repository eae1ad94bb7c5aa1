"""Ten views of a sample, as a device can make them of its own: mirrored, and moved by a tenth of its sides. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_MOVED = 3 / 32  # of the shorter side
_MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
VIEWS = 2 * len(_MOVES)


def views(inputs: npt.NDArray[np.float32]) -> Iterator[npt.NDArray[np.float32]]:
    """Each view of all prepared samples [count, channels, height, width]; the first one is the samples themselves."""
    height, width = inputs.shape[2:]
    by = max(1, round(_MOVED * min(height, width)))
    for mirrored in (False, True):
        own = inputs[..., ::-1] if mirrored else inputs
        padded = np.pad(own, ((0, 0), (0, 0), (by, by), (by, by)), mode="reflect")
        for down, right in _MOVES:
            top, left = by * (1 + down), by * (1 + right)
            yield np.ascontiguousarray(padded[..., top : top + height, left : left + width])
