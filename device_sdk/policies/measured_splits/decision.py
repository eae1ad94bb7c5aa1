"""Decision on a split: limits, fallbacks, and the fastest within them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.held_part import EVERYTHING
from device_sdk.errors import ProtocolError, UsageError
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.client import request_overhead_bytes
from device_sdk.offload.packing import BITS
from device_sdk.offload.quantisation import MAX_BITS
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import IMAGES, JPEG, RemoteModel
from device_sdk.offload.tail import TailClient, measure_uplink, server_profile
from device_sdk.policies.measured_splits.device_alone import DeviceAlone, confirmed
from device_sdk.policies.measured_splits.fastest import NO_LIMITS, SplitLimits, fastest
from device_sdk.policies.measured_splits.measuring import MOST_OF_A_BYTE, call_handling, codec_handling
from device_sdk.policies.splitting.head_renditions import Head, best_heads, block_choices, own_head, uniform_heads
from device_sdk.policies.splitting.path_splits import (
    NO_HANDLING,
    Handling,
    JpegCoding,
    SplitCost,
    corrected,
    ms_per_byte,
    not_measured,
    split_costs,
)
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.supernet.cost import MB, CostModel, Uplink
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Fallback, Plan, RemoteRef, Split, Subnet
from device_sdk.supernet.supernet import Supernet

FEW_BITS = tuple(range(MAX_BITS, 0, -1))  # widths that are tried where what they lose can be measured


@dataclass(frozen=True)
class Fallbacks:
    """The fallback of ``plan`` at each place where it may be split.

    ``device``: its costs of exits; ``wanted``: ``exit`` becomes ``abstain`` where no exit that it knows lies before.
    """

    supernet: Supernet
    plan: Plan
    device: CostModel
    wanted: Fallback = "subnet"

    def exit_at(self, position: int) -> ExitChoice | None:
        """The exit that answers in place of the server behind cut point ``position``.

        The last one of the plan up to there; where it has none, the last that the subnet passes, which then answers
        nothing else.
        """
        if self.wanted != "exit":
            return None
        own = self._exits_up_to(position)
        if own:
            return own[-1]
        passed = [one for one in self.supernet.exits_along(self.plan.subnet) if one.position <= position]
        choices = [ExitChoice(one.id, UNREACHABLE_CONFIDENCE, one.renditions[0].name) for one in passed]
        known = [one for one in choices if (one.exit, one.rendition, ()) in self.device.exit_costs]
        return known[-1] if known else None

    def size_bytes(self, position: int) -> int:
        """Memory of the exit that answers in place of the server."""
        choice = self.exit_at(position)
        return 0 if choice is None else self.device.exit_bytes(choice)

    def applied(self, split: Split) -> Plan:
        """The plan with ``split``: without exits behind it, with the fallback there."""
        exits = self._exits_up_to(split.position)
        choice = self.exit_at(split.position)
        kind: Fallback = "abstain" if self.wanted == "exit" and choice is None else self.wanted
        if choice is not None and not exits:
            exits = (choice,)
        return msgspec.structs.replace(self.plan, exits=exits, split=msgspec.structs.replace(split, fallback=kind))

    def _exits_up_to(self, position: int) -> tuple[ExitChoice, ...]:
        before = (one for one in self.plan.exits if self.supernet.exit(one.exit).position <= position)
        return tuple(one.without_asking() for one in before)


@dataclass(frozen=True)
class SplitDecision:
    """The chosen split of a plan, and all alternatives with their predicted costs.

    ``plan`` has no split where the device alone is fastest. ``server_profile``, ``device_profile``: sources of the two
    sides' costs. ``fallbacks``: for each split, in case the server does not answer.
    ``drops``: the accuracy lost by the splits that were measured; ``not_measured``: faster ones that may lose little
    enough, for which there was no time; ``reason``: why ``best`` was chosen.
    """

    plan: Plan
    best: SplitCost
    costs: tuple[SplitCost, ...]
    uplink: Uplink
    server_profile: str
    server: RemoteRef
    fallbacks: Fallbacks
    handling: Handling = NO_HANDLING
    drops: tuple[tuple[SplitCost, float], ...] = ()
    not_measured: tuple[SplitCost, ...] = ()
    reason: str = ""
    device_profile: str = "this device's"

    @property
    def is_head_only(self) -> bool:
        """True if the device lacks the blocks behind the last possible split."""
        return bool(self.costs[-1].tail)

    @property
    def on_device(self) -> SplitCost:
        """The cost of running everything here.

        Raises:
            UsageError: the device does not hold everything.
        """
        if self.is_head_only:
            raise UsageError("this device holds a head only: it cannot run everything")
        return self.costs[-1]

    def drop_of(self, cost: SplitCost) -> float | None:
        """The accuracy that ``cost`` loses; None if it was not measured."""
        return next((drop for measured, drop in self.drops if measured == cost), None)


def decide_split(
    workspace: Workspace,
    plan: Plan,
    profile: Callable[[], Profile],
    model: RemoteModel,
    *,
    uplink_mbps: float | None,
    progress: Progress,
    limits: SplitLimits = NO_LIMITS,
    jpeg: JpegCoding | None = None,
    fallback: Fallback | None = None,
    alone: DeviceAlone | None = None,
) -> SplitDecision:
    """Fetch the server's profile, measure the uplink unless it is given, time real calls, and choose.

    ``profile`` is called after the server has answered: measuring this device takes seconds, and the server may rule a
    split out. The overhead of requests is measured over the uplink as it is, with noise as the input; unless the
    uplink is given, their time per byte corrects its bandwidth. ``jpeg``: of private images, where the
    input may compete as JPEG. ``fallback``, ``alone``: as for ``choose``.

    Raises:
        UsageError, TransferError: see ``AdaptiveModel.split``.
    """
    if model.privacy == "never":
        raise UsageError("a split sends activations to the server", hint='allow it with privacy="activations"')
    bundle = workspace.bundle
    given = None if uplink_mbps is None else Uplink(uplink_mbps)  # refused before anything is sent
    theirs, measured = ask_server(bundle, model, progress)
    ours = profile().cost_model()
    least_per_byte = 0.0 if given is not None else -MOST_OF_A_BYTE * ms_per_byte(measured)
    handling = _timed_calls(workspace, plan, ours, theirs.cost_model(), measured, model, least_per_byte)
    if given is None:
        measured, handling = corrected(measured, handling)
    return choose(
        bundle,
        plan,
        ours,
        theirs.cost_model(),
        measured if given is None else Uplink(given.mbps, measured.round_trip_ms),
        model_name=model.model,
        source="the server's",
        sends_input=model.privacy == "inputs",
        handling=handling,
        limits=limits,
        jpeg=jpeg,
        fallback=fallback,
        alone=alone,
    )


def ask_server(bundle: Bundle, model: RemoteModel, progress: Progress) -> tuple[Profile, Uplink]:
    """The server's profile of ``bundle``, and the uplink to it as probes measure it.

    Raises:
        TransferError: it has no profile, or serves another version.
    """
    with contextlib.closing(default_transport(model)) as transport, progress.task("measure the server", 2) as task:
        theirs = server_profile(transport, model.server, bundle.manifest.name)
        if theirs.bundle != bundle.digest:
            raise ProtocolError("the server has another version of the bundle", hint="fetch the bundle again")
        task.advance()
        measured = measure_uplink(transport, model.server)
        task.advance()
    return theirs, measured


def _timed_calls(
    workspace: Workspace,
    plan: Plan,
    ours: CostModel,
    theirs: CostModel,
    uplink: Uplink,
    model: RemoteModel,
    least_per_byte: float,
) -> Handling:
    bundle = workspace.bundle
    costs = split_costs(
        bundle.supernet,
        plan.subnet,
        device=ours,
        server=theirs,
        uplink=uplink,
        overhead_bytes=request_overhead_bytes(model.model),
        sends_input=False,
    )
    shape = bundle.manifest.cut_points[-1].tensors[0].shape
    client = TailClient(model, bundle=bundle.digest, output_shape=shape, version=bundle.manifest.version)
    with contextlib.closing(client):
        return call_handling(
            client,
            bundle.supernet,
            bundle.digest,
            costs,
            codec_handling(),
            least_per_byte=least_per_byte,
            heads=workspace,
            subnet=plan.subnet,
        )


def choose(
    bundle: Bundle,
    plan: Plan,
    ours: CostModel,
    theirs: CostModel,
    uplink: Uplink,
    *,
    model_name: str,
    source: str,
    sends_input: bool = True,
    handling: Handling = NO_HANDLING,
    limits: SplitLimits = NO_LIMITS,
    device_factor: float = 1.0,
    jpeg: JpegCoding | None = None,
    fallback: Fallback | None = None,
    device_source: str = "this device's",
    alone: DeviceAlone | None = None,
) -> SplitDecision:
    """The plan with the least predicted end-to-end latency within ``limits``, from the costs of both sides.

    Args:
        sends_input: the input itself may be sent, then also as ``jpeg`` or pixels if a drop is allowed; else only
            tensors inside the network.
        device_factor: k for a device k times slower than ``ours``.
        fallback: in case the server does not answer; None: the subnet where the device holds it and its memory
            allows it, else an exit, or no answer where there is none before the split.
        device_source: whose costs ``ours`` are.
        alone: times whole paths in turns; None: predictions count.

    Raises:
        UsageError: nothing fits the memory, or keeps the drop; the message names the nearest.
    """
    costs = ways(
        bundle,
        plan.subnet,
        ours.slowed(device_factor),
        theirs,
        uplink,
        model_name=model_name,
        sends_input=sends_input,
        handling=handling.slowed(device_factor),
        limits=limits,
        jpeg=None if jpeg is None else jpeg.slowed(device_factor),
    )
    whole = None if costs[-1].tail else costs[-1]
    fallbacks = Fallbacks(bundle.supernet, plan, ours, _checked_fallback(bundle, fallback, whole, limits))
    costs = [
        replace(cost, device_bytes=cost.device_bytes + fallbacks.size_bytes(cost.position)) if cost.tail else cost
        for cost in costs
    ]
    found = fastest(costs, plan.subnet, limits)
    if alone is not None:
        costs, found = confirmed(costs, found, limits, alone)
    server = RemoteRef(model_name, bundle.digest)
    return SplitDecision(
        with_split(bundle, plan, found.best, server, fallbacks),
        found.best,
        tuple(costs),
        uplink,
        source,
        server,
        fallbacks,
        handling=handling,
        drops=found.drops,
        not_measured=found.not_measured,
        reason=found.reason(costs, limits),
        device_profile=device_source,
    )


def ways(
    bundle: Bundle,
    subnet: Subnet,
    device: CostModel,
    server: CostModel,
    uplink: Uplink,
    *,
    model_name: str,
    sends_input: bool,
    handling: Handling,
    limits: SplitLimits,
    jpeg: JpegCoding | None = None,
) -> list[SplitCost]:
    """All ways to divide ``subnet`` that ``limits`` let try, with their costs; the whole on the device last.

    Ways through bottlenecks beside the subnet are among them only where a drop is allowed and measured.
    """
    judge, supernet = limits.judge, bundle.supernet

    def along(path: Subnet) -> list[SplitCost]:
        return split_costs(
            supernet,
            path,
            device=device,
            server=server,
            uplink=uplink,
            overhead_bytes=request_overhead_bytes(model_name),
            sends_input=sends_input,
            widths=FEW_BITS if limits.may_lose else (BITS,),
            handling=handling,
            heads=_heads(bundle, path, device, limits),
            coding=not_measured if judge is None else judge.coding,
            jpeg=jpeg if limits.may_lose else None,
        )

    narrow: list[SplitCost] = []
    for position in supernet.bottlenecks if limits.may_lose else ():
        path = supernet.through(subnet, position)
        if path is not None:
            narrow += [cost for cost in along(path) if cost.position == position]
    return narrow + along(subnet)


def _checked_fallback(
    bundle: Bundle, wanted: Fallback | None, whole: SplitCost | None, limits: SplitLimits
) -> Fallback:
    """The checked fallback: ``wanted``, or by default the subnet if the device holds it and it fits, else an exit."""
    if wanted is None:
        return "subnet" if whole is not None and limits.fits(whole) else "exit"
    if wanted == "subnet":
        if whole is None:
            bundle.require_whole("a split that falls back to the subnet")
        elif not limits.fits(whole):
            raise UsageError(
                f"the subnet as fallback takes {whole.device_bytes / MB:.3g} MB, and {limits.named} are allowed",
                hint="fall back to an exit, or abstain",
            )
    return wanted


def _heads(bundle: Bundle, subnet: Subnet, device: CostModel, limits: SplitLimits) -> list[list[Head]]:
    """The device's part of each length: as the subnet has it, last in each list, and the best in other renditions.

    As far as the device has costs of the subnet's blocks: the others are not there. Shared blobs, whose sizes no
    manifest states, count where the bundle is whole.
    """
    here = Subnet(tuple(takewhile(lambda edge: edge in device.edge_costs, subnet.edges)))
    stated = EVERYTHING.blobs(bundle.offered)

    def size_bytes(name: str) -> int:
        return bundle.blob_size(name) if bundle.part.is_whole else stated[name] or 0

    renditions = {edge: bundle.supernet.rendition(edge) for edge in device.edge_costs if edge.block in here.block_ids}
    stored = {edge: sum(map(size_bytes, (one.blob, *one.shared))) for edge, one in renditions.items()}
    choices = block_choices(bundle.supernet, here, device, stored)
    own = [own_head(choices, device, count) for count in range(len(choices) + 1)]
    if not limits.may_lose:
        return [[head] for head in own]
    found = best_heads(choices, device, memory_bytes=limits.memory_bytes, stored_bytes=limits.stored_bytes)
    by_count = [list(heads) for heads in found.by_count]
    by_count[-1] += uniform_heads(choices, device)  # the plain ways to run everything here are never left out
    return [
        [*dict.fromkeys(one for one in others if one != head), head] for others, head in zip(by_count, own, strict=True)
    ]


def with_split(
    bundle: Bundle, plan: Plan, cost: SplitCost, server: RemoteRef, fallbacks: Fallbacks | None = None
) -> Plan:
    """``plan`` divided as ``cost`` says, its tail run by ``server``; exits behind the split are left out.

    The device's part runs in the renditions of ``cost``; behind it the plan's own rest stays. The exits that stay ask
    no server: with a split the path itself goes on at one. An image goes to the model of the bundle that takes JPEGs or
    pixels, at the same server. ``fallbacks``: in case the server does not answer; by default the rest of the subnet.
    """
    supernet = bundle.supernet
    path = supernet.through(plan.subnet, cost.position)
    assert path is not None, "a split lies on the subnet, or at a bottleneck beside it"
    subnet = Subnet(cost.head + path.edges[len(cost.head) :])
    if cost.position == supernet.output_index:
        return msgspec.structs.replace(plan, subnet=subnet, split=None)
    bits = cost.bits or (BITS,) * len(supernet.cut_points[cost.position].tensors)
    split = Split(cost.position, bits, cost.tail, server, per_channel=cost.per_channel, compress=cost.compress)
    if cost.sends != "activations":
        suffix = JPEG if cost.sends == "jpeg" else IMAGES
        split = Split(0, (), (), RemoteRef(bundle.manifest.name + suffix, server.digest))
    found = (fallbacks or Fallbacks(supernet, plan, CostModel({}))).applied(split)
    return msgspec.structs.replace(found, subnet=subnet)
