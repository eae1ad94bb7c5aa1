"""Differences of two systems on the same images, with paired intervals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Right = npt.NDArray[np.bool_]


def change_points(new: Right, old: Right) -> tuple[float, float]:
    """Gain in accuracy of ``new`` in points, and half the width of its paired 95 % interval. Masks: [count] each."""
    change = new.astype(float) - old.astype(float)
    return 100 * float(change.mean()), 196 * float(change.std()) / len(change) ** 0.5


def low_of(change: tuple[float, float]) -> float:
    """The lower end of an interval from its middle and half its width."""
    return change[0] - change[1]
