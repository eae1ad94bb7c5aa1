"""Deciding on a split with what both sides measured. Asks the server; ``splitting`` decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import ProtocolError, UsageError
from device_sdk.offload.client import request_overhead_bytes
from device_sdk.offload.packing import BITS
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.server_facts import measure_uplink, server_profile
from device_sdk.policies.splitting import SplitCost, best_split, split_costs
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.plan import Plan, RemoteRef, Split


@dataclass(frozen=True)
class SplitDecision:
    """Where a plan crosses to the server, and all other ways with their predicted costs.

    ``plan`` has no split where the device alone is fastest. ``server_profile``: whose profile stood for the server.
    """

    plan: Plan
    best: SplitCost
    costs: tuple[SplitCost, ...]
    uplink: Uplink
    server_profile: str
    server: RemoteRef

    @property
    def on_device(self) -> SplitCost:
        """The cost of running everything here."""
        return self.costs[-1]


def decide_split(
    bundle: Bundle,
    plan: Plan,
    profile: Callable[[], Profile],
    model: RemoteModel,
    *,
    uplink_mbps: float | None,
    progress: Progress,
) -> SplitDecision:
    """Ask the server for its profile, measure the uplink unless it is given, and choose.

    ``profile`` is called last: measuring this device takes seconds, and the server may rule a split out.

    Raises:
        UsageError, TransferError: see ``AdaptiveModel.split``.
    """
    if model.privacy == "never":
        raise UsageError("a split sends activations to the server", hint='allow it with privacy="activations"')
    given = None if uplink_mbps is None else Uplink(uplink_mbps)  # refused before anything is sent
    with contextlib.closing(default_transport(model)) as transport, progress.task("measure the server", 2) as task:
        theirs = server_profile(transport, model.server, bundle.manifest.name)
        if theirs.bundle != bundle.digest:
            raise ProtocolError("the server has another version of the bundle", hint="fetch the bundle again")
        task.advance()
        measured = measure_uplink(transport, model.server)
        task.advance()
    uplink = measured if given is None else Uplink(given.mbps, measured.round_trip_ms)
    return choose(
        bundle,
        plan,
        profile(),
        theirs,
        uplink,
        model_name=model.model,
        source="the server's",
        sends_input=model.privacy == "inputs",
    )


def choose(
    bundle: Bundle,
    plan: Plan,
    ours: Profile,
    theirs: Profile,
    uplink: Uplink,
    *,
    model_name: str,
    source: str,
    sends_input: bool = True,
) -> SplitDecision:
    """The plan with the least predicted end-to-end latency, from the profiles of both sides.

    ``sends_input``: whether the input itself may travel; else only what is live inside the network.
    """
    costs = split_costs(
        bundle.supernet,
        plan.subnet,
        device=ours.cost_model(),
        server=theirs.cost_model(),
        uplink=uplink,
        overhead_bytes=request_overhead_bytes(model_name),
        sends_input=sends_input,
    )
    best, server = best_split(costs), RemoteRef(model_name, bundle.digest)
    return SplitDecision(with_split(bundle, plan, best, server), best, tuple(costs), uplink, source, server)


def with_split(bundle: Bundle, plan: Plan, cost: SplitCost, server: RemoteRef) -> Plan:
    """``plan`` divided as ``cost`` says, its tail run by ``server``; exits behind the split are left out."""
    supernet = bundle.supernet
    if cost.position == supernet.output_index:
        return msgspec.structs.replace(plan, split=None)
    exits = tuple(choice for choice in plan.exits if supernet.exit(choice.exit).position <= cost.position)
    bits = (BITS,) * len(supernet.cut_points[cost.position].tensors)
    split = Split(cost.position, bits, cost.tail, server)
    return msgspec.structs.replace(plan, exits=exits, split=split)
