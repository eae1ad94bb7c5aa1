"""Exact placement: branch and bound over the expectation, with upper bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.placement.candidates import ExitCandidate
from device_sdk.policies.placement.expectation import Floats, Survival
from device_sdk.policies.placement.hpf import greedy_choice
from device_sdk.policies.placement.problem import Choice, PlacementProblem

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


_SIZE, _TRIED, _ANSWERED, _ACCURACY, _VALUE, _BOUND, _EXIT, _PARENT = range(8)
_CHUNK = 256  # labels at once: matrices of labels x candidates stay in the cache
_SLACK = 1e-12  # sums in another order may differ by this; equally good labels are kept


def place_exactly(problem: PlacementProblem) -> Choice:
    """The best choice; of equally good ones that with fewer bytes. Without proof once the problem is late.

    Then it is the better of the best one so far and the greedy one.
    """
    if not problem.candidates:
        return Choice(optimal=True)
    search = _Search(problem)
    finished = search.run()
    choice = Choice(tuple(problem.candidates[number] for number in search.best()), optimal=finished)
    return choice if finished else max(choice, greedy_choice(problem), key=lambda one: problem.value(one.exits))


class _Search:
    """The labels of one run."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        self._columns = columns = Columns.of(problem.candidates)
        self._answer = columns.answer
        relaxations = relax(columns, problem.survival, problem.memory_bytes)
        self._price = relaxations[-1].price
        self._completion = CompletionBound(columns, problem.survival, self._price)
        fitting = [one.path for one in relaxations if columns.size[list(one.path)].sum() <= problem.memory_bytes]
        self._relaxed = max(fitting, key=self._worth, default=())
        self._floor = self._worth(self._relaxed)  # a placement of this expectation is known
        self._kept = np.zeros((1, 8))
        self._kept[0, [_EXIT, _PARENT]] = -1
        self._waiting: dict[int, list[Floats]] = {start: [] for start in columns.starts[:-1]}

    def _worth(self, path: tuple[int, ...]) -> float:
        return self._problem.value(self._problem.candidates[number] for number in path)

    def run(self) -> bool:
        """Extend labels cut point by cut point. False if the problem got late first."""
        if not self._extend(0, self._columns.starts[0]):
            return False
        for start, end in zip(self._columns.starts, self._columns.starts[1:], strict=False):
            if not self._waiting[start]:
                continue
            labels = np.concatenate(self._waiting.pop(start))
            labels = labels[labels[:, _BOUND] >= self._floor - _SLACK]
            first = len(self._kept)
            if not self._keep_undominated(labels, end) or not self._extend(first, end):
                return False
        return True

    def best(self) -> list[int]:
        """The candidates of the best placement so far."""
        values = self._kept[:, _VALUE]
        label = int(np.lexsort((self._kept[:, _SIZE], -values))[0])
        if values[label] < self._floor - _SLACK:
            return list(self._relaxed)
        found = []
        while label > 0:
            found.append(int(self._kept[label, _EXIT]))
            label = int(self._kept[label, _PARENT])
        return found[::-1]

    def _extend(self, first: int, end: int) -> bool:
        """Append every candidate from ``end`` on to every kept label from ``first`` on."""
        total = len(self._columns.size)
        for chunk in range(first, len(self._kept), _CHUNK):
            if self._problem.late():
                return False
            if end < total:
                self._append(np.arange(chunk, min(chunk + _CHUNK, len(self._kept))), np.arange(end, total))
        return True

    def _append(self, numbers: np.ndarray, candidates: np.ndarray) -> None:
        labels, columns = self._kept[numbers], self._columns
        size = labels[:, [_SIZE]] + columns.size[candidates]
        tried = labels[:, [_TRIED]] + columns.branch[candidates]
        answered = np.maximum(labels[:, [_ANSWERED]], columns.reach[candidates] + tried)
        higher = columns.accuracy[candidates] - labels[:, [_ACCURACY]]
        value = labels[:, [_VALUE]] + higher * self._problem.survival.at(answered)
        spare = self._problem.memory_bytes - size
        bound = value + self._price * spare + self._completion(candidates, tried)
        fits = (higher > 0) & (spare >= 0)
        self._floor = max(self._floor, float(np.where(fits, value, 0.0).max()))
        label, exit_ = np.nonzero(fits & (bound >= self._floor - _SLACK))
        accuracy = columns.accuracy[candidates[exit_]]
        cells = [each[label, exit_] for each in (size, tried, answered, value, bound)]
        rows = np.stack([*cells[:3], accuracy, *cells[3:], candidates[exit_], numbers[label]], axis=1)
        place = np.searchsorted(columns.starts, candidates[exit_], side="right") - 1
        for index in np.unique(place):
            self._waiting[columns.starts[index]].append(rows[place == index])

    def _keep_undominated(self, labels: Floats, end: int) -> bool:
        """Add to the kept labels those of ``labels`` that none of them and none before dominates."""
        labels = labels[np.lexsort((labels[:, _ACCURACY], -labels[:, _VALUE], labels[:, _TRIED], labels[:, _SIZE]))]
        soonest = self._answer[end:].min() if end < len(self._answer) else self._problem.survival.full_time
        for chunk in range(0, len(labels), _CHUNK):
            if self._problem.late():
                return False
            several = labels[chunk : chunk + _CHUNK]
            several = several[~_dominated(self._kept, several, soonest, self._problem.survival)]
            within = _dominates(several, several, soonest, self._problem.survival)
            self._kept = np.concatenate([self._kept, several[~np.triu(within, 1).any(axis=0)]])
        return True


def _dominated(kept: Floats, labels: Floats, soonest: float, survival: Survival) -> np.ndarray:
    """Mask of those ``labels`` that any of ``kept`` dominates: [labels]."""
    found = np.zeros(len(labels), dtype=bool)
    for chunk in range(0, len(kept), 4 * _CHUNK):
        found |= _dominates(kept[chunk : chunk + 4 * _CHUNK], labels, soonest, survival).any(axis=0)
    return found


def _dominates(kept: Floats, labels: Floats, soonest: float, survival: Survival) -> np.ndarray:
    """Mask [kept, labels] of dominance of ``kept`` over ``labels``. ``soonest``: the earliest later answer."""
    later = np.maximum(labels[:, _ANSWERED], soonest + labels[:, _TRIED])
    ahead = np.maximum(kept[:, [_ACCURACY]] - labels[:, _ACCURACY], 0.0)
    found = kept[:, [_VALUE]] - ahead * survival.at(later) >= labels[:, _VALUE]
    found &= kept[:, [_SIZE]] <= labels[:, _SIZE]
    found &= kept[:, [_TRIED]] <= labels[:, _TRIED]
    found &= kept[:, [_ANSWERED]] <= later
    return np.asarray(found)
