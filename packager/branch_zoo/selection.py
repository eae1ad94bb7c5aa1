"""Selection of branches: those that are trained further (successive halving), and those that become exits.

Accuracy alone would leave only the largest branches, and placement under a memory limit needs the cheap ones. So
fronts are peeled: those that no other branch beats in accuracy, MACs and bytes at once are kept first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from device_sdk.profiling.profile import Profile
from device_sdk.supernet.plan import Edge
from packager.branch_zoo.specs import BranchCost
from packager.supernet.expansion import Expansion

RUNGS = 4  # of training; between them branches are dropped
KEPT_SHARE = 0.5
_LEAST_KEPT = 8  # budgets need cheap branches beside accurate ones
FP32 = "fp32"


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


@dataclass(frozen=True)
class AnswerTimes:
    """Times at which branches and the full model answer, in ``unit``.

    ``reach``: from the input to each cut point, the output last. ``branch``: measured times by exit id; other branches
    take ``per_mac`` for each MAC.
    """

    unit: Literal["ms", "MACs"]
    reach: tuple[float, ...]
    per_mac: float = 1.0
    branch: Mapping[str, float] | None = None

    @property
    def full(self) -> float:
        """The full model's time."""
        return self.reach[-1]

    def answer(self, exit_id: str, position: int, macs: int) -> float:
        """From the input to the answer of an exit whose branch has ``macs``."""
        measured = (self.branch or {}).get(exit_id)
        return self.reach[position] + (self.per_mac * macs if measured is None else measured)


def survives(*, answer_time: float, accuracy: float, full_time: float, full_accuracy: float) -> bool:
    """True if a branch answers before the full model or is more accurate (MEEdge §3.2.2): judged before export."""
    return answer_time < full_time or accuracy > full_accuracy


def answer_times(expansion: Expansion, profile: Profile | None = None) -> AnswerTimes:
    """Latencies measured on a device where ``profile`` has all original blocks in fp32; otherwise MACs.

    A profile is that of an earlier bundle of the same model: blocks and exits keep their ids.
    """
    blocks = expansion.originals
    macs = [float(block.macs) for block in blocks]
    by_macs = AnswerTimes("MACs", (0.0, *accumulate(macs)))
    if profile is None:
        return by_macs
    costs = profile.cost_model()
    edges = [Edge(block.id, FP32) for block in blocks]
    if not all(edge in costs.edge_costs for edge in edges):
        return by_macs
    milliseconds = [costs.edge_latency_ms(edge) for edge in edges]
    return AnswerTimes(
        "ms",
        (0.0, *accumulate(milliseconds)),
        per_mac=sum(milliseconds) / max(1.0, sum(macs)),
        branch={one.exit: one.cost.latency_ms for one in profile.exits if one.rendition == FP32 and not one.input_size},
    )
