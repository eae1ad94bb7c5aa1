"""Limits of exits and of asking a server, optimised together over private samples (EE-HI, HI paper §5.2). Pure.

The paper tries all combinations of thresholds. Here every exit has two limits, from which on it answers and below which
it asks. The last exit and the decision are one table of cumulative counts, which holds every combination of theirs; the
exits before them are searched by branch and bound. A bound lets every sample that is still open choose its own way,
priced by Lagrange multipliers of the limits, so no combination that it cuts off is better than the best one found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.policies.joint_thresholds.bounds import AskingEnd, Bounds, Cells, Grid, Rates, Table, percentile
from device_sdk.supernet.cost import Power
from device_sdk.supernet.goal import Requirement
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice

Column = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
Correct = npt.NDArray[np.bool_]
Limits = tuple[float, float]
"""Of an exit: from which confidence on it answers, and below which it asks."""

MOST_STEPS = 20_000  # of one search; each takes a fraction of a millisecond to some milliseconds
_LEFT_OUT: Limits = (UNREACHABLE_CONFIDENCE, 0.0)


@dataclass
class Effort:
    """Number of steps left to searches: exits whose limits are branched on, and tables that are read."""

    left: int = MOST_STEPS


@dataclass(frozen=True)
class JointThresholds:
    """The best combination: exits that pay, with their limits, and the decision at the end.

    ``decider``: the number of the one that decides; ``hard_eases``: the number of its distinct eases that are hard;
    ``value``: as ``Requirement.value``; ``is_exact``: no combination of the limits tried is better.
    """

    exits: tuple[ExitChoice, ...]
    decider: int
    hard_eases: int
    value: float
    steps: int
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
    bounds: Bounds | None = None,
    table: Table | None = None,
    effort: Effort | None = None,
) -> JointThresholds | None:
    """The limits that ``requirement`` puts first; None if none keeps it and is better than ``better_than``.

    Args:
        exits: candidates that follow each other; one that neither answers nor asks is left out, with its branch.
        power: of the device; without it a requirement on energy cannot be kept.
        peak_bytes: of the subnet; ``exit_bytes``: added by each exit, 0 by default.
        grid: limits to try; by default all.
        bounds, table: of these exits and this end, where they are known already; ``table`` also of this grid.
        effort: after which the search ends with the best so far.
    """
    if is_on_energy(requirement) and power is None:
        return None
    grid = grid or Grid.of(exits, end.eases)
    rates = Rates.of(requirement, end, power)
    bounds = bounds or Bounds(exits, end, rates, asks_early=any(map(len, grid.asks)))
    memory = _Memory(peak_bytes, exit_bytes or [0] * len(exits), requirement.peak_bytes)
    table = table or Table(exits[-1] if exits else None, end, grid)
    search = _Search(exits, end, requirement, rates, bounds, table, memory, grid, effort or Effort())
    return search.run(objective_of(requirement, better_than))


def is_on_energy(requirement: Requirement) -> bool:
    """True if ``requirement`` optimises or limits energy."""
    return requirement.optimise == "energy_mj" or requirement.energy_mj is not None


def objective_of(requirement: Requirement, value: float) -> float:
    """The quantity that is minimised, at ``value`` of ``Requirement.value``; infinite if that is not finite."""
    if not math.isfinite(value):
        return math.inf
    return 1.0 - value if requirement.optimise == "accuracy" else -value


@dataclass(frozen=True)
class _Memory:
    """``own``: bytes of the subnet; ``exits``: bytes that each exit adds."""

    own: int
    exits: Sequence[int]
    limit: int | None

    def fits(self, taken: Sequence[Limits], is_used: Correct) -> Correct:
        """Mask, of the shape of ``is_used``, where the exits ``taken``, and the last one if it ``is_used``, fit."""
        if self.limit is None:
            return np.ones_like(is_used)
        own = self.own + sum(size for one, size in zip(taken, self.exits, strict=False) if one != _LEFT_OUT)
        return np.asarray(own + is_used * (self.exits[-1] if self.exits else 0) <= self.limit)


@dataclass(frozen=True)
class _State:
    """Before an exit: the samples that are ``open``, costs of the others [4], and the branches tried so far."""

    open: Counts
    spent: Column
    tried_ms: float = 0.0
    taken: tuple[Limits, ...] = ()
    left: tuple[tuple[float, int], ...] = ()  # milliseconds and samples of each way out so far


class _Search:
    """One branch and bound. All sums are over samples; objective and limits are linear in them."""

    def __init__(
        self,
        exits: Sequence[ExitSamples],
        end: AskingEnd,
        requirement: Requirement,
        rates: Rates,
        bounds: Bounds,
        table: Table,
        memory: _Memory,
        grid: Grid,
        effort: Effort,
    ) -> None:
        self._exits, self._end, self._requirement = list(exits), end, requirement
        self._count, self._rates, self._bounds, self._memory, self._grid = len(end.right), rates, bounds, memory, grid
        self._call_ms = float(rates.per_call[1])
        self._table = table
        self._needed = [row for row in range(4) if rates.objective[row] or math.isfinite(rates.limits[row])]
        self._effort, self._began_with, self._cut_short = effort, effort.left, False
        self._best: JointThresholds | None = None

    def run(self, worst: float) -> JointThresholds | None:
        """The best combination with an objective below ``worst``."""
        self._worst = worst
        if self._bounds.least < worst:
            self._visit(0, _State(np.arange(self._count), np.zeros(4)))
        found = self._best
        return replace(found, is_exact=False) if found is not None and self._cut_short else found

    def _visit(self, level: int, state: _State) -> None:
        """All limits of the exits from ``level`` on, for the samples that are still open."""
        if self._effort.left <= 0:
            self._cut_short = True
            return
        self._effort.left -= 1
        if level >= len(self._exits) - 1:
            self._read_table(state)
            return
        exit_, spent = self._exits[level], state.spent
        order = state.open[np.argsort(-exit_.confidence[state.open], kind="stable")]  # the surest first
        limits, answered, asked = self._ways(level, exit_.confidence[order])
        wrong = np.append(0, np.cumsum(~exit_.right[order]))[answered]
        there = np.append(0, np.cumsum(~self._end.server_right[order]))
        wrong = wrong + there[-1] - there[len(order) - asked]
        tried = state.tried_ms + np.where(answered + asked > 0, exit_.branch_ms, 0.0)
        here_ms = exit_.reach_ms + tried
        here = (
            spent + np.outer((answered + asked) * here_ms, self._rates.per_ms) + np.outer(asked, self._rates.per_call)
        )
        here[:, 0] += wrong
        bounds = self._bounds.of(level + 1, order, answered, asked, here, tried)
        for number in np.argsort(bounds, kind="stable"):
            if bounds[number] >= self._worst or self._cut_short:
                break
            first, last = int(answered[number]), int(asked[number])
            ways = ((float(here_ms[number]), first), (float(here_ms[number]) + self._call_ms, last))
            rest = order[first : len(order) - last]
            taken = (*state.taken, limits[number])
            self._visit(level + 1, _State(rest, here[number], float(tried[number]), taken, (*state.left, *ways)))

    def _ways(self, level: int, confidence: Column) -> tuple[list[Limits], Counts, Counts]:
        """The pairs of limits of an exit with distinct effects, and the numbers of samples each answers and asks about.

        ``confidence``: of the open samples, the surest first.
        """
        thresholds = np.append(UNREACHABLE_CONFIDENCE, self._grid.thresholds[level][::-1])
        asks = np.append(0.0, self._grid.asks[level])
        answered = np.searchsorted(-confidence, -thresholds, side="right")
        asked = len(confidence) - np.searchsorted(-confidence, -asks, side="right")
        answered[0], asked[0] = 0, 0
        thresholds, asks = (
            one[np.unique(kept, return_index=True)[1]] for one, kept in ((thresholds, answered), (asks, asked))
        )
        answered, asked = np.unique(answered), np.unique(asked)
        rows, columns = np.nonzero(asks[np.newaxis] <= thresholds[:, np.newaxis])
        limits = [(float(thresholds[row]), float(asks[column])) for row, column in zip(rows, columns, strict=True)]
        return limits, answered[rows], asked[columns]

    def _read_table(self, state: _State) -> None:
        """Every combination of the last exit's limits and the decision's, for the samples that are still open."""
        asks_before = any(ask_below > 0 for _, ask_below in state.taken)
        cells = self._table.cells(state.open, state.tried_ms, asks_before=asks_before)
        means: dict[int, Column] = {}
        for row in self._needed:
            if row:
                total = (
                    state.spent[row]
                    + cells.device_ms * self._rates.per_ms[row]
                    + cells.asked * self._rates.per_call[row]
                )
            else:
                total = state.spent[0] + cells.wrong
            means[row] = total / self._count
        objective = means[int(np.argmax(self._rates.objective))]
        kept = (objective < self._worst) & self._table.is_possible
        for row, quantity in means.items():
            kept &= quantity <= self._rates.limits[row]
        if kept.any():
            kept &= self._memory.fits(state.taken, cells.is_used)[:, :, np.newaxis]
        if kept.any() and self._requirement.p95_latency_ms is not None:
            kept[kept] = self._p95(state, cells, kept) <= self._requirement.p95_latency_ms
        if kept.any():
            self._take(state, np.where(kept, objective, math.inf))

    def _take(self, state: _State, objective: Column) -> None:
        row, ask, column = np.unravel_index(int(np.argmin(objective)), objective.shape)
        self._worst = float(objective[row, ask, column])
        thresholds = np.append(self._table.thresholds, UNREACHABLE_CONFIDENCE)
        last = float(thresholds[row]), float(np.append(0.0, self._table.asks)[ask])
        chosen = tuple(
            ExitChoice(one.choice.exit, threshold, one.choice.rendition, ask_below)
            for one, (threshold, ask_below) in zip(self._exits, (*state.taken, last), strict=False)
            if (threshold, ask_below) != _LEFT_OUT
        )
        value = 1.0 - self._worst if self._requirement.optimise == "accuracy" else -self._worst
        starts = np.cumsum([0, *map(len, self._grid.hard_eases)])
        decider = int(np.searchsorted(starts, column, side="right")) - 1
        hard_eases = int(self._grid.hard_eases[decider][column - starts[decider]])
        self._best = JointThresholds(
            chosen, decider, hard_eases, value, self._began_with - self._effort.left, is_exact=True
        )

    def _p95(self, state: _State, cells: Cells, kept: Correct) -> Column:
        """The 95th percentile of the latency in the cells ``kept``."""
        own_ms, own_counts = cells.ways(kept, self._call_ms)
        left = np.array(state.left).reshape(-1, 2)
        shape = (len(left), own_ms.shape[1])
        milliseconds, counts = (np.broadcast_to(one[:, np.newaxis], shape) for one in left.T)
        return percentile(np.concatenate([milliseconds, own_ms]), np.concatenate([counts, own_counts]))
