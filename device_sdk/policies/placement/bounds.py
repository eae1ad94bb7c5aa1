"""Upper bounds on what can be added behind an exit, from a Lagrangian relaxation of the memory limit.

Every byte costs ``price``. Behind candidate j the best that can be added is then a longest path over later, more
accurate candidates i, each worth (accuracy i − accuracy j) · survival(answer i) − price · bytes i. Tried
branches delay an answer by at least the lower edge of a cell of tried time, which only makes the bound looser.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.placement.candidates import ExitCandidate
from device_sdk.policies.placement.expectation import Floats, Survival

_CELLS = 16
_PRICES = 14  # tried until the best one is found


@dataclass(frozen=True)
class Columns:
    """Candidates [count] as arrays, by position. ``starts``: where each position begins, and the count."""

    position: npt.NDArray[np.int64]
    accuracy: Floats
    reach: Floats
    branch: Floats
    size: Floats
    starts: tuple[int, ...]

    @property
    def answer(self) -> Floats:
        """When each answers if no other branch is tried."""
        return self.reach + self.branch

    @classmethod
    def of(cls, candidates: tuple[ExitCandidate, ...]) -> Columns:
        """From at least one candidate, sorted by position."""
        rows = [(one.accuracy, one.reach_time, one.branch_time, one.memory_bytes) for one in candidates]
        accuracy, reach, branch, size = np.array(rows, dtype=np.float64).T.copy()
        position = np.array([one.position for one in candidates], dtype=np.int64)
        first = np.flatnonzero(np.diff(position, prepend=position[0] - 1))
        return cls(position, accuracy, reach, branch, size, (*map(int, first), len(rows)))


@dataclass(frozen=True)
class Relaxation:
    """``price`` per byte and the relaxed optimum [value, in order of candidates] at that price."""

    price: float
    bound: float
    path: tuple[int, ...]


def relax(columns: Columns, survival: Survival, memory_bytes: int) -> list[Relaxation]:
    """Relaxations at several prices, the tightest bound last.

    The bound is convex and piecewise linear in the price: each step takes the price where the lines of the
    cheapest path above the limit and of the best one below it meet, until no line lies below.
    """
    found = [_relaxed(columns, survival, 0.0, memory_bytes)]
    above = _line(columns, found[0], memory_bytes)
    below = (0.0, float(memory_bytes))  # the empty placement
    while above[1] < 0 and len(found) < _PRICES:
        price = (above[0] - below[0]) / (below[1] - above[1])
        found.append(_relaxed(columns, survival, price, memory_bytes))
        if found[-1].bound <= (below[0] + below[1] * price) * (1 + 1e-12):
            break
        line = _line(columns, found[-1], memory_bytes)
        above, below = (line, below) if line[1] < 0 else (above, line)
    return sorted(found, key=lambda one: -one.bound)


def _line(columns: Columns, relaxed: Relaxation, memory_bytes: int) -> tuple[float, float]:
    """Value without the price, and spare bytes: the bound of this path as a function of the price."""
    spare = memory_bytes - float(columns.size[list(relaxed.path)].sum())
    return relaxed.bound - relaxed.price * spare, spare


def _relaxed(columns: Columns, survival: Survival, price: float, memory_bytes: int) -> Relaxation:
    """The longest path if branches delay only their own answers."""
    chances = survival.at(columns.answer)
    worth = np.zeros(len(chances))  # of a candidate and all behind it, its own accuracy gain apart
    following = np.full(len(chances), -1)
    for start, end in _backwards(columns):
        behind = np.zeros(end - start)
        if end < len(chances):
            higher = columns.accuracy[end:] - columns.accuracy[start:end, None]
            gains = np.where(higher > 0, higher * chances[end:] + worth[end:], -1.0)
            chosen = gains.argmax(axis=1)
            best = gains[np.arange(end - start), chosen]
            following[start:end] = np.where(best > 0, chosen + end, -1)
            behind = np.maximum(best, 0.0)
        worth[start:end] = behind - price * columns.size[start:end]
    totals = columns.accuracy * chances + worth
    number = int(totals.argmax())
    if totals[number] <= 0:
        return Relaxation(price, price * memory_bytes, ())
    path = [number]
    while following[path[-1]] >= 0:
        path.append(int(following[path[-1]]))
    return Relaxation(price, float(totals[number]) + price * memory_bytes, tuple(path))


class CompletionBound:
    """The most that exits behind a candidate can add, at a price per byte and a tried time, whatever is kept before."""

    def __init__(self, columns: Columns, survival: Survival, price: float) -> None:
        self._cell = survival.full_time / (2 * _CELLS)
        tried = self._cell * np.arange(_CELLS)
        chances = survival.at(columns.answer[:, None] + tried)  # [count, cells]
        after = self._cells(columns.branch[:, None] + tried)
        self._worth = np.zeros(chances.shape)
        total = np.zeros(chances.shape)
        for start, end in _backwards(columns):
            if end < len(chances):
                higher = (columns.accuracy[end:] - columns.accuracy[start:end, None])[:, :, None]
                gains = np.where(higher > 0, higher * chances[end:] + total[end:], 0.0)
                self._worth[start:end] = np.maximum(gains.max(axis=1), 0.0)
            behind = np.take_along_axis(self._worth[start:end], after[start:end], axis=1)
            total[start:end] = behind - price * columns.size[start:end, None]

    def __call__(self, candidates: npt.NDArray[np.int64], tried: Floats) -> Floats:
        """Behind each of ``candidates`` [count] once branches took ``tried`` [labels, count]: [labels, count]."""
        return self._worth[candidates, self._cells(tried)]

    def _cells(self, tried: Floats) -> npt.NDArray[np.int64]:
        return np.minimum(tried / self._cell, _CELLS - 1).astype(np.int64)


def _backwards(columns: Columns) -> list[tuple[int, int]]:
    return list(zip(columns.starts[-2::-1], columns.starts[:0:-1], strict=True))
