"""Lower bounds of what thresholds of exits and of a decision can reach, by Lagrange multipliers of the limits. Pure.

Quantities, per sample: whether the answer is wrong, milliseconds, millijoules, bytes. Every sample that is still open
chooses its own way, priced; thresholds can only do worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.thresholds import ExitSamples

Column = npt.NDArray[np.float64]
Correct = npt.NDArray[np.bool_]

_PRICES = np.geomspace(1e-3, 1e3, 13)  # of a limit, in units of what is optimised per unit of what is limited
_KEPT_PRICES = 4


@dataclass(frozen=True)
class Rates:
    """Of the four quantities: what is optimised (0 or 1), their limits, and what a millisecond here and a call add."""

    objective: Column
    limits: Column
    per_ms: Column
    per_call: Column


class Bounds:
    """Bounds for the samples that are still open before an exit, at several prices of the limits."""

    def __init__(
        self, exits: Sequence[ExitSamples], right: Correct, server_right: Correct, full_ms: float, rates: Rates
    ) -> None:
        self._exits, self._right, self._server_right = exits, right, server_right
        self._full_ms, self._rates = full_ms, rates
        self._multipliers = self._chosen_multipliers()
        self._least = [
            [self._least_costs(prices, level) for prices, _ in self._multipliers] for level in range(len(exits) + 1)
        ]

    def of(
        self, level: int, order: npt.NDArray[np.int64], answered: npt.NDArray[np.int64], here: Column, tried: Column
    ) -> Column:
        """For each way of the exit before ``level``: no combination of what follows has a smaller objective. [ways]

        ``order``: the open samples, of which a way answers the first ``answered``; ``here``: the quantities that all
        answered samples have taken [ways, 4]; ``tried``: the milliseconds of branches so far.
        """
        left = len(order) - answered
        best = np.full(len(answered), -math.inf)
        for number, (prices, constant) in enumerate(self._multipliers):
            least = self._least[level][number][order]
            rest = np.append(0.0, np.cumsum(least[::-1]))[left]
            total = here @ prices + rest + left * tried * (self._rates.per_ms @ prices)
            best = np.maximum(best, total / len(self._right) - constant)
        return best

    def _least_costs(self, prices: Column, level: int) -> Column:
        """The least priced cost of each sample from the exits of ``level`` on, without the branches before. [count]"""
        per_ms = float(self._rates.per_ms @ prices)
        here = prices[0] * ~self._right + per_ms * self._full_ms
        there = prices[0] * ~self._server_right + per_ms * self._full_ms + float(self._rates.per_call @ prices)
        least = np.minimum(here, there)
        for exit_ in self._exits[level:]:
            least = np.minimum(least, prices[0] * ~exit_.right + per_ms * (exit_.reach_ms + exit_.branch_ms))
        return np.asarray(least)

    def _chosen_multipliers(self) -> list[tuple[Column, float]]:
        """No price on any limit, and for each limit the prices with the best bounds of the whole problem."""
        rates = self._rates
        found = [(rates.objective, 0.0)]
        most = np.maximum(rates.per_ms * max(self._full_ms, 1e-9) + rates.per_call, 1e-12)
        most[0] = 1.0
        scale = float(rates.objective @ most)
        for number, limit in enumerate(rates.limits):
            if not math.isfinite(limit) or rates.objective[number]:
                continue
            tried = []
            for price in _PRICES * scale / most[number]:
                prices = rates.objective.copy()
                prices[number] += price
                tried.append((float(self._least_costs(prices, 0).mean()) - price * limit, (prices, price * limit)))
            found += [one for _, one in sorted(tried, key=lambda pair: -pair[0])[:_KEPT_PRICES]]
        return found
