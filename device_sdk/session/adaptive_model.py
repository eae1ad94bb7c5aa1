"""``AdaptiveModel``: a bundle on a device, from opening it to its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.cost import Budget
from device_sdk.errors import ClosedError, InfeasibleBudgetError, UsageError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.graph import Plan
from device_sdk.logs import log_events
from device_sdk.logs.adaptation_log import AdaptationLog, Opened
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.adaptation import Adaptation, AdaptationSettings
from device_sdk.policies.adaptation import adapt as run_adaptation
from device_sdk.policies.calibration import Calibration, CalibrationSettings
from device_sdk.policies.calibration import calibrate as run_calibration
from device_sdk.policies.split_decision import SplitDecision, decide_split
from device_sdk.profiling.profile import Profile
from device_sdk.profiling.profile import profile as run_profile
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.port import Array, Runtime
from device_sdk.session.answer import Answer
from device_sdk.session.device_state import DeviceState, default_state_folder, device_id, log_path
from device_sdk.session.opening import open_location
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.samples import SampleChecker

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class _Active:
    """A plan and the model that runs it: exchanged as one, so that no call sees half of a switch."""

    plan: Plan
    loaded: LoadedPlan


class AdaptiveModel:
    """A packaged model that runs here, and can be adapted to here. Make one with ``AdaptiveModel.open``.

    Calls may come from several threads; a call that has begun ends with the plan it began with.
    """

    def __init__(self, bundle: Bundle, *, runtime: Runtime, state_folder: Path) -> None:
        self._bundle = bundle
        self._runtime = runtime
        self._state_folder = state_folder
        self._state = DeviceState(state_folder, bundle, runtime)
        self._log = AdaptationLog(log_path(state_folder, bundle), bundle=bundle.digest, runtime=runtime.identity)
        self._samples = SampleChecker(bundle.manifest)
        self._remote = RemoteAnswers(bundle, self._log)
        self._change = threading.Lock()  # held by what changes the plan; calls never wait for it
        self._exchange = threading.Lock()  # guards writes to _active, so that nothing reopens a closed model
        self._active: _Active | None = None

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        trust: str | Path | None = None,
        token: str | None = None,
        allow_rollback: bool = False,
        runtime: str = "onnxruntime",
        threads: int = 1,
        provider: str | None = None,
        state_folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> AdaptiveModel:
        """Open the bundle in a folder or at ``http(s)://…/v1/bundles/NAME`` and make it ready to answer.

        With ``trust``, a public key, an unsigned or wrongly signed bundle is refused. The first time, every block runs
        its self-test. Starts with the plan that this device chose last, else with the full model. From a server only
        blobs that are not here yet are fetched; if it cannot be reached, or what it sends cannot be used, the last good
        bundle opens and the log says why. ``token``: what the server asks for. ``allow_rollback``: take a version below
        that of the last good bundle. ``provider``: of the runtime, such as ``CUDAExecutionProvider``; one that is not
        here is refused, never replaced silently. ``state_folder``: where fetched bundles, profiles, the plan and the
        log are kept (default: the user's folder for state).

        Raises:
            BundleError: the bundle cannot be used (a kind of it says why).
            TransferError: the server cannot be reached, and there is no bundle of it here.
            RuntimeFailedError: the runtime has no such provider here.
            StorageError: the state folder cannot be written.
        """
        folder = Path(state_folder) if state_folder is not None else default_state_folder()
        engine = make_runtime(runtime, threads=threads, provider=provider)
        bundle, delivery = open_location(
            location,
            trust=trust,
            token=token,
            allow_rollback=allow_rollback,
            runtime=engine,
            state_folder=folder,
            progress=progress,
        )
        model = cls(bundle, runtime=engine, state_folder=folder)
        if delivery is not None:
            model._log.write(log_events.delivered(delivery))
        model._start()
        return model

    def _start(self) -> None:
        remembered = self._remembered_plan()
        plan = remembered or Plan(self._bundle.supernet.original)
        self._active = self._load(plan)
        self._log.write(Opened(subnet=str(plan.subnet), restored=remembered is not None))

    def _remembered_plan(self) -> Plan | None:
        plan = self._state.load_plan()
        if plan is None:
            return None
        try:
            self._bundle.supernet.check_plan(plan)
        except UsageError:
            return None
        return plan

    def _load(self, plan: Plan) -> _Active:
        return _Active(plan, LoadedPlan(self._bundle, self._runtime, plan))

    @property
    def bundle(self) -> Bundle:
        """The opened bundle."""
        return self._bundle

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self._running().plan

    @property
    def log_path(self) -> Path:
        """The adaptation log of this bundle on this device."""
        return self._log.path

    @property
    def device_id(self) -> str:
        """A random name for this device, or rather its state folder, under which servers keep its log lines."""
        return device_id(self._state_folder)

    def profile(self, *, again: bool = False, progress: Progress | None = None) -> Profile:
        """What every block costs here; measured once per device, runtime and bundle, or ``again``.

        Raises:
            RuntimeFailedError, BlobError: a block does not load or run.
        """
        self._running()
        known = None if again else self._state.load_profile()
        if known is not None:
            return known
        profile = run_profile(self._bundle, self._runtime, progress=progress or SilentProgress())
        self._state.save_profile(profile)
        self._log.write(log_events.profiled(profile))
        return profile

    def adapt(
        self,
        samples: npt.NDArray[np.uint8] | Sequence[Image.Image],
        labels: npt.NDArray[np.int64] | Sequence[int] | None,
        budget: Budget,
        *,
        settings: AdaptationSettings | None = None,
        progress: Progress | None = None,
    ) -> Adaptation:
        """Search for the most accurate subnet within ``budget`` on private data, and switch to it.

        ``samples``: raw images uint8 [count, height, width, channels] or Pillow images; ``labels``: class indices
        [count], or None: then the full model's answers stand in. The old plan serves until the new one is ready.

        Raises:
            InfeasibleBudgetError: no subnet fits; names the nearest. The plan in use stays.
            InputError: samples or labels are not what the model takes.
        """
        self._running()
        progress = progress or SilentProgress()
        inputs = self._samples.prepare_all(samples)
        targets = None if labels is None else self._samples.labels(labels)
        with self._change:
            try:
                adaptation = run_adaptation(
                    self._bundle,
                    self._runtime,
                    self.profile(progress=progress),
                    inputs,
                    targets,
                    budget,
                    settings=settings or AdaptationSettings(),
                    progress=progress,
                )
            except InfeasibleBudgetError as error:
                self._log.write(log_events.infeasible(budget, error))
                raise
            self._take(adaptation.plan)
            self._log.write(log_events.adapted(adaptation))
        return adaptation

    def calibrate(
        self,
        samples: npt.NDArray[np.uint8] | Sequence[Image.Image],
        labels: npt.NDArray[np.int64] | Sequence[int] | None,
        *,
        settings: CalibrationSettings | None = None,
        progress: Progress | None = None,
    ) -> Calibration:
        """Set the exits and the threshold of hard samples for the subnet in use, and switch to that plan.

        ``samples`` and ``labels`` as for ``adapt``, but others than those it searched on; without labels the subnet's
        own answers stand in.

        Raises:
            InputError: samples or labels are not what the model takes.
        """
        progress = progress or SilentProgress()
        inputs = self._samples.prepare_all(samples)
        targets = None if labels is None else self._samples.labels(labels)
        with self._change:
            calibration = run_calibration(
                self._bundle,
                self._runtime,
                self.profile(progress=progress),
                self._running().plan.subnet,
                inputs,
                targets,
                settings=settings or CalibrationSettings(),
                progress=progress,
            )
            self._take(calibration.plan)
            self._log.write(log_events.calibrated(calibration))
        return calibration

    def use(self, plan: Plan) -> None:
        """Run ``plan`` from now on, whatever a search or calibration found.

        Raises:
            UsageError: it does not fit this bundle's graph; the plan in use stays.
        """
        with self._change:
            self._take(plan)

    def connect(self, model: RemoteModel) -> None:
        """Let a server answer hard samples, as far as the plan has a threshold for them (see ``calibrate``).

        Nothing is sent unless ``model.privacy`` says "inputs". An earlier connection ends.
        """
        self._running()
        self._remote.connect_escalation(model)

    def split(
        self, model: RemoteModel, *, uplink_mbps: float | None = None, progress: Progress | None = None
    ) -> SplitDecision:
        """Decide where the subnet in use crosses to the server that runs its tail, and run it so from now on.

        ``model``: ``NAME:tail`` at the server, with a ``privacy`` that allows activations to be sent. Without
        ``uplink_mbps`` the uplink is measured. Exits behind the split are given up. If the network fails, the whole
        subnet runs here.

        Raises:
            UsageError: an uplink of nothing, or the privacy setting forbids to send activations.
            TransferError: the server does not tell its profile, or serves another bundle.
        """
        with self._change:
            plan = self._running().plan
            decision = decide_split(
                self._bundle,
                plan,
                self.profile(progress=progress),
                model,
                uplink_mbps=uplink_mbps,
                progress=progress or SilentProgress(),
            )
            self._remote.connect_tail(model)
            self._take(decision.plan)
            self._log.write(log_events.split_chosen(decision))
        return decision

    def disconnect(self) -> None:
        """Answer everything here again. May be called twice."""
        self._remote.close()

    def _take(self, plan: Plan) -> None:
        self._switch(plan)
        self._state.save_plan(plan)

    def _switch(self, plan: Plan) -> None:
        """Exchange the plan. The old one is never closed under a call: it goes with the last call that uses it."""
        new = self._load(plan)
        with self._exchange:
            self._running()
            self._active = new

    def __call__(self, images: npt.NDArray[np.uint8] | Image.Image) -> Answer:
        """Answer for raw images: one [h, w, channels] or grey [h, w], a batch [n, h, w, channels], or a Pillow image.

        Raises:
            InputError: not what the model takes; says what was expected.
            ClosedError: the model was closed.
        """
        active = self._running()
        return self._answer(active, self._samples.prepare(images), images)

    def prepare(self, images: npt.NDArray[np.uint8] | Image.Image) -> npt.NDArray[np.float32]:
        """Raw images as the model takes them: [batch, *input] float32, ready for ``infer``.

        Raises:
            InputError: not what the model takes.
        """
        return self._samples.prepare(images)

    def infer(self, tensor: Array) -> Answer:
        """Answer for prepared tensors: float32 [batch, *input] or one sample [*input].

        Raises:
            InputError: another shape or type.
            ClosedError: the model was closed.
        """
        active = self._running()
        return self._answer(active, self._samples.tensor(tensor), None)

    def _answer(self, active: _Active, tensor: Array, images: npt.NDArray[np.uint8] | Image.Image | None) -> Answer:
        started = time.perf_counter()
        output, source = self._remote.answer(active.plan, active.loaded, tensor, images)
        return Answer(
            output=output,
            source=source,
            latency_ms=(time.perf_counter() - started) * 1e3,
            class_names=self._bundle.manifest.task.class_names,
        )

    def close(self) -> None:
        """Free the model, once the calls in progress have ended; answering then raises ClosedError.

        May be called twice.
        """
        with self._exchange:
            self._active = None
        self._remote.close()

    def __enter__(self) -> AdaptiveModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> _Active:
        if self._active is None:
            raise ClosedError("the model was closed")
        return self._active
