"""Deciding on a split with what both sides measured. Asks the server; ``splitting`` decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import ProtocolError, UsageError
from device_sdk.offload.client import request_overhead_bytes
from device_sdk.offload.packing import BITS
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.server_facts import measure_uplink, server_profile
from device_sdk.offload.tail import TailClient
from device_sdk.policies.split_fallback import Fallbacks
from device_sdk.policies.split_measuring import MOST_OF_A_BYTE, call_handling, codec_handling
from device_sdk.policies.splitting.handling import Handling, corrected, ms_per_byte
from device_sdk.policies.splitting.path_splits import NO_HANDLING, SplitCost, split_costs
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.supernet.cost import MB, CostModel, Uplink
from device_sdk.supernet.plan import Fallback, Plan, RemoteRef, Split

FEW_BITS = (BITS, 4, 2)  # widths that are tried where the accuracy that they cost can be measured


@dataclass(frozen=True)
class SplitLimits:
    """What a split may take: ``memory_mb`` of the device, and ``max_drop`` of accuracy (0–1), measured by ``drop_of``.

    Fewer than 8 bits are tried only where ``drop_of`` is given.

    Raises:
        UsageError: a limit that is not above zero, or not a number; a drop that nothing measures.
    """

    memory_mb: float | None = None
    max_drop: float | None = None
    drop_of: Callable[[SplitCost], float] | None = None

    def __post_init__(self) -> None:
        if self.memory_mb is not None and not self.memory_mb > 0:
            raise UsageError(f"the device's memory is {self.memory_mb:g} MB; it must be above zero")
        if self.max_drop is not None and not 0 <= self.max_drop <= 1:
            raise UsageError(f"the drop is {self.max_drop:g}; it is a share of the samples, from 0 to 1")
        if self.max_drop is not None and self.drop_of is None:
            raise UsageError("a drop of accuracy is measured on private images", hint="give images and labels")

    @property
    def widths(self) -> tuple[int, ...]:
        """Bits of values on the way that are tried."""
        return (BITS,) if self.drop_of is None else FEW_BITS

    def fits(self, cost: SplitCost) -> bool:
        """Whether the device's part fits its memory."""
        return self.memory_mb is None or cost.device_bytes <= self.memory_mb * MB


NO_LIMITS = SplitLimits()


@dataclass(frozen=True)
class SplitDecision:
    """Where a plan crosses to the server, and all other ways with their predicted costs.

    ``plan`` has no split where the device alone is fastest. ``server_profile``, ``device_profile``: whose profiles
    stood for the two sides. ``fallbacks``: what answers at each place when the server does not.
    ``drops``: the accuracy lost by the ways that were measured; ``reason``: why ``best`` was chosen.
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
    reason: str = ""
    device_profile: str = "this device's"

    @property
    def is_head_only(self) -> bool:
        """Whether the device does not hold what follows the last place to split at."""
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
    bundle: Bundle,
    plan: Plan,
    profile: Callable[[], Profile],
    model: RemoteModel,
    *,
    uplink_mbps: float | None,
    progress: Progress,
    limits: SplitLimits = NO_LIMITS,
    fallback: Fallback | None = None,
) -> SplitDecision:
    """Ask the server for its profile, measure the uplink unless it is given, time real calls, and choose.

    ``profile`` is called after the server has answered: measuring this device takes seconds, and the server may rule a
    split out. What calls take beside their parts is measured over the uplink as it is, with noise instead of
    activations; unless the uplink is given, what they take per byte corrects its bandwidth. ``fallback``: as for
    ``choose``.

    Raises:
        UsageError, TransferError: see ``AdaptiveModel.split``.
    """
    if model.privacy == "never":
        raise UsageError("a split sends activations to the server", hint='allow it with privacy="activations"')
    given = None if uplink_mbps is None else Uplink(uplink_mbps)  # refused before anything is sent
    theirs, measured = ask_server(bundle, model, progress)
    ours = profile().cost_model()
    least_per_byte = 0.0 if given is not None else -MOST_OF_A_BYTE * ms_per_byte(measured)
    handling = _timed_calls(bundle, plan, ours, theirs.cost_model(), measured, model, least_per_byte)
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
        fallback=fallback,
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
    bundle: Bundle,
    plan: Plan,
    ours: CostModel,
    theirs: CostModel,
    uplink: Uplink,
    model: RemoteModel,
    least_per_byte: float,
) -> Handling:
    costs = split_costs(
        bundle.supernet,
        plan.subnet,
        device=ours,
        server=theirs,
        uplink=uplink,
        overhead_bytes=request_overhead_bytes(model.model),
        sends_input=False,
    )
    client = TailClient(model, bundle=bundle.digest, output_shape=bundle.manifest.cut_points[-1].tensors[0].shape)
    with contextlib.closing(client):
        codec = codec_handling()
        return call_handling(client, bundle.supernet, bundle.digest, costs, codec, least_per_byte=least_per_byte)


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
    fallback: Fallback | None = None,
    device_source: str = "this device's",
) -> SplitDecision:
    """The plan with the least predicted end-to-end latency within ``limits``, from the costs of both sides.

    Args:
        sends_input: whether the input itself may travel; else only what is live inside the network.
        device_factor: k for a device k times slower than ``ours``.
        fallback: what answers when the server does not; None: the subnet where the device holds it and its memory
            allows it, else an exit, or nothing where there is none before the split.
        device_source: whose costs ``ours`` are.

    Raises:
        UsageError: nothing fits the memory, or keeps the drop; the message names the nearest.
    """
    costs = split_costs(
        bundle.supernet,
        plan.subnet,
        device=ours.slowed(device_factor),
        server=theirs,
        uplink=uplink,
        overhead_bytes=request_overhead_bytes(model_name),
        sends_input=sends_input,
        widths=limits.widths,
        handling=handling,
    )
    whole = None if costs[-1].tail else costs[-1]
    fallbacks = Fallbacks(bundle.supernet, plan, ours, _checked_fallback(bundle, fallback, whole, limits))
    costs = [
        replace(cost, device_bytes=cost.device_bytes + fallbacks.size_bytes(cost.position)) if cost.tail else cost
        for cost in costs
    ]
    best, drops = _fastest(costs, limits)
    server = RemoteRef(model_name, bundle.digest)
    return SplitDecision(
        with_split(bundle, plan, best, server, fallbacks),
        best,
        tuple(costs),
        uplink,
        source,
        server,
        fallbacks,
        handling=handling,
        drops=tuple(drops),
        reason=_reason(best, costs, limits),
        device_profile=device_source,
    )


def _checked_fallback(
    bundle: Bundle, wanted: Fallback | None, whole: SplitCost | None, limits: SplitLimits
) -> Fallback:
    """What answers when the server does not; the subnet only where the device holds it and it fits the memory."""
    if wanted is None:
        return "subnet" if whole is not None and limits.fits(whole) else "exit"
    if wanted == "subnet":
        if whole is None:
            bundle.require_whole("a split that falls back to the subnet")
        elif not limits.fits(whole):
            raise UsageError(
                f"the subnet as fallback takes {whole.device_bytes / MB:.3g} MB, and {limits.memory_mb:g} are allowed",
                hint="fall back to an exit, or abstain",
            )
    return wanted


def _fastest(costs: Sequence[SplitCost], limits: SplitLimits) -> tuple[SplitCost, list[tuple[SplitCost, float]]]:
    """The fastest within the limits; accuracy is measured from the fastest on, until a way passes."""
    fitting = sorted((cost for cost in costs if limits.fits(cost)), key=lambda cost: (cost.latency_ms, cost.bytes_sent))
    if not fitting:
        least = min(costs, key=lambda cost: cost.device_bytes)
        raise UsageError(
            f"no part of the model fits {limits.memory_mb:g} MB, and its input may not be sent",
            hint=f"up to cut point {least.position} it takes {least.device_bytes / MB:.3g} MB; allow inputs to be sent",
        )
    drops: list[tuple[SplitCost, float]] = []
    if limits.drop_of is None:
        return fitting[0], drops
    for cost in fitting:
        drops.append((cost, limits.drop_of(cost)))
        if limits.max_drop is None or drops[-1][1] <= limits.max_drop:
            return cost, drops
    nearest, drop = min(drops, key=lambda pair: pair[1])
    raise UsageError(
        f"no split loses at most {limits.max_drop:g} of accuracy",
        hint=f"the nearest crosses at cut point {nearest.position} in {nearest.bits[0]} bits and loses {drop:.3g}",
    )


def _reason(best: SplitCost, costs: Sequence[SplitCost], limits: SplitLimits) -> str:
    """Why ``best`` was chosen: what was faster, and which limit it broke."""
    faster = [cost for cost in costs if cost.latency_ms < best.latency_ms]
    large = sum(not limits.fits(cost) for cost in faster)
    if not faster:
        return "nothing is faster"
    ways = [f"{large} need more memory"] if large else []
    ways += [f"{len(faster) - large} lose too much accuracy"] if len(faster) > large else []
    return f"of {len(faster)} faster ways " + " and ".join(ways)


def with_split(
    bundle: Bundle, plan: Plan, cost: SplitCost, server: RemoteRef, fallbacks: Fallbacks | None = None
) -> Plan:
    """``plan`` divided as ``cost`` says, its tail run by ``server``; exits behind the split are left out.

    ``fallbacks``: what answers when the server does not; by default the rest of the subnet.
    """
    supernet = bundle.supernet
    if cost.position == supernet.output_index:
        return msgspec.structs.replace(plan, split=None)
    bits = cost.bits or (BITS,) * len(supernet.cut_points[cost.position].tensors)
    split = Split(cost.position, bits, cost.tail, server)
    return (fallbacks or Fallbacks(supernet, plan, CostModel({}))).applied(split)
