"""Fits the cost of edges at several homes, and of crossing between them, from measured whole subnets. Pure.

1. Each home by its own subnets, as ``fitting`` does it. 2. What subnets at several homes take beyond that is explained
by their crossings: a time per crossing and one per byte that crosses, for each pair of homes, none below 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.profiling.fitting import LatencyFit, fit_latency
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

Vector = npt.NDArray[np.float64]

_RIDGE = 1e-3  # of the columns' scale: pairs that few subnets cross share what these show


class Crossing(msgspec.Struct, frozen=True):
    """Cost of going on at home ``after`` behind home ``before``: a session more, and the tensors between them."""

    before: str
    after: str
    fixed_ms: float
    ms_per_mb: float

    def ms(self, nbytes: int) -> float:
        """Of a crossing with tensors of ``nbytes``."""
        return self.fixed_ms + self.ms_per_mb * nbytes / 1e6


@dataclass(frozen=True)
class HomesFit:
    """``scale`` and ``offset_ms`` of the first home; ``factors`` of all edges relative to it; the others' offsets."""

    scale: float
    offset_ms: float
    factors: Mapping[Edge, float]
    changes_ms: Mapping[Edge, float]
    home_offset_ms: Mapping[str, float]
    crossings: tuple[Crossing, ...] = ()


def fit_homes(
    supernet: Supernet, blocks_ms: Mapping[Edge, float], subnets: Sequence[Subnet], latencies_ms: Sequence[float]
) -> HomesFit:
    """Fit edges at all their homes, as ``fit_latency`` does it for one, and crossings.

    ``blocks_ms``: latency of each edge alone, at each of its homes; ``latencies_ms``: of ``subnets``, as deployed.
    """
    names = list(dict.fromkeys(edge.home for edge in blocks_ms))
    fits: dict[str, LatencyFit] = {}
    for name in names:
        own = {edge: ms for edge, ms in blocks_ms.items() if edge.home == name}
        pairs = [(one, ms) for one, ms in zip(subnets, latencies_ms, strict=True) if homes_of(one) == {name}]
        fits[name] = fit_latency(supernet, own, [one for one, _ in pairs], [ms for _, ms in pairs])
    first = fits.get("") or next(iter(fits.values()))
    fit = HomesFit(
        scale=first.scale,
        offset_ms=first.offset_ms,
        factors={
            edge: factor * one.scale / first.scale for one in fits.values() for edge, factor in one.factors.items()
        },
        changes_ms={edge: ms for one in fits.values() for edge, ms in one.changes_ms.items()},
        home_offset_ms={name: one.offset_ms for name, one in fits.items() if name and one is not first},
    )
    mixed = [(one, ms) for one, ms in zip(subnets, latencies_ms, strict=True) if len(homes_of(one)) > 1]
    if not mixed:
        return fit
    return replace(fit, crossings=_crossings(supernet, _without_crossings(fit, blocks_ms), mixed))


def homes_of(subnet: Subnet) -> set[str]:
    """The homes that a subnet runs at."""
    return {edge.home for edge in subnet.edges}


def _without_crossings(fit: HomesFit, blocks_ms: Mapping[Edge, float]) -> CostModel:
    costs = {edge: EdgeCost(fit.factors[edge] * ms, 0.0, 0, 0) for edge, ms in blocks_ms.items()}
    return CostModel(
        costs,
        scale=fit.scale,
        offset_ms=fit.offset_ms,
        entry_change_ms=fit.changes_ms,
        home_offset_ms=fit.home_offset_ms,
    )


def _crossings(supernet: Supernet, costs: CostModel, mixed: Sequence[tuple[Subnet, float]]) -> tuple[Crossing, ...]:
    """Relative least squares of what ``costs`` leaves unexplained, with a ridge, no coefficient below 0."""
    pairs = sorted({pair for subnet, _ in mixed for pair, _ in _crossed(supernet, subnet)})
    design = np.zeros((len(mixed), 2 * len(pairs)))
    for row, (subnet, _) in enumerate(mixed):
        for pair, nbytes in _crossed(supernet, subnet):
            place = 2 * pairs.index(pair)
            design[row, place : place + 2] += (1.0, nbytes / 1e6)
    latencies = np.array([ms for _, ms in mixed])
    left = latencies - [costs.latency_ms(subnet) for subnet, _ in mixed]
    solution = _non_negative(design / latencies[:, None], left / latencies)
    return tuple(
        Crossing(before, after, *solution[2 * number : 2 * number + 2].tolist())
        for number, (before, after) in enumerate(pairs)
    )


def _crossed(supernet: Supernet, subnet: Subnet) -> list[tuple[tuple[str, str], int]]:
    """The pairs of homes between which ``subnet`` crosses, each with the bytes that cross."""
    return [
        ((before.home, after.home), supernet.ends(after)[0].nbytes)
        for before, after in pairwise(subnet.edges)
        if before.home != after.home
    ]


def _non_negative(design: Vector, wanted: Vector) -> Vector:
    """Ridge regression, again without the most negative coefficient until there is none."""
    scales = np.maximum(np.sqrt((design**2).sum(axis=0)), 1e-12)
    active = list(range(design.shape[1]))
    solution = np.zeros(design.shape[1])
    while active:
        columns = design[:, active] / scales[active]
        own = np.linalg.solve(columns.T @ columns + _RIDGE * np.eye(len(active)), columns.T @ wanted)
        if own.min() >= 0:
            solution[active] = own / scales[active]
            break
        del active[int(own.argmin())]
    return solution
