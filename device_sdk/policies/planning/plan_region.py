"""The fastest plan of each kind, over uplinks, speeds of the device and losses that are allowed, by private samples."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.measured_splits.region import DEVICE_FACTORS, MAX_DROPS, UPLINKS_MBPS, Cell, Kind
from device_sdk.policies.planning.choice import Option
from device_sdk.policies.planning.planner import Planner
from device_sdk.progress import Progress
from device_sdk.supernet.cost import PlanCost, Power, Uplink
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import Ask, Cascade, Plan

_LEAST_ACCURACY = 1e-6  # that a requirement can state


@dataclass(frozen=True)
class PlannedWay:
    """A plan and its expected cost on the samples."""

    plan: Plan
    cost: PlanCost

    @property
    def latency_ms(self) -> float:
        """Mean latency of a sample."""
        return math.inf if self.cost.latency_ms is None else self.cost.latency_ms


@dataclass(frozen=True)
class PlanRegion:
    """Makes the cells of plans of all kinds, for the connected servers.

    ``planner``: for a device that is so many times slower; ``network``: to the servers, of which cells change the
    bandwidth; ``requirement``: its limits on other than accuracy and latency hold in all cells; ``accuracy``: from
    which losses are counted, on the samples that choose. No accuracy of a cell is promised.
    """

    planner: Callable[[float], Planner]
    network: Network
    requirement: Requirement
    accuracy: float
    power: Power | None = None

    def cells(
        self,
        uplinks_mbps: Sequence[float] = UPLINKS_MBPS,
        device_factors: Sequence[float] = DEVICE_FACTORS,
        max_drops: Sequence[float] = MAX_DROPS,
        *,
        progress: Progress,
    ) -> tuple[Cell, ...]:
        """A cell for each drop, device and uplink, in this order.

        Raises:
            BudgetError, UsageError: a value that makes no sense.
        """
        found: dict[tuple[float, float, float], Cell] = {}
        with progress.task("compare plans", len(uplinks_mbps) * len(device_factors)) as task:
            for factor in device_factors:
                planner = self.planner(factor)
                for mbps in uplinks_mbps:
                    network = self._network(mbps, factor)
                    for drop in max_drops:
                        found[drop, factor, mbps] = self._cell(planner, network, factor, drop)
                    task.advance()
        order = [(drop, factor, mbps) for drop in max_drops for factor in device_factors for mbps in uplinks_mbps]
        return tuple(found[place] for place in order)

    def _network(self, mbps: float, factor: float) -> Network:
        uplink = Uplink(mbps, self.network.uplink.round_trip_ms)
        return dataclasses.replace(self.network, uplink=uplink, handling=self.network.handling.slowed(factor))

    def _cell(self, planner: Planner, network: Network, factor: float, drop: float) -> Cell:
        wanted = msgspec.structs.replace(
            self.requirement,
            optimise="latency_ms",
            accuracy=max(self.accuracy - drop, _LEAST_ACCURACY),
            certainty=None,
            coverage=1.0,
            latency_ms=None,
            p95_latency_ms=None,
        )
        ways: dict[Kind, PlannedWay] = {}
        for option in planner.nearest(wanted, network, self.power).by_kind.values():
            kind, way = kind_of(option.plan), PlannedWay(option.plan, option.cost)
            if _counts(option) and (kind not in ways or way.latency_ms < ways[kind].latency_ms):
                ways[kind] = way
        return Cell(network.uplink.mbps, factor, drop, ways)


def kind_of(plan: Plan) -> Kind:
    """The kind of a plan in a map: by the farthest that its samples may go."""
    if isinstance(plan.hard, Ask):
        return "ask"
    if plan.split is not None:
        return "server" if plan.split.is_whole else "split"
    if isinstance(plan.hard, Cascade):
        return "cascade"
    return "exits" if plan.exits else "device"


def _counts(option: Option) -> bool:
    """True if the plan keeps all limits, and samples do take the ways that it has: one that never asks is no asking."""
    if option.misses:
        return False
    kind, cost = kind_of(option.plan), option.cost
    shares = {"ask": cost.share_asked, "cascade": cost.share_second, "exits": cost.share_early}
    return shares.get(kind, 1.0) > 0
