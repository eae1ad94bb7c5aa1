"""Calibrating a plan: which exits answer early and when, and which samples count as hard.

This module measures; ``placement`` and ``thresholds`` decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.errors import InputError, UsageError
from device_sdk.execution.paging_plan import all_stay
from device_sdk.execution.plan_segments import segments
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.costs.answers import Answers, answer_everywhere
from device_sdk.policies.costs.expected_cost import expected_cost
from device_sdk.policies.costs.route import Route
from device_sdk.policies.deciding.thresholds import choose_exits, hard_threshold
from device_sdk.policies.exits.timed_exits import with_timed_exits
from device_sdk.policies.placement import ExitCandidate, place
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import MB, CostModel
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import (
    ANY_SERVER,
    Ask,
    MaxConfidence,
    Plan,
    RemoteRef,
    Subnet,
)
from device_sdk.supernet.supernet import Supernet

_MEASURED_SAMPLES = 200
_MEASURED_IN_PAGES = 20  # of which each call loads pages again


@dataclass(frozen=True, kw_only=True)
class CalibrationSettings:
    """Settings of a calibration.

    ``accuracy_drop``: the maximum accuracy loss by exits, 0 to 1; with few samples less is lost. ``exit_memory_mb``:
    memory for exits, None for no limit. ``escalated_share``: of all samples, to be sent to the server; ``server``: the
    model there, any by default. ``confirm``: measure that exits save time; otherwise the prediction is trusted.
    ``timed_exits``: keep exits that no confidence takes for deadlines and anytime answers; ordinary answers take as
    long as without them.

    Raises:
        UsageError: a share that is none, or memory below zero.
    """

    accuracy_drop: float = 0.005
    exit_memory_mb: float | None = None
    escalated_share: float = 0.0
    server: RemoteRef = ANY_SERVER
    use_exits: bool = True
    confirm: bool = True
    timed_exits: bool = True
    batch: int = 64

    def __post_init__(self) -> None:
        for name in ("accuracy_drop", "escalated_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name):g}; it must lie between 0 and 1")
        if self.exit_memory_mb is not None and not self.exit_memory_mb >= 0:
            raise UsageError(f"exit_memory_mb is {self.exit_memory_mb:g}; it cannot be negative")


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration on ``samples`` samples.

    ``mean_ms`` is the mean latency at batch 1 with the chosen exits, ``without_exits_ms`` without any, measured in
    turns on the same samples, or one after the other where a memory cap has no room for both; both None where no exit
    was worth it. ``accuracy`` is that on the device, before any escalation; ``share_early`` of the samples take an
    exit, ``share_escalated`` lie below the threshold.
    """

    plan: Plan
    samples: int
    accuracy: float
    accuracy_without_exits: float
    share_early: float
    share_escalated: float
    mean_ms: float | None
    without_exits_ms: float | None


def calibrate_plan(
    workspace: Workspace,
    profile: Profile,
    subnet: Subnet,
    inputs: Inputs | Array,
    labels: npt.NDArray[np.int64] | None,
    *,
    settings: CalibrationSettings,
    progress: Progress,
) -> Calibration:
    """Find exits, their thresholds and the threshold of hard samples for ``subnet``.

    ``inputs``, samples or an array [count, *input] of prepared ones, were neither trained nor searched on; without
    ``labels`` [count] the subnet's own answers stand in.

    1. answer all samples at every exit and at the end; 2. keep the exits that fit the memory; 3. choose thresholds;
    4. confirm by measuring that exits save time, else drop them; 5. keep the others for deadlines and anytime answers;
    6. set the threshold of hard samples among those that reach the end.

    Raises:
        InputError: there are no inputs, or labels and inputs do not match.
        BudgetError: the memory cap is too small for the largest block; says the least that works.
    """
    if not len(inputs):
        raise InputError("there are no samples to calibrate on")
    if labels is not None and labels.shape != (len(inputs),):
        raise InputError(f"there are {len(inputs)} samples and labels of shape {labels.shape}")
    costs = profile.cost_model()
    with progress.task("calibrate", 1) as task:
        answers = answer_everywhere(
            workspace, subnet, inputs, labels, use_exits=settings.use_exits, batch=settings.batch
        )
        memory_bytes = None if settings.exit_memory_mb is None else int(settings.exit_memory_mb * MB)
        kept = placed_exits(answers, costs, memory_bytes=memory_bytes)
        choices = choose_exits(
            [answers.at_exit(number, costs) for number in kept],
            right_at_end=answers.right(-1),
            full_ms=costs.latency_ms(subnet),
            accuracy_drop=settings.accuracy_drop,
        )
        plan = Plan(subnet, exits=tuple(choices)).with_prior(workspace.prior)
        mean_ms, without_ms = (
            measured_with_exits(workspace, plan, inputs) if choices and settings.confirm else (None, None)
        )
        if mean_ms is not None and without_ms is not None and mean_ms >= without_ms:
            plan, mean_ms, without_ms = Plan(subnet).with_prior(workspace.prior), None, None
        if settings.timed_exits:
            plan = with_timed_exits(plan, [answers.at_exit(number, costs).choice for number in kept])
        task.advance()
    return _judged(workspace.supernet, costs, answers, plan, settings, mean_ms=mean_ms, without_ms=without_ms)


def placed_exits(answers: Answers, costs: CostModel, *, memory_bytes: int | None) -> list[int]:
    """Numbers of the exits that are kept in memory: accuracies and times are this device's own."""
    candidates = []
    for number, exit_ in enumerate(answers.exits):
        found = answers.at_exit(number, costs)
        size = costs.exit_bytes(found.choice)
        candidates.append(
            ExitCandidate(exit_.id, exit_.position, float(found.right.mean()), found.reach_ms, found.branch_ms, size)
        )
    kept = place(candidates, full_time=costs.latency_ms(answers.subnet), memory_bytes=memory_bytes).exits
    return [number for number, exit_ in enumerate(answers.exits) if exit_.id in kept]


def measured_with_exits(workspace: Workspace, plan: Plan, inputs: Inputs | Array) -> list[float]:
    """Mean latency at batch 1 with the plan's exits and without, sample by sample, in turns if both fit at once."""
    plans = [plan, Plan(plan.subnet).with_prior(plan.class_prior)]
    prints = [
        workspace.footprint(part.edges, part.exit) for each in plans for part in segments(workspace.supernet, each)
    ]
    if workspace.memory_cap_bytes is None or all_stay(prints, workspace.memory_cap_bytes):
        return _timed(workspace, plans, inputs, _MEASURED_SAMPLES)
    return [_timed(workspace, [each], inputs, _MEASURED_IN_PAGES)[0] for each in plans]


def _timed(workspace: Workspace, plans: Sequence[Plan], inputs: Inputs | Array, count: int) -> list[float]:
    """Mean latencies over the first ``count`` samples."""
    some = as_inputs(inputs).take(np.arange(min(count, len(inputs))), plans[0].subnet.input_size)
    loaded = [workspace.load_plan(plan) for plan in plans]
    try:
        return mean_latencies_ms(loaded, some)
    finally:
        for plan in loaded:
            plan.close()


def _judged(
    supernet: Supernet,
    costs: CostModel,
    answers: Answers,
    plan: Plan,
    settings: CalibrationSettings,
    *,
    mean_ms: float | None,
    without_ms: float | None,
) -> Calibration:
    """The finished plan, and what it does to the calibration samples."""
    here = expected_cost(supernet, plan, answers.evidence, costs)
    share_hard = 0.0
    if settings.escalated_share > 0:
        rest = Route.to_end(supernet, plan, answers.evidence, costs).open
        at_end = confidence(answers.logits[-1])[rest]
        threshold = hard_threshold(at_end, share=settings.escalated_share, samples=len(answers.labels))
        plan = msgspec.structs.replace(plan, hard=Ask(MaxConfidence(threshold), settings.server))
        share_hard = expected_cost(supernet, plan, answers.evidence, costs).share_asked
    assert here.accuracy is not None
    return Calibration(
        plan=plan,
        samples=len(answers.labels),
        accuracy=here.accuracy,
        accuracy_without_exits=float(answers.right(-1).mean()),
        share_early=here.share_early,
        share_escalated=share_hard,
        mean_ms=mean_ms,
        without_exits_ms=without_ms,
    )
