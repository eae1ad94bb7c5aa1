"""Costs of a plan at every place where it may cross to a server at once: what ``expected_cost`` says of each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.evidence import Network
from device_sdk.policies.route import Route
from device_sdk.policies.threshold_sweep import Costs
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import Split

_PERCENTILE = 95.0


@dataclass(frozen=True)
class Crossings:
    """Splits of one plan whose tails are the rest of its own subnet, and their costs in columns."""

    splits: Sequence[Split]
    costs: Costs

    def extremes(self) -> list[Split]:
        """The splits of least mean latency, of least energy and of least bytes."""
        columns = (self.costs.latency_ms, self.costs.energy_mj, self.costs.bytes_sent)
        places = {int(np.argmin(np.nan_to_num(values, nan=math.inf))) for values in columns}
        return [self.splits[place] for place in sorted(places)]


def sweep_splits(route: Route, splits: Sequence[Split], network: Network | None, power: Power | None) -> Crossings:
    """The costs of ``splits``; ``route`` has reached the end of the same subnet here, through the same exits."""
    ways = [route.crossing(split, network) for split in splits]
    own_ms = np.array([ms for ms, _ in ways])
    calls = [call for _, call in ways]
    transfer_ms, server_ms = (
        np.array([math.nan if getattr(call, name) is None else getattr(call, name) for call in calls])
        for name in ("transfer_ms", "server_ms")
    )
    open_, count = route.open, len(route.open)
    left = int(np.count_nonzero(open_))
    here_ms = float(route.device_ms[~open_].sum())
    latency_ms = (here_ms + left * (own_ms + transfer_ms + server_ms)) / count
    energy_mj: npt.NDArray[np.float64] = np.full(len(splits), math.nan)
    if power is not None:
        device_mj = power.active_w * (here_ms + left * own_ms)
        energy_mj = (device_mj + left * (power.radio_w * transfer_ms + power.waiting_w * server_ms)) / count
    each_ms = np.where(open_, (own_ms + transfer_ms + server_ms)[:, None], route.device_ms)
    same = np.ones(len(splits))
    costs = Costs(
        accuracy=same * float(route.correct.mean()),
        latency_ms=latency_ms,
        p95_latency_ms=np.percentile(each_ms, _PERCENTILE, axis=1) if len(splits) else same,
        energy_mj=energy_mj,
        bytes_sent=np.array([float(call.size_bytes) for call in calls]) * left / count,
        peak_bytes=same * route.peak_bytes,
        coverage=same,
    )
    return Crossings(splits, costs)
