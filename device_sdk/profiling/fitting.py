"""Fits the cost of edges within composed subnets, from measured blocks and a few measured whole subnets. Pure.

1. A line maps sums of block latencies to latencies of subnets, since the composed graph saves calls and conversions.
2. Ridge regression of the residuals: a factor near 1 per edge, one per rendition and input size, and a price per byte
passed between neighbours of different renditions. The ridge keeps the factors near 1 where a few dozen subnets do not
determine them. Both steps down-weight outliers (Huber), which come from interference. The model stays additive over
edges and neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

Vector = npt.NDArray[np.float64]

# ridge weights: standard deviation of a subnet's measurement (1 %) over the prior deviation of a factor from 1 (edges
# 5 %, renditions and conversions 30 %)
_EDGE_WEIGHT = 0.2
_FREE_WEIGHT = 0.03
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.0

_REWEIGHTINGS = 8
_FAR = 2.0  # standard deviations, estimated from the median deviation
_DEVIATION_PER_MEDIAN = 1.48
_LEAST_DEVIATION = 0.005  # relative; residuals below are never outliers


@dataclass(frozen=True)
class LatencyFit:
    """``latency_ms = offset_ms + Σ scale · factor · block + Σ changes_ms``, the last by entered edge."""

    scale: float
    offset_ms: float
    factors: Mapping[Edge, float]
    changes_ms: Mapping[Edge, float]


@dataclass(frozen=True)
class MemoryFit:
    """``peak_bytes = scale · Σ weights + offset_bytes + largest working set``."""

    scale: float = 1.0
    offset_bytes: int = 0


def fit_line(sums_ms: Sequence[float], latencies_ms: Sequence[float]) -> tuple[float, float]:
    """Scale and offset [ms] of the line from block sums to measured latencies with the least relative error.

    If the sums hardly vary, or the line has a negative slope or value, the offset is 0 and the scale the median ratio.
    """
    sums, latencies = np.array(sums_ms), np.array(latencies_ms)
    if np.ptp(sums) > 0.05 * sums.max():
        design = np.stack([sums / latencies, 1 / latencies], axis=1)
        scale, offset_ms = _solve(design, np.ones(len(sums)))
        if scale > 0 and offset_ms + scale * sums.min() > 0:
            return float(scale), float(offset_ms)
    return float(np.median(latencies / sums)), 0.0


def fit_latency(
    supernet: Supernet, blocks_ms: Mapping[Edge, float], subnets: Sequence[Subnet], latencies_ms: Sequence[float]
) -> LatencyFit:
    """Fit edge costs within composed subnets.

    ``blocks_ms``: latency of each edge alone; ``latencies_ms``: of ``subnets``, as deployed. One or two subnets give a
    line without factors, none the plain sum of blocks.
    """
    if not subnets:
        return LatencyFit(1.0, 0.0, dict.fromkeys(blocks_ms, 1.0), {})
    line = fit_line([sum(blocks_ms[edge] for edge in subnet.edges) for subnet in subnets], latencies_ms)
    return _Ridge(supernet, blocks_ms, subnets, np.array(latencies_ms), *line).fit()


class _Ridge:
    """Ridge regression of a line's residuals on edges, renditions with input sizes, the offset and conversions.

    The columns of the regression are milliseconds [subnet, column]; a coefficient is a relative correction.
    """

    def __init__(
        self,
        supernet: Supernet,
        blocks_ms: Mapping[Edge, float],
        subnets: Sequence[Subnet],
        latencies_ms: Vector,
        scale: float,
        offset_ms: float,
    ) -> None:
        self._supernet, self._edges = supernet, list(blocks_ms)
        self._latencies_ms, self._scale, self._offset_ms = latencies_ms, scale, offset_ms
        shares_ms = scale * np.array([blocks_ms[edge] for edge in self._edges])  # [edge]
        self._typical_ms = float(shares_ms.mean())
        members = [set(subnet.edges) for subnet in subnets]
        self._edge_ms = np.array([[edge in own for edge in self._edges] for own in members]) * shares_ms
        groups = sorted({(edge.rendition, edge.input_size) for edge in self._edges})
        self._in_group = np.array(
            [[(edge.rendition, edge.input_size) == group for group in groups] for edge in self._edges], float
        )  # [edge, group]
        converted = np.array([sum(_converted_bytes(supernet, subnet).values()) for subnet in subnets], float)
        self._ms_per_byte = self._typical_ms / max(float(converted.mean()), 1.0)  # scales bytes to the size of blocks
        self._conversion_ms = converted * self._ms_per_byte

    def fit(self) -> LatencyFit:
        """Solve, without conversions if they would come out cheaper than free."""
        edge_count, group_count = self._in_group.shape
        columns = [
            self._edge_ms,
            self._edge_ms @ self._in_group,
            np.full((len(self._latencies_ms), 1), self._typical_ms),
            self._conversion_ms[:, None],
        ]
        penalties = np.array([_EDGE_WEIGHT] * edge_count + [_FREE_WEIGHT] * (group_count + 2))
        design = np.hstack(columns) / self._latencies_ms[:, None]
        unexplained = 1 - (self._edge_ms.sum(axis=1) + self._offset_ms) / self._latencies_ms
        solution = _solve(design, unexplained, penalties)
        if solution[-1] < 0:
            solution = np.append(_solve(design[:, :-1], unexplained, penalties[:-1]), 0.0)
        own, by_group, offset, conversion = np.split(solution, np.cumsum([edge_count, group_count, 1]))
        factors = np.clip(1 + own + self._in_group @ by_group, _LEAST_FACTOR, _MOST_FACTOR)
        return LatencyFit(
            scale=self._scale,
            offset_ms=self._offset_ms + float(offset[0]) * self._typical_ms,
            factors=dict(zip(self._edges, factors.tolist(), strict=True)),
            changes_ms=_changes_ms(self._supernet, self._edges, float(conversion[0]) * self._ms_per_byte),
        )


def _solve(design: Vector, wanted: Vector, ridge: Vector | None = None) -> Vector:
    """Iteratively reweighted least squares (Huber); ``ridge``: the penalty of each column, above 0."""
    weights = np.ones(len(wanted))
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(weights)
        solution = _least_squares(design * root[:, None], wanted * root, ridge)
        errors = np.abs(wanted - design @ solution)
        far = _FAR * max(_DEVIATION_PER_MEDIAN * float(np.median(errors)), _LEAST_DEVIATION)
        weights = far / np.maximum(errors, far)
    return solution


def _least_squares(rows: Vector, wanted: Vector, ridge: Vector | None) -> Vector:
    """With a ridge through the kernel of the rows, of which there are far fewer than columns."""
    if ridge is None:
        return np.asarray(np.linalg.lstsq(rows, wanted, rcond=None)[0], dtype=np.float64)
    scaled = rows / ridge
    worth = np.linalg.solve(scaled @ scaled.T + np.eye(len(rows)), wanted)
    solution: Vector = scaled.T @ worth / ridge
    return solution


def _converted_bytes(supernet: Supernet, subnet: Subnet) -> dict[Edge, int]:
    """Bytes at the cut points where ``subnet`` changes its rendition, by the edge that starts there."""
    return {
        after: _entry_bytes(supernet, after)
        for before, after in pairwise(subnet.edges)
        if before.rendition != after.rendition
    }


def _changes_ms(supernet: Supernet, edges: Sequence[Edge], per_byte_ms: float) -> dict[Edge, float]:
    if per_byte_ms <= 0:
        return {}
    return {edge: per_byte_ms * _entry_bytes(supernet, edge) for edge in edges if supernet.block(edge.block).start > 0}


def _entry_bytes(supernet: Supernet, edge: Edge) -> int:
    return supernet.ends(edge)[0].nbytes


def fit_memory(costs: Mapping[Edge, EdgeCost], subnets: Sequence[Subnet], peaks: Sequence[int | None]) -> MemoryFit:
    """Fit the measured peaks of whole subnets, session creation included, to weights and working sets.

    Never below weights plus largest working set, which is also the result without any measured peak.
    """
    measured = [(subnet, peak) for subnet, peak in zip(subnets, peaks, strict=True) if peak]
    if not measured:
        return MemoryFit()
    peak = np.array([peak for _, peak in measured], dtype=float)
    weights = np.array([sum(costs[edge].resident_bytes for edge in s.edges) for s, _ in measured], dtype=float)
    above = peak - [max(costs[edge].working_bytes for edge in s.edges) for s, _ in measured]
    scale = offset = 0.0
    if np.ptp(weights) > 0:
        design = np.stack([weights, np.ones(len(peak))], axis=1) / peak[:, None]
        scale, offset = np.linalg.lstsq(design, above / peak, rcond=None)[0]
    if scale < 1 or offset < 0:
        scale = max(1.0, float(np.median(above / np.maximum(weights, 1))))
        offset = max(0.0, float(np.median(above - scale * weights)))
    return MemoryFit(float(scale), round(offset))
