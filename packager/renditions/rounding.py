"""Rounding weights to few bits per output channel: to the nearest, or so that the answer to real inputs changes least.

The second is closed form, without training. Columns are rounded one after the other, and what is not rounded yet makes
up for the errors so far (GPTQ, Frantar et al. 2023, Algorithm 1); the target are the original weights on the original
inputs, so that errors of earlier layers are made up for too; the bias takes the change of each channel's mean (Nagel et
al. 2019, §4.2). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_CLIPPED = np.linspace(1.0, 0.4, 25)  # shares of a channel's range that are tried when rounding to the nearest
_CLIPPED_FEW = np.linspace(1.0, 0.4, 7)  # the same where columns make up for errors, which takes longer
_DAMPING = 0.01  # of the mean variance of the inputs, added to each
_TOGETHER = 64  # columns whose errors reach later ones at once
MOST_COLUMNS = 4608  # of a weight whose columns make up for errors: the inverse takes the cube of it

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Quantised:
    """Values uint8 [channels, count] below 2^bits; a weight is ``scale`` · value + ``offset``, both [channels, 1]."""

    values: Bytes
    scale: Floats
    offset: Floats

    def expanded(self) -> Floats:
        """The weights that the values stand for, [channels, count]."""
        return self.values.astype(np.float32) * self.scale + self.offset

    def where(self, better: npt.NDArray[np.bool_], other: Quantised) -> Quantised:
        """These channels where ``better`` [channels, 1], else those of ``other``."""
        pairs = ((self.values, other.values), (self.scale, other.scale), (self.offset, other.offset))
        return Quantised(*(np.where(better, mine, theirs) for mine, theirs in pairs))


@dataclass(frozen=True)
class InputMoments:
    """First and second moments of a weight's inputs, over ``rows`` of calibration data.

    ``mean``: of the inputs as the rounded layers before it give them, [groups, columns]; ``covariance``: of the same,
    [groups, columns, columns]. ``original_mean`` and ``cross`` [groups, columns, columns] are those of the original
    inputs, and of the original (rows of the matrix) with the rounded ones.
    """

    rows: int
    mean: Doubles
    covariance: Doubles
    original_mean: Doubles
    cross: Doubles


@dataclass(frozen=True)
class Corrected:
    """Rounded weights, and what each output channel's bias takes: ``bias_change`` [channels]."""

    weights: Quantised
    bias_change: Floats


def quantise(weights: Floats, bits: int) -> Quantised:
    """``weights`` [channels, count] with the share of each channel's range that has the least squared error."""
    best: Quantised | None = None
    least = np.full((len(weights), 1), np.inf)
    for share in _CLIPPED:
        scale, offset = _ranges(weights, bits, share)
        values = _rounded(weights, scale, offset, bits)
        tried = Quantised(values.astype(np.uint8), scale, offset)
        error = np.square(tried.expanded() - weights).sum(axis=1, keepdims=True)
        better = error < least
        best, least = tried if best is None else tried.where(better, best), np.where(better, error, least)
    assert best is not None
    return best


def quantise_for_inputs(weights: Floats, bits: int, inputs: InputMoments) -> Corrected:
    """``weights`` [channels, columns] so that the answers to ``inputs`` change least.

    Each group of ``inputs`` belongs to as many consecutive channels.
    """
    groups, columns = inputs.mean.shape
    whole = weights.astype(np.float64).reshape(groups, -1, columns)  # [groups, channels, columns]
    covariance, cross = _shrunk(inputs)
    target = whole + whole @ (cross - covariance) @ np.linalg.inv(covariance)
    order = np.argsort(-np.diagonal(covariance, axis1=1, axis2=2), axis=1, kind="stable")  # the largest inputs first
    upper = _inverse_factor(covariance, order)
    ordered = np.take_along_axis(target, order[:, None, :], axis=2)
    best: Quantised | None = None
    least = np.full((len(weights), 1), np.inf)
    for share in _CLIPPED_FEW:
        scale, offset = _ranges(weights, bits, share)
        values, loss = _column_by_column(ordered, upper, scale, offset, bits)
        values = np.take_along_axis(values, np.argsort(order, axis=1)[:, None, :], axis=2)
        tried = Quantised(values.reshape(weights.shape).astype(np.uint8), scale, offset)
        better = loss.reshape(-1, 1) < least
        best = tried if best is None else tried.where(better, best)
        least = np.where(better, loss.reshape(-1, 1), least)
    assert best is not None
    rounded = best.expanded().astype(np.float64).reshape(whole.shape)
    change = np.einsum("gok,gk->go", whole, inputs.original_mean) - np.einsum("gok,gk->go", rounded, inputs.mean)
    return Corrected(best, change.reshape(-1).astype(np.float32))


def _ranges(weights: Floats, bits: int, share: float) -> tuple[Floats, Floats]:
    """Scale and offset of each channel [channels, 1] for a share of its range."""
    low, high = weights.min(axis=1, keepdims=True), weights.max(axis=1, keepdims=True)
    offset = (low * np.float32(share)).astype(np.float32)
    scale = ((high - low) * np.float32(share / (2**bits - 1))).astype(np.float32)
    scale[scale == 0] = 1.0  # a channel of equal weights
    return scale, offset


def _rounded(
    weights: npt.NDArray[np.floating], scale: npt.NDArray[np.floating], offset: npt.NDArray[np.floating], bits: int
) -> npt.NDArray[np.floating]:
    return np.clip(np.rint((weights - offset) / scale), 0, 2**bits - 1)


def _shrunk(inputs: InputMoments) -> tuple[Doubles, Doubles]:
    """``covariance`` and ``cross``; few rows say little of what two columns share, so less of that is believed."""
    columns = inputs.covariance.shape[1]
    own = np.eye(columns)
    shared = inputs.rows / (inputs.rows + columns)
    kept = own + shared * (1 - own)
    variance = np.diagonal(inputs.covariance, axis1=1, axis2=2)
    damping = np.maximum(_DAMPING * variance.mean(axis=1), 1e-12)[:, None, None] * own
    return inputs.covariance * kept + damping, inputs.cross * kept + damping


def _inverse_factor(covariance: Doubles, order: npt.NDArray[np.int64]) -> Doubles:
    """The upper triangle U with UᵀU = the inverse of ``covariance`` [groups, columns, columns] in ``order``."""
    rows = np.take_along_axis(covariance, order[:, :, None], axis=1)
    ordered = np.take_along_axis(rows, order[:, None, :], axis=2)
    upper: Doubles = np.linalg.cholesky(np.linalg.inv(ordered)).swapaxes(1, 2)
    return upper


def _column_by_column(
    target: Doubles, upper: Doubles, scale: Floats, offset: Floats, bits: int
) -> tuple[Doubles, Doubles]:
    """Values [groups, channels, columns], and the squared change of each channel's answer [groups, channels]."""
    groups, channels, columns = target.shape
    left = target.copy()
    values, loss = np.empty_like(left), np.zeros((groups, channels))
    step, zero = (one.astype(np.float64).reshape(groups, channels) for one in (scale, offset))
    for start in range(0, columns, _TOGETHER):
        end = min(start + _TOGETHER, columns)
        errors = np.empty((groups, channels, end - start))
        for column in range(start, end):
            found = _rounded(left[:, :, column], step, zero, bits)
            values[:, :, column] = found
            error = (left[:, :, column] - found * step - zero) / upper[:, None, column, column]
            left[:, :, column + 1 : end] -= error[:, :, None] * upper[:, None, column, column + 1 : end]
            errors[:, :, column - start] = error
        loss += np.square(errors).sum(axis=2)
        left[:, :, end:] -= errors @ upper[:, start:end, end:]
    return values, loss
