"""Quantisation errors of real values: of weights per filter, of activations per tensor (Auto-Split §3.1). Pure.

A range is clipped where that lowers the mean square error: few bits leave too little resolution for outliers. Ranges of
weights are symmetric, those of activations include zero.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError

Floats = npt.NDArray[np.float32]
_CLIPS = tuple(1.0 - step / 16 for step in range(14))  # shares of the whole range that are tried


def quantised_weights(weights: Floats, bits: int) -> Floats:
    """``weights`` [filters, ...] as they come back from ``bits`` per value, each filter with a range of its own.

    Raises:
        InputError: NaN or infinity.
    """
    flat = _finite(weights).reshape(len(weights), -1)
    most = 2 ** (bits - 1) - 1  # 2 bits: −1, 0, 1
    whole = np.maximum(np.abs(flat).max(axis=1, keepdims=True), np.finfo(np.float32).tiny)
    best, least = flat, np.full((len(flat), 1), np.inf)
    for clip in _CLIPS:
        scale = clip * whole / most
        candidate = np.clip(np.rint(flat / scale), -most, most) * scale
        error = np.square(candidate - flat).mean(axis=1, keepdims=True)
        best, least = np.where(error < least, candidate, best), np.minimum(error, least)
    return best.reshape(weights.shape).astype(np.float32)


def activation_range(values: Floats, bits: int) -> tuple[float, float]:
    """The range [low, high] of ``values`` at which ``bits`` lose least; it includes zero.

    Raises:
        InputError: NaN or infinity.
    """
    flat = _finite(values).ravel()
    low, high = min(float(flat.min()), 0.0), max(float(flat.max()), float(np.finfo(np.float32).tiny))
    ranges = [(clip * low, clip * high) for clip in _CLIPS]
    return min(ranges, key=lambda ends: mean_square(quantised_activations(flat, bits, *ends), flat))


def quantised_activations(values: Floats, bits: int, low: float, high: float) -> Floats:
    """``values`` as they come back from ``bits`` in [low, high], clipped to it; zero stays zero."""
    scale = (high - low) / (2**bits - 1)
    zero_point = np.rint(-low / scale)
    codes = np.clip(np.rint(values / scale) + zero_point, 0, 2**bits - 1)
    restored: Floats = ((codes - zero_point) * scale).astype(np.float32)
    return restored


def mean_square(values: Floats, reference: Floats) -> float:
    """The mean square of the difference."""
    return float(np.square(values.astype(np.float64) - reference).mean())


def weight_errors(weights: Floats, widths: Iterable[int]) -> dict[int, float]:
    """Noise to signal of ``weights`` [filters, ...] at each width."""
    return {bits: relative_error(quantised_weights(weights, bits), weights) for bits in widths}


def activation_errors(values: Floats, widths: Iterable[int]) -> dict[int, float]:
    """Noise to signal of the values of one tensor over calibration samples, at each width."""
    found = {}
    for bits in widths:
        low, high = activation_range(values, bits)
        found[bits] = relative_error(quantised_activations(values, bits, low, high), values)
    return found


def _finite(values: Floats) -> Floats:
    if not np.isfinite(values).all():
        raise InputError("quantisation errors need finite values")
    return values


def relative_error(values: npt.NDArray[np.float32], reference: npt.NDArray[np.float32]) -> float:
    """Mean square error over the mean square of ``reference``: noise to signal; 0 where the reference is 0."""
    signal = float(np.square(reference.astype(np.float64)).mean())
    return float(np.square(values.astype(np.float64) - reference).mean()) / signal if signal else 0.0
