"""Paired bootstrap intervals of differences on the same samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
BOUNDS = (2.5, 97.5)  # percentiles


def bootstrap_points(difference: npt.NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval, in points, of the mean of a difference per sample [count] between -1 and 1."""
    drawn = np.random.default_rng(0).integers(0, len(difference), (RESAMPLES, len(difference)))
    low, high = np.percentile(100 * difference[drawn].mean(axis=1), BOUNDS)
    return float(low), float(high)
