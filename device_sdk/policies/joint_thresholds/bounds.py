"""Lower bounds of what thresholds of exits and of a decision can reach, by Lagrange multipliers of the limits. Pure.

Quantities, per sample: whether the answer is wrong, milliseconds, millijoules, bytes. Every sample that is still open
chooses its own way, priced; thresholds can only do worse. A bound does not depend on what decides at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.policies.joint_thresholds.table import AskingEnd
from device_sdk.supernet.cost import Power
from device_sdk.supernet.requirement import Requirement

Column = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

QUANTITIES = ("accuracy", "latency_ms", "energy_mj", "bytes_sent")  # accuracy counts as the share of wrong answers
_PRICES = np.geomspace(1e-3, 1e3, 13)  # of a limit, in units of what is optimised per unit of what is limited
_FINER = np.geomspace(0.4, 2.5, 9)  # around the best of these
_ROUNDS = 2  # of improving one price after the other
_KEPT_PRICES = 4


@dataclass(frozen=True)
class Rates:
    """Of the four quantities: what is optimised (0 or 1), their limits, and what a millisecond here and a call add."""

    objective: Column
    limits: Column
    per_ms: Column
    per_call: Column

    @classmethod
    def of(cls, requirement: Requirement, end: AskingEnd, power: Power | None) -> Rates:
        """``power``: None where no requirement is on energy."""
        active_w = 0.0 if power is None else power.active_w
        call = end.call
        assert call.transfer_ms is not None
        assert call.server_ms is not None
        waiting_mj = 0.0 if power is None else power.radio_w * call.transfer_ms + power.waiting_w * call.server_ms
        return cls(
            objective=np.array([float(name == requirement.optimise) for name in QUANTITIES]),
            limits=np.array([_limit(requirement, name) for name in QUANTITIES]),
            per_ms=np.array([0.0, 1.0, active_w, 0.0]),
            per_call=np.array([0.0, call.transfer_ms + call.server_ms, waiting_mj, float(call.size_bytes)]),
        )

    def limited(self) -> list[int]:
        """The numbers of the quantities that have a limit, beside what is optimised."""
        return [number for number in range(4) if math.isfinite(self.limits[number]) and not self.objective[number]]


class Bounds:
    """Bounds for the samples that are still open before an exit, at several prices of the limits.

    ``asks_early``: exits may ask too; ``like``: others for the same exits and rates, whose prices are taken.
    ``least``: no combination at all has a smaller objective.
    """

    def __init__(
        self,
        exits: Sequence[ExitSamples],
        end: AskingEnd,
        rates: Rates,
        *,
        asks_early: bool,
        like: Bounds | None = None,
    ) -> None:
        self._rates, self._count = rates, len(end.right)
        right = [end.right, end.server_right]
        fixed = [end.full_ms * rates.per_ms, end.full_ms * rates.per_ms + rates.per_call]
        self._ways = [2] * (len(exits) + 1)  # of each level
        for level in reversed(range(len(exits))):
            here_ms = (exits[level].reach_ms + exits[level].branch_ms) * rates.per_ms
            fixed += [here_ms, here_ms + rates.per_call] if asks_early else [here_ms]
            right += [exits[level].right, end.server_right] if asks_early else [exits[level].right]
            self._ways[level] = len(right)
        self._wrong = np.stack([~one for one in right])  # [ways, count], those of the exits from the last to the first
        self._fixed = np.stack(fixed)  # [ways, 4]
        self._prices: Column = self._chosen_prices() if like is None else like._prices  # [multipliers, 4]
        self._constants = self._constants_of(self._prices)
        self._least = [self._least_costs(self._prices, level) for level in range(len(exits) + 1)]
        self.least = float((self._least[0].mean(axis=1) - self._constants).max())

    def of(self, level: int, order: Counts, answered: Counts, asked: Counts, here: Column, tried: Column) -> Column:
        """For each way of the exit before ``level``: no combination of what follows has a smaller objective. [ways]

        ``order``: the open samples, of which a way answers the first ``answered`` and asks about the last ``asked``;
        ``here``: the quantities that all samples which have left took [ways, 4]; ``tried``: the milliseconds of
        branches so far.
        """
        sums = np.zeros((len(self._prices), len(order) + 1))
        np.cumsum(self._least[level][:, order], axis=1, out=sums[:, 1:])
        rest = sums[:, len(order) - asked] - sums[:, answered]  # [multipliers, ways]
        left_ms = (len(order) - asked - answered) * tried
        total = self._prices @ here.T + rest + (self._prices @ self._rates.per_ms)[:, np.newaxis] * left_ms
        return np.asarray((total / self._count - self._constants[:, np.newaxis]).max(axis=0))

    def _least_costs(self, prices: Column, level: int) -> Column:
        """The least priced cost of each sample from ``level`` on, without branches before: [prices, count]."""
        ways = self._ways[level]
        fixed = prices @ self._fixed[:ways].T  # [prices, ways]
        found = np.repeat((fixed.min(axis=1) + prices[:, 0])[:, np.newaxis], self._count, axis=1)
        for way in range(ways):
            np.minimum(found, np.where(self._wrong[way], math.inf, fixed[:, way, np.newaxis]), out=found)
        return found

    def _values(self, prices: Column) -> Column:
        """The bound of the whole problem at each row of prices."""
        return np.asarray(self._least_costs(prices, 0).mean(axis=1) - self._constants_of(prices))

    def _constants_of(self, prices: Column) -> Column:
        limits = np.where(np.isfinite(self._rates.limits), self._rates.limits, 0.0)
        return np.asarray((prices - self._rates.objective) @ limits)

    def _chosen_prices(self) -> Column:
        """No price on any limit, for each limit alone the prices with the best bounds, and the best of all together."""
        rates = self._rates
        chosen = [rates.objective[np.newaxis]]
        most = np.maximum(self._fixed.max(axis=0), 1e-12)
        most[0] = 1.0
        scale = float(rates.objective @ most)
        best, highest = rates.objective, -math.inf
        for number in rates.limited():
            tried = self._priced(rates.objective, number, _PRICES * scale / most[number])
            values = self._values(tried)
            chosen.append(tried[np.argsort(-values, kind="stable")[:_KEPT_PRICES]])
            if values.max() > highest:
                best, highest = tried[int(values.argmax())], float(values.max())
        if len(chosen) > 1:
            for number in rates.limited() * _ROUNDS:
                known = best[number] - rates.objective[number]
                around = known * _FINER if known else _PRICES * scale / most[number]
                tried = self._priced(best, number, np.append(0.0, around))
                best = tried[int(self._values(tried).argmax())]
        return np.concatenate([*chosen, best[np.newaxis]])

    def _priced(self, prices: Column, number: int, added: Column) -> Column:
        tried = np.repeat(prices[np.newaxis], len(added), axis=0)
        tried[:, number] = self._rates.objective[number] + added
        return tried


def _limit(requirement: Requirement, name: str) -> float:
    """The most of a quantity that is allowed per sample; infinity for no limit."""
    limit = getattr(requirement, name)
    if limit is None:
        return math.inf
    return 1.0 - float(limit) + 1e-12 if name == "accuracy" else float(limit)
