"""Exact placement: dynamic programming over cut points with Pareto fronts of labels (MEEdge §3.3.2's knapsack).

A label is a set of kept exits, the last at the cut point where it stands: bytes, tried time, time of the last answer,
accuracy a, expectation v if nothing follows. Exits that are not more accurate than those before are never added: they
only cost bytes and time.

**Dominance.** Label X replaces Y at the same cut point or a later one if it has no more bytes, no more tried time, its
last answer is no later than Y's or than any that can follow Y, and v_X − max(0, a_X − a_Y) · s ≥ v_Y, where s is the
probability that inference still runs at the earliest answer that can follow Y. Proof: what may follow Y fits behind X
too and answers there no later. Exits of accuracy above max(a_X, a_Y) then add as much to X as to Y or more. Levels
between a_Y and a_X are reached behind Y at the earliest with probability s, so Y catches up by at most (a_X − a_Y) · s;
levels between a_X and a_Y only add to X. So X with any completion is worth at least Y with the same.

**Bound.** A label is dropped if even its completion bound (``bounds``) stays below the best placement so far.
Neither rule discretises memory or time.
"""

from __future__ import annotations

import numpy as np

from device_sdk.policies.placement.bounds import Columns, CompletionBound, relax
from device_sdk.policies.placement.expectation import Floats, Survival
from device_sdk.policies.placement.greedy import greedy_choice
from device_sdk.policies.placement.problem import Choice, PlacementProblem

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
