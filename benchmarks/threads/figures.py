"""The figures of ``threads``, computed from cells: one condition and one budget each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from device_sdk.profiling.timing import Ratio

_BOUND = 1.96  # standard errors: 95 %


@dataclass(frozen=True)
class Cell:
    """One adaptation with the homes free, beside the same with fixed numbers of threads.

    ``over_fixed``: latency of the chosen plan over that of its subnet at each fixed number of threads, in turns.
    ``accuracy`` and ``fixed_accuracy``: of what each chose, on samples that did not choose; None where it was refused.
    """

    condition: str
    budget_ratio: float  # of the full model's latency on one thread
    budget_ms: float
    subnet: str
    latency_ms: float
    over_fixed: Mapping[int, Ratio]
    accuracy: float
    fixed_accuracy: Mapping[int, float | None]
    fixed_ms: Mapping[int, float]

    @property
    def over_best(self) -> Ratio:
        """Over the fixed number of threads that was the quickest with this subnet, in hindsight."""
        return max(self.over_fixed.values(), key=lambda one: one.value)

    @property
    def bound(self) -> float:
        """The upper bound of that ratio's 95 % interval."""
        return self.over_best.value * math.exp(_BOUND * self.over_best.relative_error)

    @property
    def below_fixed_points(self) -> float | None:
        """Points by which the best choice of a fixed number of threads is more accurate; None without one."""
        known = [one for one in self.fixed_accuracy.values() if one is not None]
        return 100 * (max(known) - self.accuracy) if known else None


def figures_of(cells: Sequence[Cell], *, refused: int) -> dict[str, float]:
    """All figures; one that cannot be computed is left out, and so misses."""
    figures = {"refused_runs": float(refused), "cells": float(len(cells))}
    if cells:
        figures["worst_over_best_fixed"] = max(one.bound for one in cells)
        figures["median_over_best_fixed"] = sorted(one.over_best.value for one in cells)[len(cells) // 2]
    below = [points for one in cells if (points := one.below_fixed_points) is not None]
    if below:
        figures["worst_below_fixed_points"] = max(below)
    return figures


def rows_of(cells: Sequence[Cell]) -> list[dict[str, object]]:
    """A row per cell, and one per fixed number of threads in it."""
    rows: list[dict[str, object]] = []
    for one in cells:
        where = {"condition": one.condition, "budget_ratio": one.budget_ratio}
        rows.append(
            {
                **where,
                "threads": "free",
                "budget_ms": one.budget_ms,
                "subnet": one.subnet,
                "latency_ms": one.latency_ms,
                "accuracy": one.accuracy,
                "over_best_fixed": one.over_best.value,
                "over_best_fixed_bound": one.bound,
            }
        )
        for threads, ratio in one.over_fixed.items():
            rows.append(
                {
                    **where,
                    "threads": threads,
                    "own_choice_ms": one.fixed_ms.get(threads),
                    "own_choice_accuracy": one.fixed_accuracy.get(threads),
                    "free_over_this": ratio.value,
                    "relative_error": ratio.relative_error,
                }
            )
    return rows
