"""Measurements, searches and calibrations beside the plan in use, under the same memory cap."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from device_sdk.data.inputs import Inputs
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.execution.workspace import Workspace
from device_sdk.logs import log_events
from device_sdk.logs.adaptation_log import AdaptationLog
from device_sdk.policies.adaptation import Adaptation, AdaptationSettings, find_plan
from device_sdk.policies.calibration import Calibration, CalibrationSettings, calibrate_plan
from device_sdk.profiling.profile import Profile
from device_sdk.profiling.profile import profile as measure_profile
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.session.device_state import DeviceState
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.plan import Subnet


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
        inputs: Inputs | Array,
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
        workspace = self.workspace()
        return calibrate_plan(workspace, profile, subnet, inputs, labels, settings=settings, progress=progress)

    def workspace(self) -> Workspace:
        """The workspace in which all answers are corrected as those of the plan in use are."""
        return replace(self._in_use.lend_workspace(), prior=self._in_use.running().plan.class_prior)
