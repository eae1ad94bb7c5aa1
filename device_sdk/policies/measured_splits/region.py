"""The fastest way to run a subnet, over uplinks, speeds of the device and losses that are allowed.

A loss depends on neither uplink nor device, so each way is measured once for all cells.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.policies.measured_splits.decision import ways
from device_sdk.policies.measured_splits.fastest import DropJudge, Fastest, SplitLimits, fastest
from device_sdk.policies.splitting.path_splits import Handling, JpegCoding, SplitCost
from device_sdk.progress import Progress
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import Subnet

Kind = Literal["device", "exits", "cascade", "bottleneck", "split", "ask", "server"]
KINDS: tuple[Kind, ...] = ("device", "bottleneck", "split", "server")  # of ways that a split compares

UPLINKS_MBPS = (1.0, 3.0, 10.0, 20.0)
DEVICE_FACTORS = (1.0, 3.0, 5.0, 10.0, 14.0, 20.0, 40.0)
MAX_DROPS = (0.0, 0.01, 0.03)
MEASURED_S = 120.0  # of measuring losses, for all cells together


class HasLatency(Protocol):
    """A way to answer samples."""

    @property
    def latency_ms(self) -> float:
        """Latency of a sample."""


@dataclass(frozen=True)
class Cell:
    """One uplink, one device and one allowed drop, with the fastest way of each kind that keeps it.

    ``device_factor``: k for a device k times slower than the server. ``max_drop`` of the score, 0–1; None: no sample
    measured it, and all values cross in 8 bits. ``fastest``: of a kind that another beats, the fastest in the subnet's
    renditions and 8 bits. ``not_measured``: ways faster than the best that there was no time for.
    """

    mbps: float
    device_factor: float
    max_drop: float | None
    fastest: Mapping[Kind, HasLatency]
    not_measured: int = 0

    @property
    def kind(self) -> Kind | None:
        """The kind of the fastest way; None where nothing keeps the drop."""
        return min(self.fastest, key=lambda kind: self.fastest[kind].latency_ms, default=None)

    @property
    def best(self) -> HasLatency | None:
        """The fastest way."""
        return None if self.kind is None else self.fastest[self.kind]

    @property
    def saving(self) -> float | None:
        """The share of the next best kind's latency that the best saves; None where there is no other kind."""
        others = [cost.latency_ms for kind, cost in self.fastest.items() if kind != self.kind]
        return 1 - self.best.latency_ms / min(others) if self.best is not None and others else None


@dataclass(frozen=True)
class Region:
    """Makes the cells of one subnet, its splits and bottlenecks, for a server as fast as ``costs`` say.

    ``judge``: of drops, None without samples.
    """

    bundle: Bundle
    subnet: Subnet
    costs: CostModel
    model_name: str
    handling: Handling
    judge: DropJudge | None = None
    jpeg: JpegCoding | None = None
    sends_input: bool = True
    round_trip_ms: float = 0.0

    def cells(
        self,
        uplinks_mbps: Sequence[float] = UPLINKS_MBPS,
        device_factors: Sequence[float] = DEVICE_FACTORS,
        max_drops: Sequence[float] = MAX_DROPS,
        *,
        measured_s: float = MEASURED_S,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> tuple[Cell, ...]:
        """A cell for each uplink, device and drop; of one drop, all uplinks of a device together.

        Raises:
            BudgetError, UsageError: a value that makes no sense.
        """
        drops: Sequence[float | None] = (None,) if self.judge is None else max_drops
        ends_s = clock() + measured_s
        count = len(drops) * len(uplinks_mbps) * len(device_factors)
        found = []
        with progress.task("compare ways", count) as task:
            for drop in drops:
                for factor in device_factors:
                    for mbps in uplinks_mbps:
                        limits = SplitLimits(max_drop=drop, judge=self.judge, measured_s=max(0.0, ends_s - clock()))
                        found.append(self._cell(mbps, factor, limits, clock))
                        task.advance()
        return tuple(found)

    def _cell(self, mbps: float, factor: float, limits: SplitLimits, clock: Callable[[], float]) -> Cell:
        costs = ways(
            self.bundle,
            self.subnet,
            self.costs.slowed(factor),
            self.costs,
            Uplink(mbps, self.round_trip_ms),
            model_name=self.model_name,
            sends_input=self.sends_input,
            handling=self.handling.slowed(factor),
            limits=limits,
            jpeg=None if self.jpeg is None else self.jpeg.slowed(factor),
        )
        plain = dict(self._by_kind(costs, replace(limits, measured_s=0.0), math.inf, clock))
        by_kind = dict(self._by_kind(costs, limits, _fastest_ms(plain), clock))
        best_ms = _fastest_ms(by_kind)
        unknown = sum(cost.latency_ms < best_ms for one in by_kind.values() for cost in one.not_measured)
        return Cell(mbps, factor, limits.max_drop, {kind: one.best for kind, one in by_kind.items()}, unknown)

    def _by_kind(
        self, costs: Sequence[SplitCost], limits: SplitLimits, below_ms: float, clock: Callable[[], float]
    ) -> Iterator[tuple[Kind, Fastest]]:
        bottlenecks = self.bundle.supernet.bottlenecks
        for kind in KINDS:
            some = [cost for cost in costs if kind_of(cost, bottlenecks) == kind]
            try:
                if some:
                    yield kind, fastest(some, self.subnet, limits, below_ms=below_ms, clock=clock)
            except UsageError:  # nothing of this kind keeps the drop
                continue


def _fastest_ms(found: Mapping[Kind, Fastest]) -> float:
    return min((one.best.latency_ms for one in found.values()), default=math.inf)


def kind_of(cost: SplitCost, bottlenecks: Collection[int] = ()) -> Kind:
    """The side that runs a way: the device, the server or both, at one of the ``bottlenecks`` or elsewhere."""
    if not cost.tail:
        return "device"
    if not cost.head:
        return "server"
    return "bottleneck" if cost.position in bottlenecks else "split"
