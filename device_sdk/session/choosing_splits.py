"""Choosing a split alone, or a hybrid: what needs measurements of both sides of its own."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.image_files import QUALITY
from device_sdk.data.inputs import Inputs
from device_sdk.errors import BudgetError, TransferError, UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel, takes_jpegs
from device_sdk.offload.tail import TAIL, measure_uplink, server_profile
from device_sdk.policies.deciding.promises import SHARES_CERTAINTY, samples_for, usual_certainty
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.policies.hybrid.choice import (
    GlobalNetwork,
    HybridChoice,
    HybridCosts,
    Resource,
    asked_cost,
    choose_hybrid,
    energy_costs,
    latency_costs,
    macs_costs,
)
from device_sdk.policies.hybrid.joint_search import HybridMember
from device_sdk.policies.measured_splits.decision import SplitDecision, choose, decide_split
from device_sdk.policies.measured_splits.device_alone import DeviceAlone, Ratios
from device_sdk.policies.measured_splits.fastest import SplitLimits
from device_sdk.policies.measured_splits.measuring import JpegInputs, SplitScore, codec_handling
from device_sdk.policies.measured_splits.region import Region
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.front import split_front
from device_sdk.policies.planning.server_evidence import RawSamples, Servers
from device_sdk.profiling.profile import Profile, measure_subnets
from device_sdk.profiling.stretches import Timing
from device_sdk.profiling.timing import Patience
from device_sdk.progress import Progress
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import CostModel, PlanCost, Power, Uplink
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Ask, Plan, Subnet
from device_sdk.tasks import answer_task

_TURNS = Patience(rounds=60, precision=0.006, limit_s=1.0, least=10)  # of whole paths, each
_LIMITED = ("accuracy", "share_asked", "energy_mj", "bytes_sent", "latency_ratio", "p95_latency_ms")


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
    privacy = settings.privacy if model is None else model.privacy
    if privacy == "never":
        raise UsageError("a split sends activations to the server", hint='allow it with privacy="activations"')
    sends_input = privacy == "inputs"
    quality = QUALITY if model is None else model.jpeg_quality
    jpegs = _jpegs(workspace, checker, samples, quality) if samples is not None and sends_input else None
    limits = _limits(workspace, plan, checker, samples, labels, goal, jpegs)
    count = 0 if samples is None else len(checker.inputs(samples))
    jpeg, bundle, region = None if jpegs is None else jpegs.coding(), workspace.bundle, None
    alone = _alone(workspace, plan.subnet, profile) if limits.may_lose else None
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
            alone=alone,
        )
    else:
        assert uplink is not None
        costs, name, handling = profile().cost_model(), bundle.manifest.name + TAIL, codec_handling()
        region = Region(
            bundle, plan.subnet, costs, name, handling, limits.judge, jpeg, sends_input, uplink.round_trip_ms
        )
        decision = choose(
            bundle,
            plan,
            costs,
            costs,
            uplink,
            model_name=name,
            source="this device's own: no server was named",
            sends_input=sends_input,
            handling=handling,
            limits=limits,
            device_factor=settings.device_factor,
            jpeg=jpeg,
            fallback=settings.fallback,
            alone=alone,
        )
    return replace(_found(decision, goal, count, partial(split_front, bundle, decision, limits)), region=region)


def _alone(workspace: Workspace, plain: Subnet, profile: Callable[[], Profile]) -> DeviceAlone:
    """Times whole paths here, and knows the error of the profile."""
    return DeviceAlone(plain, ratios_in_turns(workspace), profile().latency_error)


def ratios_in_turns(workspace: Workspace) -> Ratios:
    """Measures latencies of subnets relative to the first one; infinite where it does not fit beside it."""
    timing = Timing(rounds=_TURNS.rounds, patience=_TURNS)

    def measure(subnets: Sequence[Subnet]) -> list[float]:
        found = [one.ratio for one in measure_subnets(workspace, subnets, timing)]
        return [1.0, *(math.inf if one is None else one.value for one in found[1:])]

    return measure


def _unsure(goal: Goal, count: int) -> str:
    """A note where samples are too few for a certainty of the drop; else nothing."""
    if not count or goal.certainty is not None or goal.max_drop is None or count >= samples_for(goal.max_drop):
        return ""
    enough = samples_for(goal.max_drop)
    more = f"; {enough} would be enough to be sure" if math.isfinite(enough) else ""
    return f"the drop was measured on {count} samples and may be larger on new ones{more}"


def _found(decision: SplitDecision, goal: Goal, count: int, front: Callable[[], Any]) -> Found:
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
        notes=tuple(note for note in (decision.reason, _unsure(goal, count)) if note),
        front=front,
        split=decision,
    )


def _jpegs(workspace: Workspace, checker: SampleChecker, samples: Any, quality: int) -> JpegInputs | None:
    """The private samples as JPEGs, where a server may offer to take them."""
    manifest = workspace.bundle.manifest
    pixels = checker.pixels(samples)
    if not takes_jpegs(manifest) or pixels is None:
        return None
    channels, height, width = manifest.cut_points[0].tensors[0].shape
    shape = (channels, height, width)
    return JpegInputs(pixels, manifest.preprocessing.of_images(), input_shape=shape, quality=quality)


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
    score = answer_task(workspace.bundle.manifest.task)
    targets = None if labels is None else score.checked(labels, len(inputs))
    certainty = goal.certainty
    if certainty is None and goal.max_drop is not None:
        certainty = usual_certainty(len(inputs), goal.max_drop)
    judge = SplitScore(workspace, plan.subnet, inputs, targets, score, jpegs=jpegs, certainty=certainty)
    return SplitLimits(goal.memory_mb, goal.max_drop, judge, goal.storage_mb)


_RESOURCES: tuple[Resource, ...] = ("macs", "latency_ms", "energy_mj")


def home(bundle: Bundle, remote: RemoteAnswers) -> RemoteModel | None:
    """The connection to a server that has ``bundle`` and may be sent inputs, under the bundle's name."""
    name, tails = bundle.manifest.name, remote.tail_model
    connected = (tails, *(one for one in remote.asked_models if one.model == name))
    return next((replace(one, model=name) for one in connected if one and one.privacy == "inputs"), None)


def choose_pair(
    workspace: Workspace,
    remote: RemoteAnswers,
    device: CostModel,
    subnets: Sequence[Subnet],
    inputs: Inputs,
    raw: RawSamples | None,
    targets: npt.NDArray[np.int64] | None,
    goal: Goal,
    *,
    settings: AdaptationSettings,
    uplink: Uplink | None,
    power: Power | None,
    progress: Progress,
) -> tuple[Found, RemoteModel]:
    """The best pair whose cost keeps the goal's ``macs``, ``latency_ms`` or ``energy_mj``, and the server's model.

    Connected models that answer samples may be the global network too; their MACs are unknown.

    Raises:
        BudgetError: not one of the three is limited. InfeasibleBudgetError: no pair keeps the limit.
        TransferError: a server does not answer that has to. UsageError: there are no labels, or the power is unknown.
    """
    bundle = workspace.bundle
    limits = [(name, limit) for name in _RESOURCES if (limit := getattr(goal, name)) is not None]
    if len(limits) != 1:
        raise BudgetError("a hybrid keeps one limit", hint="set one of " + ", ".join(_RESOURCES))
    if targets is None:
        raise UsageError("a hybrid is chosen on labelled samples", hint="give labels")
    [(resource, limit)], server = limits, home(bundle, remote)
    assert server is not None
    others = [one for one in remote.asked_models if one.model != bundle.manifest.name]
    found = [remote.gather_from(one, inputs, raw, uplink=uplink, progress=progress) for one in others]
    choice = choose_hybrid(
        workspace,
        (bundle.manifest.name, bundle.digest),
        device,
        subnets,
        inputs,
        targets,
        limit,
        _costs(workspace, device, server, resource, uplink, power),
        replace(settings.joint, certainty=goal.certainty or settings.joint.certainty or SHARES_CERTAINTY),
        others=[_asked_model(one, resource, power) for one in found],
        progress=progress,
    )
    assert isinstance(choice.plan.hard, Ask)
    name = choice.plan.hard.server.model
    there = next((one for one in others if one.model == name), replace(server, model=name))
    return _found_pair(choice, goal, resource, len(targets), workspace.bundle, device), there


def _costs(
    workspace: Workspace,
    device: CostModel,
    server: RemoteModel,
    resource: Resource,
    uplink: Uplink | None,
    power: Power | None,
) -> HybridCosts:
    """Costs of ``resource``; the server is asked for its speed, and the uplink measured, only where they count."""
    if resource == "macs":
        return macs_costs(workspace.supernet)
    manifest = workspace.bundle.manifest
    with contextlib.closing(default_transport(server)) as transport:
        there = server_profile(transport, server.server, manifest.name).cost_model()
        uplink = uplink or measure_uplink(transport, server.server)
    size = manifest.cut_points[0].nbytes
    if resource == "latency_ms":
        return latency_costs(device, there, uplink, input_bytes=size)
    return energy_costs(device, there, uplink, power, input_bytes=size)


def _asked_model(servers: Servers, resource: Resource, power: Power | None) -> HybridMember[GlobalNetwork]:
    if not servers.answered or servers.network is None:
        raise TransferError(servers.notes[0] if servers.notes else "a server's model may not be sent inputs")
    one = servers.answered[0]
    return HybridMember(one.server, one.logits, asked_cost(resource, servers.network, one.server, power))


def _found_pair(
    choice: HybridChoice, goal: Goal, resource: Resource, count: int, bundle: Bundle, device: CostModel
) -> Found:
    cost = PlanCost(
        accuracy=choice.pair.accuracy,
        latency_ms=choice.pair.cost if resource == "latency_ms" else None,
        p95_latency_ms=None,
        energy_mj=choice.pair.cost if resource == "energy_mj" else None,
        bytes_sent=choice.pair.sent * bundle.manifest.cut_points[0].nbytes,
        peak_bytes=device.peak_bytes(choice.base),
        share_asked=choice.pair.sent,
    )
    held_out = PlanCost(
        accuracy=choice.held_out, latency_ms=None, p95_latency_ms=None, bytes_sent=0.0, peak_bytes=cost.peak_bytes
    )
    judged = -(-count // 3)
    return Found(
        choice=Choice(choice.plan, cost, {}, choice.answered),
        goal=goal,
        held_out=held_out,
        samples=count,
        judged=judged,
        hybrid=choice,
    )
