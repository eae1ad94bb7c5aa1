"""Golden vectors: seeded inputs, sampled outputs, and the check against them.

Inputs are not stored. SplitMix64 draws them between each tensor's bounds, bit-identical in Python and Kotlin
(docs/bundle_format.md). Outputs are stored as samples with a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.supernet.blocks import CutPoint, Golden, TensorSpec

SAMPLES_PER_TENSOR = 32
_STREAMS_PER_CUT_POINT = 1024


def golden_inputs(cut_point: CutPoint, *, seed: int, batch: int) -> list[npt.NDArray[Any]]:
    """The golden inputs at a cut point: one array [batch, *shape] per tensor.

    Tensor n of cut point k uses the stream ``seed + 1024 k + n``; value = low + (high − low) · u in float32, rounded
    down for integer tensors.
    """
    return [
        _draw(spec, seed=seed + _STREAMS_PER_CUT_POINT * cut_point.index + number, batch=batch)
        for number, spec in enumerate(cut_point.tensors)
    ]


def _draw(spec: TensorSpec, *, seed: int, batch: int) -> npt.NDArray[Any]:
    unit = uniform_floats(seed, batch * spec.size).reshape(batch, *spec.shape)
    values = np.float32(spec.low) + (np.float32(spec.high) - np.float32(spec.low)) * unit
    if not spec.dtype.startswith("float"):
        values = np.floor(values)
    return np.ascontiguousarray(values.astype(spec.dtype))


def sample_outputs(outputs: Sequence[npt.NDArray[Any]]) -> tuple[tuple[float, ...], ...]:
    """Sampled elements of each flattened output, at ``sample_positions``."""
    return tuple(
        tuple(float(output.reshape(-1)[index]) for index in sample_positions(output.size)) for output in outputs
    )


def sample_positions(size: int) -> list[int]:
    """Indices of the sampled elements: all up to ``SAMPLES_PER_TENSOR``, else draws of SplitMix64(size).

    Evenly spaced indices would hit the same pixel of every channel where extents are powers of two.
    """
    if size <= SAMPLES_PER_TENSOR:
        return list(range(size))
    random = SplitMix64(size)
    return [random.below(size) for _ in range(SAMPLES_PER_TENSOR)]


def matches(golden: Golden, outputs: Sequence[npt.NDArray[Any]]) -> bool:
    """True if ``outputs`` reproduce the samples of ``golden`` within its tolerance."""
    if len(outputs) != len(golden.samples):
        return False
    for expected, output in zip(golden.samples, outputs, strict=True):
        if len(sample_positions(output.size)) != len(expected):
            return False
        actual = np.array([output.reshape(-1)[index] for index in sample_positions(output.size)], dtype=np.float64)
        if not np.all(np.abs(actual - np.array(expected)) <= golden.tolerance):
            return False
    return True
