"""Thresholds of exits and of asking a server, optimised together over private samples (EE-HI, HI paper §5.2). Pure.

The paper tries all combinations. Here the last exit and the decision are one table of cumulative counts, which holds
every pair of their thresholds; the exits before them are searched by branch and bound. A bound lets every sample that
is still open choose its own way, priced by Lagrange multipliers of the limits, so no combination that it cuts off is
better than the best one found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.joint_bounds import Bounds, Rates
from device_sdk.policies.route import RemoteCall
from device_sdk.policies.threshold_grid import Grid
from device_sdk.policies.thresholds import ExitSamples
from device_sdk.supernet.cost import Power
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice
from device_sdk.supernet.requirement import Requirement

Column = npt.NDArray[np.float64]
Correct = npt.NDArray[np.bool_]

MOST_TABLES = 4000  # of one search; each takes a fraction of a millisecond to some milliseconds
_QUANTITIES = ("accuracy", "latency_ms", "energy_mj", "bytes_sent")  # accuracy counts as the share of wrong answers
_PERCENTILE = 0.95


@dataclass(frozen=True)
class AskingEnd:
    """The end of a path with a decision: ``ease``, ``right`` here, ``server_right`` [count]; ``full_ms``: to the end.

    ``call``: what asking takes, its times known.
    """

    ease: Column
    right: Correct
    server_right: Correct
    full_ms: float
    call: RemoteCall


@dataclass(frozen=True)
class JointThresholds:
    """The best combination: exits that pay, with thresholds, and how many of the distinct eases are hard.

    ``value``: as ``Requirement.value``; ``is_exact``: no combination of the thresholds tried is better.
    """

    exits: tuple[ExitChoice, ...]
    hard_eases: int
    value: float
    tables: int
    is_exact: bool


def best_thresholds(
    exits: Sequence[ExitSamples],
    end: AskingEnd,
    requirement: Requirement,
    *,
    power: Power | None = None,
    peak_bytes: int = 0,
    exit_bytes: Sequence[int] = (),
    better_than: float = -math.inf,
    grid: Grid | None = None,
    most_tables: int = MOST_TABLES,
) -> JointThresholds | None:
    """The thresholds that ``requirement`` puts first; None if none keeps it and is better than ``better_than``.

    Args:
        exits: candidates that follow each other; one whose threshold is out of reach is left out, with its branch.
        power: of the device; without it a requirement on energy cannot be kept.
        peak_bytes: of the subnet; ``exit_bytes``: what each exit adds, nothing by default.
        grid: what is tried; by default everything.
        most_tables: after which the search ends with the best so far.
    """
    needs_energy = requirement.optimise == "energy_mj" or requirement.energy_mj is not None
    if needs_energy and power is None:
        return None
    grid = grid or Grid.of(exits, end.ease)
    search = _Search(exits, end, requirement, power, peak_bytes, exit_bytes or [0] * len(exits), grid)
    search.run(better_than, most_tables)
    return search.best


class _Search:
    """One branch and bound. All sums are over samples; objective and limits are linear in them."""

    def __init__(
        self,
        exits: Sequence[ExitSamples],
        end: AskingEnd,
        requirement: Requirement,
        power: Power | None,
        peak_bytes: int,
        exit_bytes: Sequence[int],
        grid: Grid,
    ) -> None:
        self._exits, self._end, self._requirement = list(exits), end, requirement
        self._bytes, self._exit_bytes = peak_bytes, exit_bytes
        self._count = len(end.right)
        active_w = 0.0 if power is None else power.active_w
        call = end.call
        assert call.transfer_ms is not None
        assert call.server_ms is not None
        waiting_mj = 0.0 if power is None else power.radio_w * call.transfer_ms + power.waiting_w * call.server_ms
        self._per_ms = np.array([0.0, 1.0, active_w, 0.0])  # quantities per millisecond of the device
        self._per_call = np.array([0.0, call.transfer_ms + call.server_ms, waiting_mj, float(call.size_bytes)])
        self._objective = np.array([float(name == requirement.optimise) for name in _QUANTITIES])
        self._limits = np.array([_limit(requirement, name) for name in _QUANTITIES])
        rates = Rates(self._objective, self._limits, self._per_ms, self._per_call)
        self._bounds = Bounds(self._exits, end.right, end.server_right, end.full_ms, rates)
        self._grids, self._hard_eases = grid.thresholds, grid.hard_eases
        ranks = np.unique(end.ease, return_inverse=True)[1]
        self._asked_from = np.searchsorted(grid.hard_eases, ranks, side="right")  # the first column that asks
        self._needed = [row for row in range(4) if self._objective[row] or math.isfinite(self._limits[row])]
        self.best: JointThresholds | None = None

    def run(self, better_than: float, most_tables: int) -> None:
        self._worst = -better_than if math.isfinite(better_than) else math.inf  # objectives at or above it are no use
        if self._requirement.optimise == "accuracy" and math.isfinite(better_than):
            self._worst = 1.0 - better_than
        self._tables_left, self._cut_short = most_tables, False
        everything = np.arange(self._count)
        self._visit(0, everything, np.zeros(4), 0.0, [], most_tables)
        if self.best is not None and self._cut_short:
            found = self.best
            self.best = JointThresholds(found.exits, found.hard_eases, found.value, found.tables, is_exact=False)

    # The search

    def _visit(
        self, level: int, open_: npt.NDArray[np.int64], spent: Column, tried_ms: float, taken: list[float], most: int
    ) -> None:
        """All thresholds of the exits from ``level`` on, for the samples that are still open."""
        if level >= len(self._exits) - 1:
            if self._tables_left <= 0:
                self._cut_short = True
                return
            self._tables_left -= 1
            self._read_table(open_, spent, tried_ms, taken, most)
            return
        exit_ = self._exits[level]
        order = open_[np.argsort(-exit_.confidence[open_], kind="stable")]  # the surest first
        values = np.append(UNREACHABLE_CONFIDENCE, self._grids[level][::-1])
        answered = np.searchsorted(-exit_.confidence[order], -values, side="right")
        answered[0] = 0
        wrong = np.append(0, np.cumsum(~exit_.right[order]))[answered]
        tried = np.where(answered == 0, tried_ms, tried_ms + exit_.branch_ms)
        tried[0] = tried_ms
        here = spent + np.outer(answered * (exit_.reach_ms + tried), self._per_ms)
        here[:, 0] += wrong
        bounds = self._bounds.of(level + 1, order, answered, here, tried)
        seen = set()
        for number in np.argsort(bounds, kind="stable"):
            if bounds[number] >= self._worst:
                break
            if (key := int(answered[number])) in seen or (number and not key):
                continue  # the same samples, or a branch that answers nothing
            seen.add(key)
            rest = order[key:]
            self._visit(level + 1, rest, here[number], float(tried[number]), [*taken, float(values[number])], most)

    def _read_table(
        self, open_: npt.NDArray[np.int64], spent: Column, tried_ms: float, taken: list[float], most: int
    ) -> None:
        """Every pair of the last exit's threshold and the decision's, for the samples that are still open."""
        end = self._end
        exit_ = self._exits[-1] if self._exits else None
        grid = self._grids[-1] if exit_ is not None else np.zeros(0)
        rows, columns = len(grid) + 1, len(self._hard_eases)
        stays_from = np.zeros(len(open_), dtype=np.int64)  # the first row in which the sample stays open
        if exit_ is not None:
            stays_from = np.searchsorted(grid, exit_.confidence[open_], side="right")
        asked_from = self._asked_from[open_]
        asked = _cumulated(stays_from, asked_from, np.ones(len(open_)), (rows, columns))
        gain = end.server_right[open_].astype(float) - end.right[open_]
        gained = _cumulated(stays_from, asked_from, gain, (rows, columns))
        stays = np.bincount(stays_from, minlength=rows).cumsum()
        right_at_end = np.bincount(stays_from, weights=end.right[open_], minlength=rows).cumsum()
        leaves = len(open_) - stays
        branch_ms = np.full(rows, 0.0 if exit_ is None else exit_.branch_ms)
        branch_ms[-1] = 0.0  # the last row leaves the exit out
        exit_right = np.zeros(rows)
        reach_ms = 0.0
        if exit_ is not None:
            right = exit_.right[open_].astype(float)
            exit_right = right.sum() - np.bincount(stays_from, weights=right, minlength=rows).cumsum()
            reach_ms = exit_.reach_ms
        exit_ms, end_ms = reach_ms + tried_ms + branch_ms, end.full_ms + tried_ms + branch_ms
        device_ms = leaves * exit_ms + stays * end_ms
        wrong = (leaves - exit_right) + (stays - right_at_end)
        means: dict[int, Column] = {}
        for row in self._needed:
            if row:
                total = (spent[row] + device_ms * self._per_ms[row])[:, None] + asked * self._per_call[row]
            else:
                total = (spent[0] + wrong)[:, None] - gained
            means[row] = total / self._count
        self._take_best(means, asked, leaves, exit_ms, end_ms, taken, grid, most)

    def _take_best(
        self,
        means: dict[int, Column],
        asked: Column,
        leaves: npt.NDArray[np.int64],
        exit_ms: Column,
        end_ms: Column,
        taken: list[float],
        grid: Column,
        most: int,
    ) -> None:
        objective = means[int(np.argmax(self._objective))]
        kept = objective < self._worst
        for row, quantity in means.items():
            kept &= quantity <= self._limits[row]
        if not kept.any():
            return
        kept &= self._fits_memory(taken, len(grid))[:, None]
        if kept.any() and self._requirement.p95_latency_ms is not None:
            kept &= self._p95(asked, leaves, exit_ms, end_ms, taken) <= self._requirement.p95_latency_ms
        if not kept.any():
            return
        place = int(np.argmin(np.where(kept, objective, math.inf)))
        row, column = divmod(place, objective.shape[1])
        self._worst = float(objective[row, column])
        thresholds = [*taken, float(grid[row])] if row < len(grid) else taken
        chosen = tuple(
            ExitChoice(one.choice.exit, threshold, one.choice.rendition)
            for one, threshold in zip(self._exits, thresholds, strict=False)
            if threshold < UNREACHABLE_CONFIDENCE
        )
        value = 1.0 - self._worst if self._requirement.optimise == "accuracy" else -self._worst
        self.best = JointThresholds(
            chosen, int(self._hard_eases[column]), value, most - self._tables_left, is_exact=True
        )

    def _fits_memory(self, taken: Sequence[float], thresholds: int) -> Correct:
        pairs = zip(taken, self._exit_bytes, strict=False)
        own = self._bytes + sum(size for threshold, size in pairs if threshold < UNREACHABLE_CONFIDENCE)
        needed = np.full(thresholds + 1, own)
        if thresholds:
            needed[:-1] += self._exit_bytes[-1]
        limit = self._requirement.peak_bytes
        return np.ones(len(needed), dtype=bool) if limit is None else np.asarray(needed <= limit)

    def _p95(
        self, asked: Column, leaves: npt.NDArray[np.int64], exit_ms: Column, end_ms: Column, taken: Sequence[float]
    ) -> Column:
        """The 95th percentile of all pairs: who goes further waits longer, so the order is known."""
        early = self._early(taken)  # [exits before the last, (milliseconds, samples)]
        before = sum(samples for _, samples in early)
        place = _PERCENTILE * (self._count - 1)
        low = math.floor(place)

        def at(rank: int) -> Column:
            rank = min(rank, self._count - 1)
            found = np.broadcast_to((end_ms + self._per_call[1])[:, None], asked.shape).copy()
            unasked = self._count - asked
            found = np.where(rank < unasked, end_ms[:, None], found)
            found = np.where(rank < (before + leaves)[:, None], exit_ms[:, None], found)
            passed = before
            for milliseconds, samples in reversed(early):
                found = np.where(rank < passed, milliseconds, found)
                passed -= samples
            return found

        below, above = at(low), at(low + 1)
        return np.asarray(below + (above - below) * (place - low))

    def _early(self, taken: Sequence[float]) -> list[tuple[float, int]]:
        """Milliseconds and samples of each exit that was given a threshold on the way here."""
        rest, tried_ms, found = np.ones(self._count, dtype=bool), 0.0, []
        for exit_, threshold in zip(self._exits, taken, strict=False):
            if threshold < UNREACHABLE_CONFIDENCE:
                tried_ms += exit_.branch_ms
                answers = rest & (exit_.confidence >= threshold)
                found.append((exit_.reach_ms + tried_ms, int(answers.sum())))
                rest &= ~answers
        return found


def _limit(requirement: Requirement, name: str) -> float:
    """The most of a quantity that is allowed per sample; infinity for no limit."""
    limit = getattr(requirement, name)
    if limit is None:
        return math.inf
    return 1.0 - float(limit) + 1e-12 if name == "accuracy" else float(limit)


def _cumulated(
    rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64], weights: Column, shape: tuple[int, int]
) -> Column:
    """Sums of the weights at or before each row and column; what lies behind the last column counts nowhere."""
    height, width = shape[0], shape[1] + 1
    flat = np.bincount(rows * width + columns, weights=weights, minlength=height * width)
    return np.asarray(flat.reshape(height, width)[:, :-1].cumsum(axis=0).cumsum(axis=1))
