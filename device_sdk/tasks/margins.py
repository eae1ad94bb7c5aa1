"""Margins of answers, and the chance of a right answer to a sample like one with this margin. Pure."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from device_sdk.runtimes.port import Array

Floats = npt.NDArray[np.float64]

_AZZALINI = 1.3  # width of a kernel for a distribution function, in deviations, times samples to the power of -1/3
_QUARTILES = 1.349  # of a normal distribution: distance of its quartiles in deviations
_LOGISTIC = math.sqrt(3) / math.pi  # scale of a logistic distribution of deviation 1
_STEEPEST = 30.0  # of a logistic function's argument: beyond, it is 0 or 1
_LEAST_SHARE = 1e-6  # of a score's logarithm of the odds


def label_margins(logits: Array, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Each label's logit minus the largest of the others [count]; the lowest number where that is no number."""
    place = labels[:, None]
    others = logits.astype(np.float32)
    own = np.take_along_axis(others, place, axis=-1)[:, 0]
    np.put_along_axis(others, place, -np.inf, axis=-1)
    with np.errstate(invalid="ignore"):
        margins = own - others.max(axis=-1)
    return np.nan_to_num(margins, nan=float(np.finfo(np.float32).min))


def score_margins(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Margins of scores 0 to 1 [count], from which ``by_margin`` with a scale of 1 gives the scores again."""
    shares = np.clip(scores.astype(np.float64), _LEAST_SHARE, 1 - _LEAST_SHARE)
    return np.asarray(np.log(shares / (1 - shares)), dtype=np.float32)


def margin_scale(full_model_margins: Floats, count: int) -> float:
    """Scale of the logistic function by which answers to ``count`` samples count.

    The mean of that function is a kernel estimate of the chance that the margin is above 0, which varies less from one
    set of samples to the next than the share of right answers. All subnets have one width: ``1.3 σ n^(-1/3)``
    (Azzalini 1981), with σ of the full model's margins.
    """
    width = _AZZALINI * _deviation(full_model_margins) * count ** (-1 / 3)
    return max(_LOGISTIC * width, float(np.finfo(np.float32).tiny))


def by_margin(margins: Floats, scale: float) -> Floats:
    """Chance of a correct answer to a sample like those with these ``margins`` [...]: [...]."""
    chances: Floats = 1 / (1 + np.exp(-np.clip(margins / scale, -_STEEPEST, _STEEPEST)))
    return chances


def _deviation(values: Floats) -> float:
    """The standard deviation, or by the quartiles where these are nearer: a robust measure of spread."""
    low, high = np.quantile(values, [0.25, 0.75])
    return min(float(values.std()), float(high - low) / _QUARTILES)
