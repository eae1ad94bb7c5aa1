"""Successive halving: selection of the branches that are trained further.

Accuracy alone would leave only the largest branches, and placement under a memory limit needs the cheap ones. So
fronts are peeled: those that no other branch beats in accuracy, MACs and bytes at once are kept first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from packager.branch_zoo.specs import BranchCost

RUNGS = 4  # of training; between them branches are dropped
KEPT_SHARE = 0.5
_LEAST_KEPT = 8  # budgets need cheap branches beside accurate ones


@dataclass(frozen=True)
class Judged:
    """A branch's accuracy on held-out samples, 0 to 1, and its cost."""

    accuracy: float
    cost: BranchCost


def kept(judged: Mapping[str, Judged], count: int) -> list[str]:
    """The ``count`` branches to train on, in their order.

    Front by front; of the last one that does not fit, the most accurate.
    """
    names = list(judged)
    rows = np.array([(-one.accuracy, one.cost.macs, one.cost.nbytes) for one in judged.values()], dtype=np.float64)
    left, chosen = np.arange(len(names)), list[int]()
    while len(chosen) < count and len(left):
        front = left[~_beaten(rows[left])]
        order = front[np.lexsort((front, rows[front, 0]))]
        chosen += [int(number) for number in order[: count - len(chosen)]]
        left = np.setdiff1d(left, front)
    return [names[number] for number in sorted(chosen)]


def rung_counts(branches: int) -> list[int]:
    """Number of branches that each rung trains: all, then ever smaller shares, at least ``_LEAST_KEPT`` of them."""
    return [min(branches, max(_LEAST_KEPT, math.ceil(branches * KEPT_SHARE**rung))) for rung in range(RUNGS)]


def rung_steps(steps: int) -> list[int]:
    """``steps`` divided among the rungs so that each costs about the same: half the branches, twice the steps."""
    whole = sum(KEPT_SHARE**-rung for rung in range(RUNGS))
    bounds = [0]
    for rung in range(RUNGS):
        bounds.append(round(steps * sum(KEPT_SHARE**-r for r in range(rung + 1)) / whole))
    return [after - before for before, after in pairwise(bounds)]


def _beaten(rows: np.ndarray) -> np.ndarray:
    """Mask of rows that another one beats: at most as large everywhere, smaller somewhere. [rows, 3] → [rows]."""
    no_larger = (rows[:, None, :] <= rows[None, :, :]).all(axis=2)
    smaller = (rows[:, None, :] < rows[None, :, :]).any(axis=2)
    return np.asarray((no_larger & smaller).any(axis=0))
