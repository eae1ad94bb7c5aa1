"""The exits that could be kept, and those of them that are worth considering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

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
    """All exits with an accuracy, and the full model's time; both timed in MACs along the original path.

    For devices without measurements. Memory is that of float32 parameters.
    """
    reached = [0]
    for _, block in supernet.walk(supernet.original):
        reached.append(reached[-1] + block.macs)

    def candidate(exit_: Exit, accuracy: float) -> ExitCandidate:
        reach, size = float(reached[exit_.position]), _PARAMETER_BYTES * exit_.parameters
        return ExitCandidate(exit_.id, exit_.position, accuracy, reach, float(exit_.macs), size)

    known = [candidate(exit_, exit_.accuracy) for exit_ in supernet.exits if exit_.accuracy is not None]
    return known, float(reached[-1])
