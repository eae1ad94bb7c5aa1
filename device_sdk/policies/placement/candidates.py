"""Exits to place: candidates, the problem, and placements of one device on another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import floor, isfinite

import numpy as np

from device_sdk.errors import UsageError
from device_sdk.supernet.blocks import Exit
from device_sdk.supernet.supernet import Supernet

_PARAMETER_BYTES = 4


@dataclass(frozen=True)
class ExitCandidate:
    """An exit that could be kept.

    ``reach_time``: from the input to its cut point; ``branch_time``: of its branch; both in the unit of the full
    model's time.
    """

    exit: str
    position: int
    accuracy: float
    reach_time: float
    branch_time: float
    memory_bytes: int

    @property
    def answer_time(self) -> float:
        """From the input to its answer if no other branch is tried."""
        return self.reach_time + self.branch_time


def worthwhile(
    candidates: Iterable[ExitCandidate], *, full_time: float, memory_bytes: int | None
) -> tuple[ExitCandidate, ...]:
    """The candidates that may be in a best placement, by position and name.

    Left out: those that never answer in time, never correctly, or exceed the memory alone, and those for which another
    at the same cut point is as accurate, as small, and as quick to answer and to try. Exchanging one of these for
    the other never lowers the expectation: all answers come as early as before.
    """
    at_position: dict[int, list[ExitCandidate]] = {}
    for one in sorted(candidates, key=lambda candidate: (candidate.position, candidate.exit)):
        fits = memory_bytes is None or one.memory_bytes <= memory_bytes
        if fits and one.answer_time < full_time and one.accuracy > 0:
            at_position.setdefault(one.position, []).append(one)
    return tuple(one for several in at_position.values() for one in _undominated(several))


def _undominated(candidates: list[ExitCandidate]) -> list[ExitCandidate]:
    """The Pareto front of candidates at one cut point, in their order; of equal ones the first."""
    rows = [(one.memory_bytes, one.answer_time, one.branch_time, -one.accuracy) for one in candidates]
    costs = np.array(rows, dtype=np.float64)
    order = np.lexsort(costs.T[::-1])  # stable; a dominating row comes before those that it dominates
    ordered = costs[order]
    beaten = np.ones((len(order), len(order)), dtype=bool)
    for column in ordered.T:
        beaten &= column[:, None] <= column
    front = order[~np.triu(beaten, 1).any(axis=0)]
    return [candidates[number] for number in sorted(front)]


def candidates_by_macs(supernet: Supernet) -> tuple[list[ExitCandidate], float]:
    """All exits with an accuracy, and the full model's time; both timed in MACs along the original paths.

    For devices without measurements. Memory is that of float32 parameters.
    """
    reached, whole = dict[int, int](), 0
    for original in reversed(supernet.originals):  # the last is the largest, whose end counts
        whole = 0
        for _, block in supernet.walk(original):
            whole += block.macs
            reached[block.end] = whole

    def candidate(exit_: Exit, accuracy: float) -> ExitCandidate:
        reach, size = float(reached[exit_.position]), _PARAMETER_BYTES * exit_.parameters
        return ExitCandidate(exit_.id, exit_.position, accuracy, reach, float(exit_.macs), size)

    known = [candidate(exit_, exit_.accuracy) for exit_ in supernet.exits if exit_.accuracy is not None]
    return known, float(whole)


_BITS_PER_MS_AND_MBPS = 1000.0
REQUEST_BYTES = 16  # the latency budget and the memory budget, a float64 and an int64


def transferable_bytes(
    *,
    latency_budget_ms: float,
    search_ms: float,
    uplink_mbps: float,
    downlink_mbps: float,
    request_bytes: int = REQUEST_BYTES,
) -> int:
    """Bytes of branches that still arrive once the request was sent and the search took ``search_ms``; at least 0.

    Source: MEEdge Eq. 1, solved for the size of the selected branches; it has one rate for both directions.

    Raises:
        UsageError: a rate that is not above zero, or a time or size that is negative or not finite.
    """
    for name, rate in (("uplink_mbps", uplink_mbps), ("downlink_mbps", downlink_mbps)):
        if not (isfinite(rate) and rate > 0):
            raise UsageError(f"{name} is {rate:g}; it must be above zero")
    for name, cost in (("latency_budget_ms", latency_budget_ms), ("search_ms", search_ms), ("request", request_bytes)):
        if not (isfinite(cost) and cost >= 0):
            raise UsageError(f"{name} is {cost:g}; it cannot be negative")
    request_ms = 8 * request_bytes / (uplink_mbps * _BITS_PER_MS_AND_MBPS)
    left_ms = latency_budget_ms - search_ms - request_ms
    return max(floor(left_ms * downlink_mbps * _BITS_PER_MS_AND_MBPS / 8), 0)
