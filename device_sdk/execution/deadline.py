"""Selects the last answer of a plan that meets a deadline, from the measured times of its steps. Pure.

A step runs from one exit of the plan to the next, the last one to the end. Source: finite-time inference of MEEdge
§3.4, which profiles latencies once; here they are a distribution, and the device's present speed counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

QUANTILE = 0.99  # of the times of earlier runs: a deadline is kept this often
RECENT_RUNS = 9  # whose median says how slow the device is now


def slowness(runs_ms: Sequence[Sequence[float]], typical_ms: Sequence[float]) -> float:
    """Slowdown of the last runs against ``typical_ms``: the upper median of their ratios; 1 without runs.

    ``runs_ms``: per run, the oldest first, the milliseconds of its first steps, at least one.
    """
    ratios = sorted(sum(run) / sum(typical_ms[: len(run)]) for run in runs_ms[-RECENT_RUNS:])
    return ratios[len(ratios) // 2] if ratios else 1.0


def answer_times_ms(
    runs_ms: Sequence[Sequence[float]],
    typical_ms: Sequence[float],
    *,
    present_slowness: float | None = None,
    quantile: float = QUANTILE,
) -> list[float]:
    """Milliseconds from the start within which each step answers, in all but ``1 - quantile`` of the runs.

    Steps that a run did not reach count as ``typical_ms`` times the ``slowness`` of the runs. ``present_slowness``:
    that of ordinary calls; if it is above that of the runs, all times are scaled by the ratio of the two.
    """
    now = slowness(runs_ms, typical_ms)
    scale = 1.0 if present_slowness is None else max(1.0, present_slowness / now)
    if not runs_ms:
        return [scale * float(one) for one in np.cumsum(typical_ms)]
    whole = np.tile(now * np.asarray(typical_ms, dtype=np.float64), (len(runs_ms), 1))
    for row, run in zip(whole, runs_ms, strict=True):
        row[: len(run)] = run
    rank = max(math.ceil(quantile * len(runs_ms)) - 1, 0)
    return [scale * float(one) for one in np.sort(np.cumsum(whole, axis=1), axis=0)[rank]]


def last_in_time(times_ms: Sequence[float], deadline_ms: float) -> int | None:
    """The last step that answers within ``deadline_ms``; None if not even the first does."""
    found = None
    for number, time_ms in enumerate(times_ms):
        if time_ms <= deadline_ms:
            found = number
    return found
