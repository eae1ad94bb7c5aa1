"""Choice of plans from the device's subnets, its private samples and the connected servers.

Gathers it and has ``policies`` choose. Exchanges nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.data.jpeg import QUALITY
from device_sdk.errors import TransferError, UsageError
from device_sdk.execution.class_prior import corrected
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.offload.named_path import takes_jpegs
from device_sdk.offload.pooling import LogarithmicPool
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.server_facts import measure_uplink, server_profile
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.policies.deciding.pool_fitting import fit_pool
from device_sdk.policies.hybrid.choice import HybridChoice, Network, choose_hybrid
from device_sdk.policies.hybrid.costs import (
    HybridCosts,
    Resource,
    asked_cost,
    energy_costs,
    latency_costs,
    macs_costs,
)
from device_sdk.policies.hybrid.joint_search import HybridMember, JointSettings
from device_sdk.policies.measured_splits.jpeg_inputs import JpegInputs
from device_sdk.policies.planning.plan_choice import Planned, choose_plan
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.policies.scores import Targets, score_of
from device_sdk.progress import Progress
from device_sdk.session.device_state import DeviceState
from device_sdk.session.measuring import Measuring
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import CostModel, Power, Uplink
from device_sdk.supernet.plan import Ask, Fallback, Plan, Subnet
from device_sdk.supernet.requirement import Requirement

if TYPE_CHECKING:
    from PIL import Image

    from device_sdk.policies.measured_splits.decision import SplitDecision
    from device_sdk.policies.measured_splits.limits import SplitLimits
    from device_sdk.policies.planning.front import PlanFront

    Samples = npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image]
    Labels = npt.NDArray[np.int64] | Sequence[int]

_BATCH = 64


@dataclass(frozen=True, eq=False)
class SplitWish:
    """The limits of a split: the device's memory and storage, and the score lost on ``samples`` with ``labels``.

    ``fallback``: what answers when the server does not; None: as the memory allows.
    """

    memory_mb: float | None
    max_drop: float | None
    samples: Samples | None
    labels: Targets | Labels | None
    storage_mb: float | None = None
    fallback: Fallback | None = None


class Planning:
    """Has plans chosen for one device, among its subnets and the servers that ``remote`` is connected to."""

    def __init__(
        self,
        state: DeviceState,
        in_use: PlanInUse,
        samples: SampleChecker,
        remote: RemoteAnswers,
        measuring: Measuring,
    ) -> None:
        self._state, self._in_use, self._samples = state, in_use, samples
        self._remote, self._measuring = remote, measuring

    def plan(
        self,
        samples: Samples,
        targets: npt.NDArray[np.int64] | None,
        requirement: Requirement,
        *,
        uplink: Uplink | None,
        power: Power | None,
        progress: Progress,
    ) -> Planned:
        """The best plan of any kind on samples with the labels ``targets`` [count]; raises as ``choose_plan``."""
        inputs, images = self._samples.inputs(samples), self._samples.pixels(samples)
        servers = self._corrected(self._remote.gather(inputs, images, uplink=uplink, progress=progress))
        profile = self._measuring.profile(progress=progress)
        return choose_plan(
            self._measuring.workspace(),
            profile,
            self._subnets(),
            inputs,
            targets,
            requirement,
            servers,
            power=power,
            progress=progress,
            timed_exits=True,
            use_ladder=True,
        )

    def pool(
        self, samples: Samples, targets: npt.NDArray[np.int64], *, progress: Progress
    ) -> tuple[RemoteModel, LogarithmicPool | None]:
        """The connected model, and how its answers and the subnet's in use are pooled; raises as ``fit_pool``."""
        model, subnet = self._remote.asked_model, self._in_use.running().plan.subnet
        if model is None:
            raise UsageError("no server is connected that answers samples", hint="connect one")
        inputs, images = self._samples.inputs(samples), self._samples.pixels(samples)
        servers = self._corrected(self._remote.gather_from(model, inputs, images, uplink=None, progress=progress))
        if servers.logits is None:
            raise TransferError(servers.notes[0] if servers.notes else f"{model.model} may not be sent inputs")
        workspace = self._measuring.workspace()
        own = answer_everywhere(workspace, subnet, inputs, targets, use_exits=False, batch=_BATCH)
        return model, fit_pool(own.logits[-1], servers.logits, targets)

    def _corrected(self, servers: Servers) -> Servers:
        """The same answers under the prior of the plan in use, as they are corrected when it asks."""
        if servers.logits is None:
            return servers
        return replace(servers, logits=corrected(servers.logits, self._in_use.running().plan.class_prior))

    def plan_hybrid(
        self,
        samples: Samples,
        labels: Labels,
        limit: float,
        *,
        resource: Resource,
        server: RemoteModel,
        others: Sequence[RemoteModel],
        uplink: Uplink | None,
        power: Power | None,
        settings: JointSettings,
        progress: Progress,
    ) -> tuple[HybridChoice, RemoteModel]:
        """The best pair of networks for device and server, and the server's model that its plan asks."""
        targets, inputs = self._samples.labels(labels), self._samples.inputs(samples)
        pixels = self._samples.pixels(samples)
        found = [self._remote.gather_from(one, inputs, pixels, uplink=uplink, progress=progress) for one in others]
        bundle, device = self._in_use.workspace.bundle, self._measuring.profile(progress=progress).cost_model()
        choice = choose_hybrid(
            self._in_use.lend_workspace(),
            (bundle.manifest.name, bundle.digest),
            device,
            self._subnets(),
            inputs,
            targets,
            limit,
            self._hybrid_costs(device, server, resource, uplink, power),
            settings,
            others=[_asked_model(one, resource, power) for one in found],
            progress=progress,
        )
        assert isinstance(choice.plan.hard, Ask)
        asked = choice.plan.hard.server.model
        return choice, next((one for one in others if one.model == asked), replace(server, model=asked))

    def _hybrid_costs(
        self, device: CostModel, server: RemoteModel, resource: Resource, uplink: Uplink | None, power: Power | None
    ) -> HybridCosts:
        """Costs of ``resource``; the server is asked for its speed, and the uplink measured, only where they count."""
        manifest, supernet = self._in_use.workspace.bundle.manifest, self._in_use.workspace.supernet
        if resource == "macs":
            return macs_costs(supernet)
        with contextlib.closing(default_transport(server)) as transport:
            there = server_profile(transport, server.server, manifest.name).cost_model()
            uplink = uplink or measure_uplink(transport, server.server)
        size = manifest.cut_points[0].nbytes
        if resource == "latency_ms":
            return latency_costs(device, there, uplink, input_bytes=size)
        return energy_costs(device, there, uplink, power, input_bytes=size)

    def split(
        self, model: RemoteModel, wish: SplitWish, *, uplink_mbps: float | None, follow: bool, progress: Progress
    ) -> tuple[SplitDecision, PlanFront | None]:
        """Decide the cut point from which a server runs the tail of the subnet in use; raises as ``decide_split``.

        ``follow``: also the splits for other networks.
        """
        from device_sdk.policies.measured_splits.decision import decide_split
        from device_sdk.policies.planning.split_front import split_front

        plan, bundle = self._in_use.running().plan, self._in_use.workspace.bundle
        jpegs = self._jpegs(wish, quality=model.jpeg_quality) if model.privacy == "inputs" else None
        limits = self._split_limits(plan, wish, jpegs)
        decision = decide_split(
            self._in_use.lend_workspace(),
            plan,
            lambda: self._measuring.profile(progress=progress),
            model,
            uplink_mbps=uplink_mbps,
            progress=progress,
            limits=limits,
            jpeg=None if jpegs is None else jpegs.coding(),
            fallback=wish.fallback,
        )
        return decision, split_front(bundle, decision, limits) if follow else None

    def estimate_split(
        self, uplink: Uplink, wish: SplitWish, *, device_factor: float, progress: Progress
    ) -> SplitDecision:
        """The same for a server as fast as this device, this one ``device_factor`` times slower."""
        from device_sdk.offload.tail import TAIL
        from device_sdk.policies.measured_splits.decision import choose
        from device_sdk.policies.measured_splits.measuring import codec_handling

        plan, bundle = self._in_use.running().plan, self._in_use.workspace.bundle
        jpegs = self._jpegs(wish)
        limits = self._split_limits(plan, wish, jpegs)
        costs = self._measuring.profile(progress=progress).cost_model()
        return choose(
            bundle,
            plan,
            costs,
            costs,
            uplink,
            model_name=bundle.manifest.name + TAIL,
            source="this device's own: no server was named",
            handling=codec_handling(),
            limits=limits,
            device_factor=device_factor,
            jpeg=None if jpegs is None else jpegs.coding(),
            fallback=wish.fallback,
        )

    def _subnets(self) -> list[Subnet]:
        """The full model, the subnet in use, and those of the last adaptation."""
        pool = self._state.load_pool()
        found = [self._in_use.workspace.supernet.original, self._in_use.running().plan.subnet]
        found += [one.subnet for one in (pool.candidates if pool is not None else ())]
        return list(dict.fromkeys(found))

    def _jpegs(self, wish: SplitWish, *, quality: int = QUALITY) -> JpegInputs | None:
        """The private samples as JPEGs, where a server may offer to take them."""
        manifest = self._in_use.workspace.bundle.manifest
        if wish.samples is None or not takes_jpegs(manifest):
            return None
        channels, height, width = manifest.cut_points[0].tensors[0].shape
        pixels = self._samples.pixels(wish.samples)
        shape = (channels, height, width)
        return JpegInputs(pixels, manifest.preprocessing, input_shape=shape, quality=quality)

    def _split_limits(self, plan: Plan, wish: SplitWish, jpegs: JpegInputs | None) -> SplitLimits:
        """The limits of a split; the score is measured on private samples where there are any."""
        from device_sdk.policies.measured_splits.limits import SplitLimits
        from device_sdk.policies.measured_splits.measuring import SplitScore

        SplitLimits(wish.memory_mb, None, storage_mb=wish.storage_mb)  # refused before anything runs
        if wish.samples is None:
            return SplitLimits(wish.memory_mb, wish.max_drop, storage_mb=wish.storage_mb)
        self._in_use.workspace.bundle.require_whole("measuring the accuracy of a split")
        samples = self._samples.inputs(wish.samples)
        inputs = samples.take(np.arange(len(samples)), plan.subnet.input_size)
        score = score_of(self._in_use.workspace.bundle.manifest.task)
        targets = None if wish.labels is None else score.checked(wish.labels, len(inputs))
        judge = SplitScore(self._in_use.lend_workspace(), plan.subnet, inputs, targets, score, jpegs=jpegs)
        return SplitLimits(wish.memory_mb, wish.max_drop, judge, wish.storage_mb)


def _asked_model(servers: Servers, resource: Resource, power: Power | None) -> HybridMember[Network]:
    if servers.asked is None or servers.logits is None or servers.network is None:
        raise TransferError(servers.notes[0] if servers.notes else "a server's model may not be sent inputs")
    return HybridMember(servers.asked, servers.logits, asked_cost(resource, servers.network, servers.asked, power))
