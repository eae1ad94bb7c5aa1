"""Choosing where the subnet in use crosses to a server, by measurements of both sides or an estimate of the other."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from device_sdk.data.inputs import Inputs
from device_sdk.data.jpeg import QUALITY
from device_sdk.errors import BudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.named_path import takes_jpegs
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.tail import TAIL
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.policies.measured_splits.decision import SplitDecision, choose, decide_split
from device_sdk.policies.measured_splits.jpeg_inputs import JpegInputs
from device_sdk.policies.measured_splits.limits import SplitLimits
from device_sdk.policies.measured_splits.measuring import SplitScore, codec_handling
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.split_front import split_front
from device_sdk.policies.scores import score_of
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import PlanCost, Uplink
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan

_LIMITED = ("accuracy", "certainty", "share_asked", "energy_mj", "bytes_sent", "latency_ratio", "p95_latency_ms")


def choose_split(
    workspace: Workspace,
    plan: Plan,
    model: RemoteModel | None,
    checker: SampleChecker,
    samples: Any,
    labels: Any,
    goal: Goal,
    profile: Callable[[], Profile],
    *,
    settings: AdaptationSettings,
    uplink: Uplink | None,
    progress: Progress,
) -> Found:
    """The fastest split of the subnet of ``plan`` within the goal's memory, storage and drop of the score.

    ``model``: runs tails; None: the split is estimated for a server as fast as this device, over ``uplink``.
    ``samples`` with ``labels`` measure the drop; None where none is allowed.

    Raises:
        BudgetError: the goal limits what a split alone does not know.
        UsageError, TransferError: as ``AdaptiveModel.adapt``.
    """
    unknown = [name for name in _LIMITED if getattr(goal, name) is not None]
    if unknown:
        raise BudgetError(f"a split alone keeps no {unknown[0]}", hint='add "ask" or "subnets" to consider')
    SplitLimits(goal.memory_mb, None, storage_mb=goal.storage_mb)  # refused before anything runs
    sends_input = model is None or model.privacy == "inputs"
    quality = QUALITY if model is None else model.jpeg_quality
    jpegs = _jpegs(workspace, checker, samples, quality) if samples is not None and sends_input else None
    limits = _limits(workspace, plan, checker, samples, labels, goal, jpegs)
    jpeg, bundle = None if jpegs is None else jpegs.coding(), workspace.bundle
    if model is not None:
        decision = decide_split(
            workspace,
            plan,
            profile,
            model,
            uplink_mbps=None if uplink is None else uplink.mbps,
            progress=progress,
            limits=limits,
            jpeg=jpeg,
            fallback=settings.fallback,
        )
    else:
        assert uplink is not None
        costs = profile().cost_model()
        decision = choose(
            bundle,
            plan,
            costs,
            costs,
            uplink,
            model_name=bundle.manifest.name + TAIL,
            source="this device's own: no server was named",
            handling=codec_handling(),
            limits=limits,
            device_factor=settings.device_factor,
            jpeg=jpeg,
            fallback=settings.fallback,
        )
    return _found(decision, goal, partial(split_front, bundle, decision, limits))


def _found(decision: SplitDecision, goal: Goal, front: Callable[[], Any]) -> Found:
    best = decision.best
    cost = PlanCost(
        accuracy=None,
        latency_ms=best.latency_ms,
        p95_latency_ms=best.latency_ms,
        bytes_sent=float(best.bytes_sent),
        peak_bytes=best.device_bytes,
    )
    return Found(
        choice=Choice(decision.plan, cost, {}, len(decision.costs)),
        goal=goal,
        notes=(decision.reason,) if decision.reason else (),
        front=front,
        split=decision,
    )


def _jpegs(workspace: Workspace, checker: SampleChecker, samples: Any, quality: int) -> JpegInputs | None:
    """The private samples as JPEGs, where a server may offer to take them."""
    manifest = workspace.bundle.manifest
    if not takes_jpegs(manifest):
        return None
    channels, height, width = manifest.cut_points[0].tensors[0].shape
    shape = (channels, height, width)
    return JpegInputs(checker.pixels(samples), manifest.preprocessing, input_shape=shape, quality=quality)


def _limits(
    workspace: Workspace,
    plan: Plan,
    checker: SampleChecker,
    samples: Any,
    labels: Any,
    goal: Goal,
    jpegs: JpegInputs | None,
) -> SplitLimits:
    """The limits of a split; the score is measured on private samples where there are any."""
    if samples is None:
        return SplitLimits(goal.memory_mb, goal.max_drop, storage_mb=goal.storage_mb)
    workspace.bundle.require_whole("measuring the accuracy of a split")
    inputs: Inputs = checker.inputs(samples)
    score = score_of(workspace.bundle.manifest.task)
    targets = None if labels is None else score.checked(labels, len(inputs))
    judge = SplitScore(workspace, plan.subnet, inputs, targets, score, jpegs=jpegs)
    return SplitLimits(goal.memory_mb, goal.max_drop, judge, goal.storage_mb)
