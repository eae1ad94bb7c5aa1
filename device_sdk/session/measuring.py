"""What ``AdaptiveModel`` measures, searches and calibrates beside the plan in use, under the same memory cap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError, TransferError
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.execution.workspace import Workspace
from device_sdk.logs import log_events
from device_sdk.logs.adaptation_log import AdaptationLog
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.server_facts import measure_uplink, server_profile
from device_sdk.policies.adaptation import Adaptation, AdaptationSettings, find_plan
from device_sdk.policies.calibration import Calibration, CalibrationSettings, calibrate_plan
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.policies.hybrid.choice import HybridChoice, Network, choose_hybrid
from device_sdk.policies.hybrid.costs import Resource, asked_cost, energy_costs, latency_costs, macs_costs
from device_sdk.policies.hybrid.joint_search import HybridMember, JointSettings
from device_sdk.policies.planning.plan_choice import Planned, choose_plan
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.profiling.profile import Profile
from device_sdk.profiling.profile import profile as measure_profile
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.session.device_state import DeviceState
from device_sdk.supernet.cost import Budget, CostModel, Power, Uplink
from device_sdk.supernet.plan import Subnet
from device_sdk.supernet.requirement import Requirement

_BATCH = 64


class Measuring:
    """Profiles, adapts and calibrates. Decides nothing, and changes no plan.

    Under a memory cap the plan in use first gives up what no call runs, and what is loaded here is freed at the end.
    """

    def __init__(self, state: DeviceState, in_use: PlanInUse, log: AdaptationLog) -> None:
        self._state, self._in_use, self._log = state, in_use, log

    def profile(self, *, again: bool = False, batch: int = 1, progress: Progress) -> Profile:
        """The profile that is known, or measured now. Raises as ``profiling.profile``."""
        known = None if again else self._state.load_profile(batch=batch)
        if known is not None:
            return known
        profile = measure_profile(self._in_use.lend_workspace(), batch=batch, progress=progress)
        self._state.save_profile(profile)
        self._log.write(log_events.profiled(profile))
        return profile

    def search(
        self,
        profile: Profile,
        inputs: Inputs | Array,
        labels: npt.NDArray[np.int64] | None,
        budget: Budget,
        *,
        settings: AdaptationSettings,
        progress: Progress,
    ) -> Adaptation:
        """Find a plan (``policies.adaptation``); a budget that no subnet fits is noted in the log."""
        try:
            workspace = self._in_use.lend_workspace()
            return find_plan(workspace, profile, inputs, labels, budget, settings=settings, progress=progress)
        except InfeasibleBudgetError as error:
            self._log.write(log_events.infeasible(budget, error))
            raise

    def calibrate(
        self,
        inputs: Array,
        labels: npt.NDArray[np.int64] | None,
        *,
        settings: CalibrationSettings,
        progress: Progress,
        subnet: Subnet | None = None,
    ) -> Calibration:
        """As ``policies.calibration``, for ``subnet``, by default that in use."""
        profile = self.profile(progress=progress)
        if subnet is None:
            subnet = self._in_use.running().plan.subnet
        workspace = self._with_prior()
        return calibrate_plan(workspace, profile, subnet, inputs, labels, settings=settings, progress=progress)

    def answers(self, subnet: Subnet, inputs: Array, labels: npt.NDArray[np.int64]) -> Array:
        """Logits [count, classes] of ``subnet`` for ``inputs`` [count, *input]."""
        workspace = self._with_prior()
        return answer_everywhere(workspace, subnet, inputs, labels, use_exits=False, batch=_BATCH).logits[-1]

    def plan(
        self,
        subnets: Sequence[Subnet],
        prepared: Callable[[tuple[int, ...]], Array],
        labels: npt.NDArray[np.int64] | None,
        requirement: Requirement,
        servers: Servers,
        *,
        power: Power | None,
        progress: Progress,
    ) -> Planned:
        """As ``policies.planning.plan_choice``."""
        profile = self.profile(progress=progress)
        workspace = self._with_prior()
        return choose_plan(
            workspace,
            profile,
            subnets,
            prepared,
            labels,
            requirement,
            servers,
            power=power,
            progress=progress,
            timed_exits=True,
        )

    def plan_hybrid(
        self,
        bundle: Bundle,
        subnets: Sequence[Subnet],
        tensors: Array,
        labels: npt.NDArray[np.int64],
        limit: float,
        *,
        resource: Resource,
        server: RemoteModel,
        others: Sequence[Servers],
        uplink: Uplink | None,
        power: Power | None,
        settings: JointSettings,
        progress: Progress,
    ) -> HybridChoice:
        """As ``policies.hybrid.choice``; the server's speed and the way to it are asked for where they count."""
        device = self.profile(progress=progress).cost_model()
        name = bundle.manifest.name
        if resource == "macs":
            costs = macs_costs(bundle.supernet)
        else:
            there, uplink = self._at_server(server, name, uplink)
            size = bundle.manifest.cut_points[0].nbytes
            if resource == "latency_ms":
                costs = latency_costs(device, there, uplink, input_bytes=size)
            else:
                costs = energy_costs(device, there, uplink, power, input_bytes=size)
        workspace = self._in_use.lend_workspace()
        return choose_hybrid(
            workspace,
            (name, bundle.digest),
            device,
            subnets,
            tensors,
            labels,
            limit,
            costs,
            settings,
            others=[_asked_model(one, resource, power) for one in others],
            progress=progress,
        )

    def _with_prior(self) -> Workspace:
        """The workspace in which all answers are corrected as those of the plan in use are."""
        return replace(self._in_use.lend_workspace(), prior=self._in_use.running().plan.class_prior)

    @staticmethod
    def _at_server(server: RemoteModel, bundle: str, uplink: Uplink | None) -> tuple[CostModel, Uplink]:
        with contextlib.closing(default_transport(server)) as transport:
            profile = server_profile(transport, server.server, bundle)
            return profile.cost_model(), uplink or measure_uplink(transport, server.server)


def _asked_model(servers: Servers, resource: Resource, power: Power | None) -> HybridMember[Network]:
    if servers.asked is None or servers.logits is None or servers.network is None:
        raise TransferError(servers.notes[0] if servers.notes else "a server's model may not be sent inputs")
    return HybridMember(servers.asked, servers.logits, asked_cost(resource, servers.network, servers.asked, power))
