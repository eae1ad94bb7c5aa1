"""Costs of a plan at all of its splits at once, equal to those that ``expected_cost`` gives one by one. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.offload.packing import BITS
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.route import Correct, Route
from device_sdk.policies.costs.threshold_sweep import Costs
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import Split

Times = npt.NDArray[np.float64]
_PERCENTILE = 0.95


@dataclass(frozen=True)
class Crossings:
    """Splits of one plan whose tails are the rest of its own subnet, and their costs in columns."""

    splits: Sequence[Split]
    costs: Costs

    def extremes(self) -> list[Split]:
        """Of the splits without quantisation loss, those of least mean latency, least energy and least bytes."""
        whole = np.array([min(split.bits) >= BITS for split in self.splits])
        columns = (self.costs.latency_ms, self.costs.energy_mj, self.costs.bytes_sent)
        places = {int(np.argmin(np.where(whole, np.nan_to_num(values, nan=math.inf), math.inf))) for values in columns}
        return [self.splits[place] for place in sorted(places) if whole[place]]


@dataclass(frozen=True)
class Crossing:
    """A split of a subnet: ``head_ms`` before it, without ``Route.tried_ms``, and the call. Times: NaN if unknown.

    ``right``: mask of the samples that the tail answers correctly [count]; None: the same as the whole subnet here.
    """

    split: Split
    head_ms: float
    transfer_ms: float
    server_ms: float
    size_bytes: int
    right: Correct | None = None

    @classmethod
    def of(cls, route: Route, split: Split, network: Network | None, right: Correct | None = None) -> Crossing:
        """The crossing of ``route``'s subnet at ``split``."""
        head_ms, call = route.crossing(split, network)
        unknown = call.transfer_ms is None or call.server_ms is None
        times = (math.nan, math.nan) if unknown else (call.transfer_ms or 0.0, call.server_ms or 0.0)
        return cls(split, head_ms, *times, call.size_bytes, right)


def sweep_splits(route: Route, crossings: Sequence[Crossing], power: Power | None) -> Crossings:
    """The costs of ``crossings``; ``route`` has reached the end of the same subnet here, through exits before all."""
    columns = [(one.head_ms, one.transfer_ms, one.server_ms, one.size_bytes) for one in crossings]
    head_ms, transfer_ms, server_ms, size_bytes = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    own_ms = head_ms + route.tried_ms
    open_, count = route.open, len(route.open)
    left = int(np.count_nonzero(open_))
    early_ms = np.sort(route.device_ms[~open_])
    here_ms = float(early_ms.sum())
    each_ms = own_ms + transfer_ms + server_ms
    energy_mj: npt.NDArray[np.float64] = np.full(len(crossings), math.nan)
    if power is not None:
        device_mj = power.active_w * (here_ms + left * own_ms)
        energy_mj = (device_mj + left * (power.radio_w * transfer_ms + power.waiting_w * server_ms)) / count
    same = np.ones(len(crossings))
    costs = Costs(
        accuracy=np.array([_accuracy(route, one) for one in crossings]),
        latency_ms=(here_ms + left * each_ms) / count,
        p95_latency_ms=_percentiles(early_ms, each_ms, count),
        energy_mj=energy_mj,
        bytes_sent=size_bytes * left / count,
        peak_bytes=same * route.peak_bytes,
        coverage=same,
        share_asked=0 * same,
    )
    return Crossings([one.split for one in crossings], costs)


def _accuracy(route: Route, crossing: Crossing) -> float:
    right = route.correct if crossing.right is None else np.where(route.open, crossing.right, route.correct)
    return float(right.mean())


def _percentiles(early_ms: npt.NDArray[np.float64], each_ms: npt.NDArray[np.float64], count: int) -> Times:
    """95th latency percentile per crossing. Exits lie before it, so none of their samples waits longer than others."""
    place = _PERCENTILE * (count - 1)
    low = math.floor(place)

    def at(rank: int) -> Times:
        rank = min(rank, count - 1)
        return np.full(len(each_ms), early_ms[rank]) if rank < len(early_ms) else each_ms

    return np.asarray(at(low) + (at(low + 1) - at(low)) * (place - low))
