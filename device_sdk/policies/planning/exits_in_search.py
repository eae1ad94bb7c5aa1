"""Exits as a part of the search: a slower subnet whose exits answer most samples may be better than any quick one.

The subnets of a search's pool and the full model compete with and without exits under one requirement, by
``expected_cost``: the budget then limits the mean latency, and single samples that take no exit may take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.calibration import measured_with_exits
from device_sdk.policies.exits.timed_exits import with_further_exits
from device_sdk.policies.planning.plan_choice import choose_plan
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.search.port import Candidate
from device_sdk.supernet.cost import Budget, PlanCost
from device_sdk.supernet.plan import Plan, Subnet
from device_sdk.supernet.requirement import Requirement

_SUBNETS = 12  # of the pool that are looked at
_SLOWEST = 3.0  # times the budget: exits rarely save more
_ENOUGH = 90  # samples held back from the search; with fewer, thresholds are chosen on all


@dataclass(frozen=True)
class ExitsFound:
    """A plan with exits that beats the plain subnet, and its cost on ``judged`` samples that chose nothing."""

    plan: Plan
    cost: PlanCost
    held_out: PlanCost | None
    judged: int
    mean_ms: float


def find_exits(
    workspace: Workspace,
    profile: Profile,
    pool: Sequence[Candidate],
    budget: Budget,
    inputs: Inputs,
    labels: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64],
    *,
    most_ms: float,
    progress: Progress,
) -> ExitsFound | None:
    """The best plan with exits; None where a plain subnet is better, or exits measure above ``most_ms`` on average.

    ``held``: positions of the samples that the search did not see; they choose, unless they are too few.
    """
    if not workspace.supernet.exits:
        return None
    positions = held if len(held) >= _ENOUGH else np.arange(len(inputs))
    samples = inputs.subset(positions)
    try:
        planned = choose_plan(
            workspace,
            profile,
            competing(workspace.supernet.original, pool, budget),
            samples,
            labels[positions],
            Requirement.of(budget),
            Servers(),
            power=None,
            progress=progress,
        )
    except InfeasibleBudgetError:
        return None
    plan = planned.choice.plan
    if not plan.exits:
        return None
    mean_ms, _ = measured_with_exits(workspace, plan, samples)
    if mean_ms > most_ms:
        return None
    if budget.memory_mb is None:  # else what is left of it is not known to suffice
        plan = with_further_exits(workspace.supernet, plan)
    return ExitsFound(plan, planned.choice.cost, planned.held_out, planned.judged, mean_ms)


def competing(original: Subnet, pool: Sequence[Candidate], budget: Budget) -> list[Subnet]:
    """The subnets that are looked at: the full model, and the most accurate of the pool that exits may make fit."""
    limit_ms = None if budget.latency_ms is None else _SLOWEST * budget.latency_ms
    near = [one for one in pool if limit_ms is None or one.cost.latency_ms <= limit_ms]
    best = sorted(near, key=lambda one: (-one.expected_accuracy, one.cost.latency_ms))[:_SUBNETS]
    return list(dict.fromkeys([original, *(one.subnet for one in best)]))
