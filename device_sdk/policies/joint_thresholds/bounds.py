"""Tables and bounds of thresholds: what any of them can reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.policies.costs.route import RemoteCall
from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.supernet.cost import Power
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import ExitChoice

Column = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.float64, np.int64)


@dataclass(frozen=True)
class Grid:
    """Values to try, all ascending.

    ``thresholds`` of each exit, beside leaving it out; ``hard_eases``: for each decider, numbers of distinct eases that
    are hard; ``asks``: confidences below which each exit asks, beside asking about none.
    """

    thresholds: tuple[Column, ...]
    hard_eases: tuple[npt.NDArray[np.int64], ...]
    asks: tuple[Column, ...]

    @classmethod
    def of(
        cls, exits: Sequence[ExitSamples], eases: Sequence[Column], *, most: int | None = None, asks_early: bool = True
    ) -> Grid:
        """Every confidence and every ease that a sample has, or at most so many, evenly spaced by rank."""
        values = [np.unique(one.confidence[np.isfinite(one.confidence)]) for one in exits]
        asks = [_spread(one[1:], most) if asks_early else one[:0] for one in values]  # the least asks about none
        hard_eases = [_spread(np.arange(len(np.unique(one)) + 1), most) for one in eases]
        return cls(tuple(_spread(one, most) for one in values), tuple(hard_eases), tuple(asks))

    def around(
        self,
        chosen_exits: Sequence[ExitChoice],
        decider: int,
        chosen_hard: int,
        exits: Sequence[ExitSamples],
        ease: Column,
        *,
        most: int,
    ) -> Grid:
        """The values between the neighbours of those that were chosen from this grid, at most ``most`` for each limit.

        ``decider``: the chosen one, the only one that remains, with its ``ease``.
        """
        chosen = {one.exit: one for one in chosen_exits}
        thresholds, asks = [], []
        for number, one in enumerate(exits):
            values, choice = np.unique(one.confidence), chosen.get(one.choice.exit)
            thresholds.append(_between(values, self.thresholds[number], choice.threshold if choice else None, most))
            asks.append(_between_asks(values[1:], self.asks[number], choice.ask_below if choice else 0.0, most))
        counts = np.arange(len(np.unique(ease)) + 1)
        return Grid(tuple(thresholds), (_between(counts, self.hard_eases[decider], chosen_hard, most),), tuple(asks))


def _between_asks(values: Column, grid: Column, chosen: float, most: int) -> Column:
    """The same of confidences below which an exit asks: 0 is the neighbour below the first of the grid."""
    if not len(grid):
        return grid
    place = int(np.searchsorted(grid, chosen)) if chosen else -1
    low = grid[place - 1] if place > 0 else values[0]
    return _spread(values[(values >= low) & (values <= grid[min(place + 1, len(grid) - 1)])], most)


def _spread(values: npt.NDArray[_Number], most: int | None) -> npt.NDArray[_Number]:
    """At most so many of the values, evenly spaced, the first and the last among them."""
    if most is None or len(values) <= most:
        return values
    return values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def _between(
    values: npt.NDArray[_Number], grid: npt.NDArray[_Number], chosen: float | None, most: int
) -> npt.NDArray[_Number]:
    """Values from the neighbour below ``chosen`` in the grid to the one above; None for a choice above all."""
    place = len(grid) if chosen is None else int(np.searchsorted(grid, chosen))
    low = grid[max(place - 1, 0)]
    high = grid[place + 1] if place + 1 < len(grid) else values[-1]
    return _spread(values[(values >= low) & (values <= high)], most)


Counts = npt.NDArray[np.int64]
Correct = npt.NDArray[np.bool_]

_PERCENTILE = 0.95


@dataclass(frozen=True)
class AskingEnd:
    """The end of a path with a decision: ``right`` here, ``server_right`` [count]; ``full_ms``: to the end.

    ``eases``: [count] by each decider that may decide; ``call``: cost of asking, its times known. ``deciding_ms``: time
    of each of them for a sample at the end, 0 by default; ``nothing_hard_ms``: time of a decision that calls no sample
    hard, which plans need where only exits ask.
    """

    eases: tuple[Column, ...]
    right: Correct
    server_right: Correct
    full_ms: float
    call: RemoteCall
    deciding_ms: tuple[float, ...] = ()
    nothing_hard_ms: float = 0.0


@dataclass(frozen=True)
class Cells:
    """Sums over the open samples in every cell [thresholds, limits of asking, numbers of hard eases].

    ``answered``: by the last exit [thresholds, 1]; ``asked_early``: from it [1, limits of asking]; ``between``: that
    reach the end [thresholds, limits of asking]; ``is_used``: the exit decides something, else its branch is
    left out; ``exit_ms``: until a sample leaves there. Both as ``between``. ``end_ms``: until a sample at the end is
    decided about, in every cell.
    """

    wrong: Column
    asked: Column
    answered: Column
    asked_early: Column
    between: Column
    is_used: Correct
    exit_ms: Column
    end_ms: Column

    @property
    def device_ms(self) -> Column:
        """In every cell."""
        leaving = self.answered + self.asked_early
        return np.asarray((leaving * self.exit_ms)[:, :, np.newaxis] + self.between[:, :, np.newaxis] * self.end_ms)

    def ways(self, kept: Correct, call_ms: float) -> tuple[Column, Column]:
        """Milliseconds and number of samples of each way to an answer, in the cells ``kept``: [ways, cells] each."""
        at_end = self.asked - self.asked_early[:, :, np.newaxis]
        milliseconds = [self.exit_ms, self.exit_ms + call_ms, self.end_ms, self.end_ms + call_ms]
        counts = [self.answered, self.asked_early, self.between[:, :, np.newaxis] - at_end, at_end]
        return self._stacked(milliseconds, kept), self._stacked(counts, kept)

    @staticmethod
    def _stacked(values: Sequence[Column], kept: Correct) -> Column:
        whole = [one if one.ndim == kept.ndim else one[:, :, np.newaxis] for one in values]
        return np.stack([np.broadcast_to(one, kept.shape)[kept] for one in whole])


class Table:
    """The cells of a last exit, if there is one, and of all deciders behind it, for any of the samples."""

    def __init__(self, exit_: ExitSamples | None, end: AskingEnd, grid: Grid) -> None:
        self._reach_ms, self._branch_ms = (0.0, 0.0) if exit_ is None else (exit_.reach_ms, exit_.branch_ms)
        self._full_ms = end.full_ms
        none, count = np.zeros(0), len(end.right)
        self.thresholds, self.asks = (none, none) if exit_ is None else (grid.thresholds[-1], grid.asks[-1])
        limits = np.append(self.thresholds, math.inf)[:, np.newaxis], np.append(-math.inf, self.asks)[:, np.newaxis]
        self.is_possible = (limits[0] >= limits[1].T)[:, :, np.newaxis]  # no limit of asking lies above the threshold
        confidences = np.zeros(count) if exit_ is None else exit_.confidence
        self._rows = np.concatenate([confidences < one for one in limits]).astype(float)
        right = np.zeros(count, dtype=bool) if exit_ is None else exit_.right
        asks = np.concatenate([_asking(*one) for one in zip(end.eases, grid.hard_eases, strict=True)], axis=1)
        gain = end.server_right.astype(float) - end.right
        each = np.stack([np.ones(count), right, end.right, end.server_right], axis=1)
        self._columns = np.concatenate([each, asks, gain[:, np.newaxis] * asks], axis=1)
        self._deciding_ms = _deciding_ms(end, grid)

    def cells(self, open_: Counts, tried_ms: float, *, asks_before: bool = False) -> Cells:
        """Cells of the samples ``open_``, which have tried branches of ``tried_ms`` before.

        ``asks_before``: an earlier exit may ask.
        """
        sums = self._rows[:, open_] @ self._columns[open_]
        below, early = sums[: len(self.thresholds) + 1], sums[len(self.thresholds) + 1 :]
        width = (sums.shape[1] - 4) // 2
        stays, right_at_exit, right_here = (below[:, number, np.newaxis] for number in range(3))
        asked_early, right_there = early[:, 0], early[:, 3]
        at_end = below[:, np.newaxis, 4 : 4 + width] - early[:, 4 : 4 + width]
        gained = below[:, np.newaxis, 4 + width :] - early[:, 4 + width :]
        right = right_at_exit[-1] - right_at_exit + right_here - early[:, 2] + right_there
        is_used = np.ones(right.shape, dtype=bool)
        is_used[-1, 0] = False
        branch_ms = tried_ms + is_used * self._branch_ms
        asks = np.arange(len(self.asks) + 1) > 0  # by limit of asking
        deciding_ms = self._deciding_ms[(asks | asks_before).astype(int)]
        return Cells(
            wrong=(len(open_) - right)[:, :, np.newaxis] - gained,
            asked=at_end + asked_early[:, np.newaxis],
            answered=len(open_) - stays,
            asked_early=asked_early[np.newaxis],
            between=stays - asked_early,
            is_used=is_used,
            exit_ms=branch_ms + self._reach_ms,
            end_ms=(branch_ms + self._full_ms)[:, :, np.newaxis] + deciding_ms,
        )


def _deciding_ms(end: AskingEnd, grid: Grid) -> Column:
    """Decision time for each number of hard eases, without and with an exit that asks: [2, numbers]."""
    each_ms = end.deciding_ms or (0.0,) * len(grid.hard_eases)
    with_hard_ms = np.repeat(each_ms, [len(one) for one in grid.hard_eases])
    is_hard = np.concatenate(grid.hard_eases) > 0
    return np.stack([np.where(is_hard, with_hard_ms, without_ms) for without_ms in (0.0, end.nothing_hard_ms)])


def _asking(ease: Column, hard_eases: Counts) -> Column:
    """1 where a sample is hard if so many of the distinct eases are, else 0: [count, numbers]."""
    ranks = np.unique(ease, return_inverse=True)[1]
    return np.asarray(ranks[:, np.newaxis] < hard_eases, dtype=float)


def percentile(milliseconds: Column, counts: Column) -> Column:
    """The 95th percentile of ``counts`` samples with ``milliseconds`` each, as numpy interpolates: [ways, n] -> [n]."""
    order = np.argsort(milliseconds, axis=0, kind="stable")
    ordered = np.take_along_axis(milliseconds, order, axis=0)
    passed = np.take_along_axis(counts, order, axis=0).cumsum(axis=0)
    count = passed[-1, 0]
    place = _PERCENTILE * (count - 1)
    low = math.floor(place)

    def at(rank: int) -> Column:
        first = (passed > min(rank, count - 1) + 0.5).argmax(axis=0)
        return np.take_along_axis(ordered, first[np.newaxis], axis=0)[0]

    below, above = at(low), at(low + 1)
    return np.asarray(below + (above - below) * (place - low))


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
