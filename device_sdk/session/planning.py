"""What plans are chosen from: the subnets of a device, its private samples, the servers that are connected.

Gathers it and has ``policies`` choose. Exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.hybrid_choice import HybridChoice
from device_sdk.policies.hybrid_costs import Resource
from device_sdk.policies.joint_search import JointSettings
from device_sdk.policies.plan_choice import Planned
from device_sdk.progress import Progress
from device_sdk.session.device_state import DeviceState
from device_sdk.session.measuring import Measuring
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Power, Uplink
from device_sdk.supernet.plan import Ask, Fallback, Plan, Subnet
from device_sdk.supernet.requirement import Requirement

if TYPE_CHECKING:
    from PIL import Image

    from device_sdk.policies.plan_front import PlanFront
    from device_sdk.policies.split_decision import SplitDecision, SplitLimits

    Samples = npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image]
    Labels = npt.NDArray[np.int64] | Sequence[int]


@dataclass(frozen=True, eq=False)
class SplitWish:
    """The limits of a split: the device's memory, and the accuracy lost on ``samples`` with ``labels``.

    ``fallback``: what answers when the server does not; None: as the memory allows.
    """

    memory_mb: float | None
    max_drop: float | None
    samples: Samples | None
    labels: Labels | None
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
        tensors, images = self._samples.prepare_all(samples), self._samples.pixels(samples)
        servers = self._remote.gather(tensors, images, uplink=uplink, progress=progress)
        return self._measuring.plan(
            self._subnets(),
            lambda input_size: self._samples.prepare_all(samples, input_size) if input_size else tensors,
            targets,
            requirement,
            servers,
            power=power,
            progress=progress,
        )

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
        targets, tensors = self._samples.labels(labels), self._samples.prepare_all(samples)
        pixels = self._samples.pixels(samples)
        found = [self._remote.gather_from(one, tensors, pixels, uplink=uplink, progress=progress) for one in others]
        choice = self._measuring.plan_hybrid(
            self._in_use.workspace.bundle,
            self._subnets(),
            tensors,
            targets,
            limit,
            resource=resource,
            server=server,
            others=found,
            uplink=uplink,
            power=power,
            settings=settings,
            progress=progress,
        )
        assert isinstance(choice.plan.hard, Ask)
        asked = choice.plan.hard.server.model
        return choice, next((one for one in others if one.model == asked), replace(server, model=asked))

    def split(
        self, model: RemoteModel, wish: SplitWish, *, uplink_mbps: float | None, follow: bool, progress: Progress
    ) -> tuple[SplitDecision, PlanFront | None]:
        """Where the subnet in use crosses to the server that runs its tail; raises as ``decide_split``.

        ``follow``: also the splits for other networks.
        """
        from device_sdk.policies.split_decision import decide_split
        from device_sdk.policies.split_front import split_front

        plan, bundle = self._in_use.running().plan, self._in_use.workspace.bundle
        limits = self._split_limits(plan, wish)
        decision = decide_split(
            bundle,
            plan,
            lambda: self._measuring.profile(progress=progress),
            model,
            uplink_mbps=uplink_mbps,
            progress=progress,
            limits=limits,
            fallback=wish.fallback,
        )
        return decision, split_front(bundle, decision, limits) if follow else None

    def estimate_split(
        self, uplink: Uplink, wish: SplitWish, *, device_factor: float, progress: Progress
    ) -> SplitDecision:
        """The same for a server as fast as this device, this one ``device_factor`` times slower."""
        from device_sdk.offload.tail import TAIL
        from device_sdk.policies.split_decision import choose
        from device_sdk.policies.split_measuring import codec_handling

        plan, bundle = self._in_use.running().plan, self._in_use.workspace.bundle
        limits = self._split_limits(plan, wish)
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
            fallback=wish.fallback,
        )

    def _subnets(self) -> list[Subnet]:
        """The full model, the subnet in use, and those of the last adaptation."""
        pool = self._state.load_pool()
        found = [self._in_use.workspace.supernet.original, self._in_use.running().plan.subnet]
        found += [one.subnet for one in (pool.candidates if pool is not None else ())]
        return list(dict.fromkeys(found))

    def _split_limits(self, plan: Plan, wish: SplitWish) -> SplitLimits:
        """The limits of a split; the accuracy is measured on private samples where there are any."""
        from device_sdk.policies.split_decision import SplitLimits
        from device_sdk.policies.split_measuring import SplitAccuracy

        if wish.samples is not None:
            self._in_use.workspace.bundle.require_whole("measuring the accuracy of a split")
            self._samples.require_classifier()
        if wish.samples is None or wish.labels is None:
            return SplitLimits(wish.memory_mb, wish.max_drop)
        SplitLimits(wish.memory_mb, wish.max_drop, lambda cost: 0.0)  # refused before anything runs
        inputs = self._samples.prepare_all(wish.samples, plan.subnet.input_size)
        labels = self._samples.labels(wish.labels)
        accuracy = SplitAccuracy(self._in_use.lend_workspace(), plan.subnet, inputs, labels)
        return SplitLimits(wish.memory_mb, wish.max_drop, accuracy.drop)
