"""Choosing a split for a device that holds nothing yet: the manifest comes alone, the server's profile counts.

The blocks are then fetched by ``AdaptiveModel.open(address, plan=decision.plan)``: those of the head and no others.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.tail import TAIL
from device_sdk.policies.measured_splits.decision import SplitDecision, ask_server, choose
from device_sdk.policies.measured_splits.fastest import SplitLimits
from device_sdk.policies.measured_splits.measuring import codec_handling
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes import make_runtime, runs_on
from device_sdk.session.device_state import DeviceState, default_state_folder
from device_sdk.session.opening import manifest_at
from device_sdk.signing.trust import UNSTATED, Trustable, Unstated
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import Fallback, Plan


def plan_head(
    address: str,
    *,
    trust: Trustable | Unstated = UNSTATED,
    server: RemoteModel | None = None,
    token: str | None = None,
    memory_mb: float | None = None,
    device_factor: float = 1.0,
    uplink_mbps: float | None = None,
    fallback: Fallback | None = None,
    runtime: str = "onnxruntime",
    threads: int = 1,
    state_folder: str | Path | None = None,
    progress: Progress | None = None,
) -> SplitDecision:
    """Choose where the full model of the bundle at ``address`` is split, without fetching any of its blocks.

    The device's latencies are those of a profile that it kept of this bundle. Where that has a head only, they are the
    server's, slowed as that head is; without a profile slowed by ``device_factor``. Its memory follows from the
    server's profile of the same blocks. The plan may also be to run everything here, where that is quicker and fits.

    Args:
        trust, token, threads, state_folder: as for ``AdaptiveModel.open``.
        server: the model that runs tails, with a ``privacy``; by default that of the server at ``address``, which may
            be sent activations.
        memory_mb: limit of the device's part, weights and working set, with what answers as the fallback.
        device_factor: k for a device k times slower than the server; not used where a profile was kept.
        uplink_mbps: planned with instead of the measured uplink.
        fallback: what answers when the server does not; by default the subnet where the memory allows it, else an exit
            if there is one before the cut.

    Raises:
        BundleError, TransferError: the manifest or the profile cannot be had.
        UsageError: nothing keeps the memory, or a limit or a factor is out of range.
    """
    limits, given = SplitLimits(memory_mb), None if uplink_mbps is None else Uplink(uplink_mbps)
    folder = default_state_folder() if state_folder is None else Path(state_folder)
    bundle = manifest_at(address, trust=trust, token=token, accepts=runs_on(runtime), state_folder=folder)
    if server is None:
        home = address.partition("/v1/bundles/")[0]
        server = RemoteModel(server=home, model=bundle.manifest.name + TAIL, token=token, privacy="activations")
    theirs, measured = ask_server(bundle, server, progress or SilentProgress())
    there = theirs.cost_model()
    kept = DeviceState(folder, bundle.with_exits(()), make_runtime(runtime, threads=threads)).load_profile()
    device, source = _device_costs(bundle, kept, there, device_factor)
    return choose(
        bundle,
        Plan(bundle.supernet.original),
        device,
        there,
        measured if given is None else Uplink(given.mbps, measured.round_trip_ms),
        model_name=server.model,
        source="the server's",
        sends_input=server.privacy == "inputs",
        handling=codec_handling(),
        limits=limits,
        fallback=fallback,
        device_source=source,
    )


def _device_costs(bundle: Bundle, kept: Profile | None, there: CostModel, factor: float) -> tuple[CostModel, str]:
    """The costs of this device, and where they come from; ``kept``: what it measured of the bundle before."""
    if kept is None:
        return there.slowed(factor), f"the server's, {factor:g} times slower"
    ours = kept.cost_model()
    if ours.edge_costs.keys() >= set(bundle.supernet.edges):
        return msgspec.structs.replace(ours, exit_costs={**there.exit_costs, **ours.exit_costs}), "kept here"
    path = kept.fitted[0].subnet.edges
    measured = ours.latency_along_ms(path) / there.latency_along_ms(path)
    return there.slowed(measured), f"the server's, {measured:.3g} times slower, as the blocks measured here"
