"""Calibrating a plan: which exits answer early and when, and which samples count as hard.

This module measures; ``placement`` and ``thresholds`` decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError
from device_sdk.execution.deciders import confidence
from device_sdk.execution.paging_plan import all_stay
from device_sdk.execution.plan_segments import PlanSegment, segments
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.expected_cost import Evidence, expected_cost
from device_sdk.policies.placement import ExitCandidate, place
from device_sdk.policies.thresholds import ExitSamples, Rights, choose_exits, hard_threshold
from device_sdk.profiling.plans import mean_latencies_ms
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.supernet.blocks import Exit
from device_sdk.supernet.cost import MB, CostModel
from device_sdk.supernet.plan import (
    ANY_SERVER,
    UNREACHABLE_CONFIDENCE,
    Ask,
    ExitChoice,
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
    """How to calibrate.

    ``accuracy_drop``: the maximum accuracy loss by exits, 0 to 1; with few samples less is lost. ``exit_memory_mb``:
    memory for exits, None for no limit. ``escalated_share``: of all samples, to be sent to the server; ``server``: the
    model there, any by default. ``confirm``: measure that exits save time; otherwise the prediction is trusted.

    Raises:
        UsageError: a share that is none, or memory below zero.
    """

    accuracy_drop: float = 0.005
    exit_memory_mb: float | None = None
    escalated_share: float = 0.0
    server: RemoteRef = ANY_SERVER
    use_exits: bool = True
    confirm: bool = True
    batch: int = 64

    def __post_init__(self) -> None:
        for name in ("accuracy_drop", "escalated_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name} is {getattr(self, name):g}; it must lie between 0 and 1")
        if self.exit_memory_mb is not None and not self.exit_memory_mb >= 0:
            raise UsageError(f"exit_memory_mb is {self.exit_memory_mb:g}; it cannot be negative")


@dataclass(frozen=True)
class Calibration:
    """What was calibrated, on ``samples`` calibration samples.

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
    inputs: Array,
    labels: npt.NDArray[np.int64] | None,
    *,
    settings: CalibrationSettings,
    progress: Progress,
) -> Calibration:
    """Find exits, their thresholds and the threshold of hard samples for ``subnet``.

    ``inputs`` [count, *input] were neither trained nor searched on; without ``labels`` [count] the subnet's own answers
    stand in.

    1. answer all samples at every exit and at the end; 2. keep the exits that fit the memory; 3. choose thresholds;
    4. confirm by measuring that exits save time, else drop them; 5. set the threshold of hard samples among those that
    reach the end.

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
        seen = _answer_everywhere(workspace, subnet, inputs, labels, settings)
        kept = _placed(seen, costs, settings)
        choices = choose_exits(
            [seen.at_exit(number, costs) for number in kept],
            right_at_end=seen.right(-1),
            full_ms=costs.latency_ms(subnet),
            accuracy_drop=settings.accuracy_drop,
        )
        plan = Plan(subnet, exits=tuple(choices))
        mean_ms, without_ms = _measure(workspace, plan, inputs) if choices and settings.confirm else (None, None)
        if mean_ms is not None and without_ms is not None and mean_ms >= without_ms:
            plan, mean_ms, without_ms = Plan(subnet), None, None
        task.advance()
    return _judged(workspace.supernet, costs, seen, plan, settings, mean_ms=mean_ms, without_ms=without_ms)


@dataclass(frozen=True)
class _Seen:
    """What the exits along a subnet and its end answer to the calibration samples.

    ``logits``: of each exit, then of the end, [count, classes]; ``edges``: how many of the subnet's an exit needs.
    """

    subnet: Subnet
    exits: tuple[Exit, ...]
    edges: tuple[int, ...]
    logits: tuple[Array, ...]
    labels: npt.NDArray[np.int64]

    @property
    def evidence(self) -> Evidence:
        """The same as ``expected_cost`` takes it."""
        exits = {
            (self.subnet.edges[:count], exit_.id, exit_.renditions[0].name): logits
            for exit_, count, logits in zip(self.exits, self.edges, self.logits, strict=False)
        }
        return Evidence(self.labels, ends={self.subnet: self.logits[-1]}, exits=exits)

    def reach_end(self, plan: Plan) -> Rights:
        """Which samples no exit of ``plan`` answers."""
        numbers = {exit_.id: number for number, exit_ in enumerate(self.exits)}
        early = [confidence(self.logits[numbers[one.exit]]) >= one.threshold for one in plan.exits]
        return ~np.any(early, axis=0) if early else np.ones(len(self.labels), dtype=bool)

    def right(self, number: int) -> Rights:
        return np.asarray(self.logits[number].argmax(axis=1) == self.labels)

    def at_exit(self, number: int, costs: CostModel) -> ExitSamples:
        choice = _choice(self.exits[number])
        return ExitSamples(
            choice=choice,
            confidence=confidence(self.logits[number]),
            right=self.right(number),
            reach_ms=costs.latency_along_ms(self.subnet.edges[: self.edges[number]]),
            branch_ms=costs.exit_latency_ms(choice, self.subnet.input_size),
        )


def _choice(exit_: Exit) -> ExitChoice:
    return ExitChoice(exit_.id, threshold=UNREACHABLE_CONFIDENCE, rendition=exit_.renditions[0].name)


def _answer_everywhere(
    workspace: Workspace,
    subnet: Subnet,
    inputs: Array,
    labels: npt.NDArray[np.int64] | None,
    settings: CalibrationSettings,
) -> _Seen:
    """Run the subnet once over all samples, batch by batch, and every branch on the features at its cut point."""
    exits = workspace.supernet.exits_along(subnet) if settings.use_exits else ()
    ends = [block.end for _, block in workspace.supernet.walk(subnet)]
    needed = [ends.index(exit_.position) + 1 for exit_ in exits]
    parts: list[PlanSegment] = []
    for exit_, start, until in zip(exits, [0, *needed], needed, strict=False):
        parts += [PlanSegment(subnet.edges[start:until], None), PlanSegment((), _choice(exit_))]
    parts.append(PlanSegment(subnet.edges[needed[-1] if needed else 0 :], None))
    parts = [
        part for part in parts if part.runs
    ]  # of several exits at one cut point only the first has edges before it
    batch = workspace.largest_batch(parts, wanted=settings.batch)
    loaded = workspace.load_segments(parts, batch=batch)
    try:
        runs = [(part, stretch) for part, stretch in zip(parts, loaded.stretches, strict=True) if stretch is not None]
        answers = [_answers(runs, inputs[at : at + batch]) for at in range(0, len(inputs), batch)]
    finally:
        loaded.close()
    logits = [np.concatenate(one) for one in zip(*answers, strict=True)]
    stand_in = logits[-1].argmax(axis=1) if labels is None else labels
    return _Seen(subnet, tuple(exits), tuple(needed), tuple(logits), stand_in)


def _answers(runs: Sequence[tuple[PlanSegment, LoadedStretch]], batch: Array) -> list[Array]:
    """What each branch and then the end answers to ``batch`` [batch, *input]."""
    features, answers = [batch], []
    for part, stretch in runs:
        if part.edges:
            features = stretch.run(features)
        else:
            answers.append(stretch.run(features)[-1])
    return [*answers, features[-1]]


def _placed(seen: _Seen, costs: CostModel, settings: CalibrationSettings) -> list[int]:
    """Which exits are kept in memory, by their number: accuracies and times are this device's own."""
    full_ms = costs.latency_ms(seen.subnet)
    candidates = []
    for number, exit_ in enumerate(seen.exits):
        found = seen.at_exit(number, costs)
        size = costs.exit_bytes(found.choice)
        candidates.append(
            ExitCandidate(exit_.id, exit_.position, float(found.right.mean()), found.reach_ms, found.branch_ms, size)
        )
    limit = None if settings.exit_memory_mb is None else int(settings.exit_memory_mb * MB)
    kept = place(candidates, full_time=full_ms, memory_bytes=limit).exits
    return [number for number, exit_ in enumerate(seen.exits) if exit_.id in kept]


def _measure(workspace: Workspace, plan: Plan, inputs: Array) -> list[float]:
    """Mean latency at batch 1 with the plan's exits and without, sample by sample, in turns if both fit at once."""
    plans = [plan, Plan(plan.subnet)]
    prints = [
        workspace.footprint(part.edges, part.exit) for each in plans for part in segments(workspace.supernet, each)
    ]
    if workspace.memory_cap_bytes is None or all_stay(prints, workspace.memory_cap_bytes):
        return _timed(workspace, plans, inputs[:_MEASURED_SAMPLES])
    few = inputs[:_MEASURED_IN_PAGES]
    return [_timed(workspace, [each], few)[0] for each in plans]


def _timed(workspace: Workspace, plans: Sequence[Plan], inputs: Array) -> list[float]:
    loaded = [workspace.load_plan(plan) for plan in plans]
    try:
        return mean_latencies_ms(loaded, inputs)
    finally:
        for plan in loaded:
            plan.close()


def _judged(
    supernet: Supernet,
    costs: CostModel,
    seen: _Seen,
    plan: Plan,
    settings: CalibrationSettings,
    *,
    mean_ms: float | None,
    without_ms: float | None,
) -> Calibration:
    """The finished plan, and what it does to the calibration samples."""
    here = expected_cost(supernet, plan, seen.evidence, costs)
    share_hard = 0.0
    if settings.escalated_share > 0:
        rest = seen.reach_end(plan)
        at_end = confidence(seen.logits[-1])[rest]
        threshold = hard_threshold(at_end, share=settings.escalated_share, samples=len(seen.labels))
        plan = msgspec.structs.replace(plan, hard=Ask(MaxConfidence(threshold), settings.server))
        share_hard = expected_cost(supernet, plan, seen.evidence, costs).share_asked
    assert here.accuracy is not None
    return Calibration(
        plan=plan,
        samples=len(seen.labels),
        accuracy=here.accuracy,
        accuracy_without_exits=float(seen.right(-1).mean()),
        share_early=here.share_early,
        share_escalated=share_hard,
        mean_ms=mean_ms,
        without_exits_ms=without_ms,
    )
