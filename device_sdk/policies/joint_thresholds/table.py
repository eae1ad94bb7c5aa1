"""Costs of every combination of a last exit's two limits and of a decision's, from cumulative counts. Pure.

The limits of an exit are the threshold from which on it answers and that below which it asks. A combination is a cell:
[thresholds, limits of asking, numbers of hard eases]; out of reach, and none asked, are among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.costs.route import RemoteCall
from device_sdk.policies.deciding.thresholds import ExitSamples
from device_sdk.policies.joint_thresholds.grid import Grid

Column = npt.NDArray[np.float64]
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
