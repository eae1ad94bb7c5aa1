"""The device alone: whole paths that compete within the error of their predictions are timed in turns.

Predicted latencies are sums of blocks that were measured apart (AdaptiveNet §5.1). A lead that is smaller than their
error is none, and a path in mixed renditions is not taken for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from device_sdk.policies.measured_splits.fastest import Fastest, SplitLimits
from device_sdk.policies.splitting.path_splits import SplitCost
from device_sdk.supernet.plan import Subnet

Ratios = Callable[[Sequence[Subnet]], Sequence[float]]
"""Latencies of subnets here, timed in turns with the first one, relative to it; infinite where that is unknown."""

LEAST_ERROR = 0.05  # of a predicted latency: a machine drifts by as much between its profile and the choice
ALIKE = 0.01  # measured latencies closer than this are the same
_MOST_RIVALS = 4  # of a round; beside these, all in one rendition
_ROUNDS = 3


@dataclass
class DeviceAlone:
    """Latencies of whole paths relative to the ``plain`` one, which the profile knows best; each is timed once.

    ``error``: relative, of predicted latencies.
    """

    plain: Subnet
    ratios: Ratios
    error: float
    _known: dict[Subnet, float] = field(default_factory=dict)

    def timed(self, costs: Sequence[SplitCost], plain_ms: float) -> dict[SplitCost, SplitCost]:
        """``costs``, all on the device, with measured latencies; what could not be timed keeps its prediction."""
        self._known[self.plain] = 1.0
        missing = [subnet for subnet in dict.fromkeys(map(_subnet, costs)) if subnet not in self._known]
        if missing:
            found = self.ratios([self.plain, *missing])
            self._known |= dict(zip(missing, found[1:], strict=True))
        known = {cost: self._known[_subnet(cost)] for cost in costs}
        return {
            cost: replace(cost, device_ms=ratio * plain_ms) if math.isfinite(ratio) else cost
            for cost, ratio in known.items()
        }


def confirmed(
    costs: Sequence[SplitCost], found: Fastest, limits: SplitLimits, alone: DeviceAlone
) -> tuple[list[SplitCost], Fastest]:
    """``costs`` with measured latencies of the whole paths that may be the fastest way, and the fastest way by them.

    1. Whole paths here count that keep the drop and come within the error of the best way, the plainest first.
    2. They are timed in turns, until the best way has no rival that was not. 3. Of whole paths that are as fast as the
    best, the one in the fewest renditions is taken.
    """
    plain = next((cost for cost in costs if not cost.tail and _subnet(cost) == alone.plain), None)
    if plain is None:
        return list(costs), found
    kept = _Kept(costs, found, limits)
    timed: set[SplitCost] = set()
    for _ in range(_ROUNDS):
        rivals = [cost for cost in kept.rivals(alone.error) if cost not in timed]
        if not rivals or (len(rivals) == 1 and rivals[0] == plain):
            break
        measured = alone.timed(rivals, plain.device_ms)
        timed |= set(measured.values())
        kept.update(measured)
    return kept.costs, kept.result()


class _Kept:
    """Ways, and those of them that are known to keep the drop."""

    def __init__(self, costs: Sequence[SplitCost], found: Fastest, limits: SplitLimits) -> None:
        self.costs, self._found, self._limits = list(costs), found, limits
        self._drops = dict(found.drops)
        self._best = found.best

    def rivals(self, error: float) -> list[SplitCost]:
        """Whole paths here within ``error`` of the best way that keep the drop, in the fewest renditions first."""
        most_ms = self._best.latency_ms * (1 + max(error, LEAST_ERROR))
        near = [cost for cost in self.costs if not cost.tail and cost.latency_ms <= most_ms and self._limits.fits(cost)]
        near.sort(key=lambda cost: (_renditions(cost), cost.latency_ms))
        plain = [cost for cost in near if _renditions(cost) == 1]
        mixed = [cost for cost in near if _renditions(cost) > 1 and (cost in self._drops or cost == self._best)]
        return [cost for cost in (*plain, *mixed[:_MOST_RIVALS]) if self._keeps(cost)]

    def update(self, measured: dict[SplitCost, SplitCost]) -> None:
        self.costs = [measured.get(cost, cost) for cost in self.costs]
        self._drops = {measured.get(cost, cost): drop for cost, drop in self._drops.items()}
        keeping = [cost for cost in (*self._drops, measured.get(self._best, self._best)) if self._keeps(cost)]
        least_ms = min(cost.latency_ms for cost in keeping)
        self._best = min(keeping, key=lambda cost: self._order(cost, least_ms))

    def result(self) -> Fastest:
        left = tuple(cost for cost in self._found.not_measured if cost.latency_ms < self._best.latency_ms)
        return Fastest(self._best, tuple(self._drops.items()), left)

    def _order(self, cost: SplitCost, least_ms: float) -> tuple[bool, int, float]:
        is_slower = cost.latency_ms > least_ms * (1 + ALIKE)
        return is_slower, 0 if is_slower else _renditions(cost), cost.latency_ms

    def _keeps(self, cost: SplitCost) -> bool:
        """True if the drop is allowed; one that was not measured is."""
        judge = self._limits.judge
        if judge is None or self._limits.max_drop is None:
            return True
        if cost not in self._drops:
            self._drops[cost] = judge.drop(cost)
        return self._limits.allows(self._drops[cost], judge.caution(cost))


def _renditions(cost: SplitCost) -> int:
    """The number of different renditions of the device's part; of a part that sends something, 1."""
    return 1 if cost.tail else max(len({edge.rendition for edge in cost.head}), 1)


def _subnet(cost: SplitCost) -> Subnet:
    return Subnet(cost.head)
