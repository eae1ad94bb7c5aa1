"""``AdaptiveModel``: a bundle on a device, from opening it to its answers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.hybrid_pairs import hybrid_plan
from device_sdk.data.inputs import Inputs
from device_sdk.errors import UsageError
from device_sdk.execution.guarded_self_test import run_guarded_self_test
from device_sdk.execution.memory_cap import PlanRetired
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.service_times import CallPace
from device_sdk.execution.workspace import Workspace
from device_sdk.live.elastic import ElasticSettings
from device_sdk.live.mix_follower import MixFollower
from device_sdk.live.switching import LiveSettings
from device_sdk.logs import log_events
from device_sdk.logs.adaptation_log import AdaptationLog, Opened, PriorChanged
from device_sdk.memory_pressure import MemoryPressure, find_memory_pressure
from device_sdk.offload.pooling import LogarithmicPool
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.adaptation import Adaptation, AdaptationSettings
from device_sdk.policies.calibration import Calibration, CalibrationSettings
from device_sdk.policies.hybrid.choice import HybridChoice
from device_sdk.policies.hybrid.costs import Resource
from device_sdk.policies.hybrid.joint_search import JointSettings
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.plan_choice import Planned
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes import make_runtime, runs_on
from device_sdk.runtimes.port import Array, Runtime
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.answer import SUBNET, Answer
from device_sdk.session.async_calls import AsyncCalls
from device_sdk.session.device_state import DeviceState, default_state_folder, device_id, load_part, log_path
from device_sdk.session.elastic_memory import ElasticMemory
from device_sdk.session.exit_sets import ExitSets, PlacedExits, TestExits
from device_sdk.session.live_keeper import LiveKeeper, PrivateSamples
from device_sdk.session.measuring import Measuring
from device_sdk.session.network_keeper import NetworkKeeper
from device_sdk.session.opening import UPDATE_DEADLINE_S, open_location, origin_of
from device_sdk.session.origin import Origin
from device_sdk.session.planning import Planning, SplitWish
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.running import Running
from device_sdk.session.samples import SampleChecker
from device_sdk.session.timed_answers import TimedAnswers
from device_sdk.signing.trust import UNSTATED, Trustable, Unstated
from device_sdk.supernet.cost import MB, Budget, Power, Uplink
from device_sdk.supernet.plan import AnswerLocally, Ask, Fallback, Plan, Prior, Subnet
from device_sdk.supernet.requirement import Requirement

if TYPE_CHECKING:
    from PIL import Image

    from device_sdk.policies.measured_splits.decision import SplitDecision


_log = logging.getLogger(__name__)


class AdaptiveModel:
    """A packaged model that runs here, and can be adapted to here. Make one with ``AdaptiveModel.open``.

    Calls may come from several threads; a call that has begun ends with the plan it began with. A process that is
    forked off afterwards cannot use it (ForkedError).
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        runtime: Runtime,
        state_folder: Path,
        memory_cap_bytes: int | None = None,
        origin: Origin | None = None,
        test_exits: TestExits | None = None,
    ) -> None:
        self._runtime = runtime
        self._state_folder = state_folder
        self._state = DeviceState(state_folder, bundle, runtime, memory_cap_bytes=memory_cap_bytes)
        self._log = AdaptationLog(log_path(state_folder, bundle), bundle=bundle.digest, runtime=runtime.identity)
        self._samples = SampleChecker(bundle.manifest)
        self._remote = RemoteAnswers(bundle, self._log)
        self._in_use = PlanInUse(Workspace(bundle, runtime, memory_cap_bytes))
        self._live = LiveKeeper(self._state, self._in_use, self._log)
        self._network = NetworkKeeper(self._in_use, self._remote)
        self._measuring = Measuring(self._state, self._in_use, self._log)
        self._planning = Planning(self._state, self._in_use, self._samples, self._remote, self._measuring)
        self._exit_sets = ExitSets(
            state_folder,
            self._state,
            self._in_use,
            self._live,
            self._log,
            origin=origin,
            test=test_exits or self._test_exits_here,
        )
        self._async_calls = AsyncCalls()
        self._class_names = bundle.manifest.task.class_names
        self._pace = CallPace()
        self._mix: MixFollower | None = None
        self._elastic = ElasticMemory(self._state, self._in_use, self._live, self._log)
        self._timed = TimedAnswers(self._in_use, self._class_names)
        self._change = threading.Lock()  # held by what changes the plan on demand; calls never wait for it

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        trust: Trustable | Unstated = UNSTATED,
        token: str | None = None,
        allow_rollback: bool = False,
        update_deadline_s: float = UPDATE_DEADLINE_S,
        runtime: str = "onnxruntime",
        threads: int = 1,
        provider: str | None = None,
        spin_us: int = 0,
        memory_cap_mb: float | None = None,
        exits: Collection[str] | None = None,
        plan: Plan | Literal["whole"] | None = None,
        state_folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> AdaptiveModel:
        """Open the bundle in a folder or at ``http(s)://…/v1/bundles/NAME`` and make it ready to answer.

        ``trust``: a public key or a key list (docs/guide/trust.md), as a file or its bytes: a bundle that is not signed
        by it is refused. With an address it may not be left out; None takes a bundle whoever signed it. The first time,
        every block runs its self-test, in a child process with limits. Starts with the plan that this device chose
        last, else with the full model. From a server only blobs that are not here yet are fetched; if it cannot be
        reached, or what it sends cannot be used, the last good bundle opens and the log says why. ``token``: of the
        server. ``allow_rollback``: take a version or a key list below one that this device has had, or other contents
        under its version. ``update_deadline_s``: for fetching, where there is a last good bundle; what came by then is
        kept. ``provider``: of the runtime, such as ``CUDAExecutionProvider``; one that is not here is refused, never
        replaced silently. ``spin_us``: microseconds for which each of several threads waits on the processor before it
        sleeps: shorter calls for more power (docs/guide/profiling.md). ``memory_cap_mb``: for all that is loaded,
        beyond the bare runtime; a plan that needs more runs in pages (docs/guide/memory.md). ``exits``: those to begin
        with, for example none: blobs of the others are not fetched (default: all); later the set that ``set_exits`` or
        ``place_exits`` left opens again. ``plan``: runs from now on, and only what it needs on this device is fetched
        and held, also of later versions: of a split with another fallback than the subnet, the head
        (docs/guide/head_only.md); "whole": everything again. ``state_folder``: where fetched bundles, profiles, the
        plan and the log are kept (default: the user's folder for state).

        Raises:
            UsageError: ``trust`` is left out, and ``location`` is an address; ``plan`` does not fit the bundle's graph;
                ``spin_us`` is out of its range.
            BundleError: the bundle cannot be used (a kind of it says why).
            TransferError: the server cannot be reached, and there is no bundle of it here.
            RuntimeFailedError: the runtime has no such provider here.
            BudgetError: the memory cap is too small for the largest block; says the least that works.
            StorageError: the state folder cannot be written.
        """
        cap_bytes = None if memory_cap_mb is None else round(memory_cap_mb * MB)
        folder = Path(state_folder) if state_folder is not None else default_state_folder()
        capped, engines = cap_bytes is not None, folder / "engines"
        settings = RuntimeSettings(runtime, threads, provider, capped, spin_us, str(engines.resolve()))
        engine = make_runtime(
            runtime, threads=threads, provider=provider, lean=capped, spin_us=spin_us, cache_folder=engines
        )
        bundle, delivery = open_location(
            location,
            trust=trust,
            token=token,
            allow_rollback=allow_rollback,
            update_deadline_s=update_deadline_s,
            runtime=engine,
            settings=settings,
            accepts=runs_on(runtime, provider),
            state_folder=folder,
            exits=exits,
            plan=plan,
            memory_cap_bytes=cap_bytes,
            progress=progress,
        )

        def test_exits(held: Bundle, names: Collection[str]) -> None:
            run_guarded_self_test(held, engine, settings, exits=names, memory_cap_bytes=cap_bytes)

        model = cls(
            bundle,
            runtime=engine,
            state_folder=folder,
            memory_cap_bytes=cap_bytes,
            origin=origin_of(location, state_folder=folder, token=token),
            test_exits=test_exits,
        )
        if delivery is not None:
            model._log.write(log_events.delivered(delivery))
        model._start(plan if isinstance(plan, Plan) else None)
        return model

    def _start(self, chosen: Plan | None = None) -> None:
        remembered = self._state.load_plan() if chosen is None else None
        kept = load_part(self._state_folder, self.bundle.manifest.name, self.bundle.digest)
        held_for = None if kept is None else kept.plan
        plan = chosen or remembered or held_for or Plan(self.bundle.supernet.original)
        self._require_decidable(plan)
        self._in_use.begin(plan)
        if chosen is not None:
            self._state.save_plan(chosen)
        others = () if (remembered or chosen or held_for) is not None else self._state.runtimes_with_plans()
        if others:
            _log.warning(
                "a plan is kept for %s, none for %s: starting with the full model; adapt again, or open as then",
                " and ".join(others),
                self._runtime.identity,
            )
        self._say_what_is_missing(plan)
        self._log.write(Opened(subnet=str(plan.subnet), restored=remembered is not None, plans_for=others))

    @property
    def bundle(self) -> Bundle:
        """The opened bundle, with the exits that are held now."""
        return self._in_use.workspace.bundle

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self._in_use.running().plan

    @property
    def memory_cap_bytes(self) -> int | None:
        """Most memory of everything loaded, beyond the bare runtime; None for no limit. It can be set at any time.

        Calls in progress go on; what does not fit any more runs in pages, and in the last resort the path ends with an
        earlier exit of the plan (docs/guide/memory.md). A model opened without a cap keeps to one less closely.

        Raises:
            BudgetError: not even the path to the first exit fits; says the least that works. The old cap stays.
        """
        return self._elastic.cap_bytes

    @memory_cap_bytes.setter
    def memory_cap_bytes(self, cap_bytes: int | None) -> None:
        self._in_use.running()
        self._elastic.set_cap(cap_bytes)

    def watch_memory(self, pressure: MemoryPressure | None = None, *, settings: ElasticSettings | None = None) -> None:
        """Follow the system's memory: under pressure running calls answer with the last exit that they reached, and the
        cap and the exits shrink; they grow again when there has been room for a while. The cap that is set is the most.

        ``pressure``: where it is read; by default the control groups of version 2 and the whole system.

        Raises:
            MeasurementError: the system says nothing about memory.
        """
        self._in_use.running()
        self._elastic.watch(pressure or find_memory_pressure(), settings or ElasticSettings())

    def stop_watching_memory(self) -> None:
        """Stay with the memory cap in use. May be called twice."""
        self._elastic.stop()

    @property
    def log_path(self) -> Path:
        """The adaptation log of this bundle on this device."""
        return self._log.path

    @property
    def device_id(self) -> str:
        """A random name for this device, or rather its state folder, under which servers keep its log lines."""
        return device_id(self._state_folder)

    def profile(self, *, again: bool = False, batch: int = 1, progress: Progress | None = None) -> Profile:
        """Cost of each block here for ``batch`` samples; measured once per bundle, runtime and condition, or ``again``.

        Raises:
            RuntimeFailedError, BlobError: a block does not load or run.
        """
        self._in_use.running()
        return self._measuring.profile(again=again, batch=batch, progress=progress or SilentProgress())

    def adapt(
        self,
        samples: npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image],
        labels: npt.NDArray[np.int64] | Sequence[int] | None,
        budget: Budget,
        *,
        settings: AdaptationSettings | None = None,
        live: bool = False,
        keep_samples: bool = False,
        progress: Progress | None = None,
    ) -> Adaptation:
        """Search for the most accurate subnet within ``budget`` on private data, and switch to it.

        ``samples``: raw images uint8 [count, height, width, channels], or a list of arrays or Pillow images of any
        sizes; ``labels``: class indices [count], or None: then the full model's answers stand in. The old plan serves
        until the new one is ready.
        ``live``: look for subnets of other latencies too, about as long again, and ``watch`` from then on; else an
        earlier watch ends. ``keep_samples``: in memory, until the next adaptation or ``close``, to search again live.

        Raises:
            InfeasibleBudgetError: no subnet fits; names the nearest. The plan in use stays.
            InputError: samples or labels are not what the model takes.
            UsageError: ``live`` without a latency budget, or the model is no classifier.
        """
        if live and not budget.limits_latency:
            raise UsageError("live update keeps a latency budget, and there is none", hint="set Budget(latency_ms=…)")
        self._in_use.running()
        self.bundle.require_whole("adapting")
        self._samples.require_classifier()
        progress = progress or SilentProgress()
        inputs = self._samples.inputs(samples)
        targets = None if labels is None else self._samples.labels(labels)
        settings = settings or AdaptationSettings()
        if budget.calls_per_second is None:
            budget = msgspec.structs.replace(budget, calls_per_second=self._pace.calls_per_second())
        with self._change:
            profile = self.profile(progress=progress)
            adaptation = self._measuring.search(profile, inputs, targets, budget, settings=settings, progress=progress)
            self._take(adaptation.plan)
            self._log.write(log_events.adapted(adaptation))
            private = PrivateSamples(inputs, targets, settings, profile)
            self._live.remember(adaptation, private, fill=live, keep=keep_samples, progress=progress)
            if live:
                self._live.start(None, LiveSettings())
        return adaptation

    def watch(self, budget: Budget | None = None, *, settings: LiveSettings | None = None, prior: bool = False) -> None:
        """Keep the latency budget while the device becomes slower and faster, with the subnets of the last adaptation.

        A thread watches how long single samples take, and exchanges the subnet for the most accurate that then fits.
        The next ``open`` starts with that of the adaptation. ``budget``: another one than the adaptation's. ``prior``:
        also estimate the mix of classes from the answers, and correct answers by it once it has surely changed, until
        ``stop_watching``; without an adaptation to a latency budget, do this alone. Counts are kept, no samples. While
        the network is followed the prior stays.

        Raises:
            UsageError: nothing was adapted to a latency budget here, or the plan in use is split or not of the pool;
                ``prior`` for a model that is no classifier.
        """
        self._in_use.running()
        if prior:
            self._samples.require_classifier()
        if not prior or budget is not None or self._state.load_pool() is not None:
            self.bundle.require_whole("live update")
            with self._change:
                self._live.start(budget, settings or LiveSettings())
        if prior and self._mix is None:
            self._mix = MixFollower(self._use_prior)
            self._mix.start()

    def stop_watching(self) -> None:
        """Stay with the plan in use, and with its prior. May be called twice."""
        self._live.stop()
        mix, self._mix = self._mix, None
        if mix is not None:
            mix.stop()

    @property
    def watching(self) -> bool:
        """True while live update keeps the budget."""
        return self._live.running

    def warm_up(self) -> None:
        """Run the plan in use once on zeros: the first call after ``open`` is then as quick as the next ones."""
        self._in_use.run_once(self._in_use.running().loaded)

    def calibrate(
        self,
        samples: npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image],
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
            UsageError: the model is no classifier.
        """
        self._in_use.running()
        self.bundle.require_whole("calibrating")
        self._samples.require_classifier()
        progress = progress or SilentProgress()
        settings = settings or CalibrationSettings()
        inputs = self._samples.inputs(samples)
        targets = None if labels is None else self._samples.labels(labels)
        with self._change:
            calibration = self._measuring.calibrate(inputs, targets, settings=settings, progress=progress)
            self._exchange(calibration.plan)
            self._live.follow()
            self._log.write(log_events.calibrated(calibration))
            self._live.calibrate(lambda subnet: self._calibrated(subnet, inputs, targets, settings, progress))
        return calibration

    def _calibrated(
        self,
        subnet: Subnet,
        inputs: Inputs,
        targets: npt.NDArray[np.int64] | None,
        settings: CalibrationSettings,
        progress: Progress,
    ) -> Plan:
        """The plan for another subnet of the pool, by the same samples and settings, its exits not timed."""
        quick = replace(settings, confirm=False)
        return self._measuring.calibrate(inputs, targets, settings=quick, progress=progress, subnet=subnet).plan

    def plan_for(
        self,
        samples: npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image],
        labels: npt.NDArray[np.int64] | Sequence[int] | None,
        requirement: Requirement,
        *,
        uplink: Uplink | None = None,
        power: Power | None = None,
        follow_network: bool = False,
        progress: Progress | None = None,
    ) -> Planned:
        """Choose among all kinds of plans for a requirement, and run the best from now on. Live update ends.

        Plans are made of the best rungs of the ladder, the subnets of the last adaptation, the one in use and the full
        model, with exits, deciders, abstention, and the connected servers: those are asked about all samples once, as
        far as their privacy settings allow.

        Args:
            samples, labels: as for ``adapt``, but others than those it searched on; without labels the server's answers
                stand in, or else the full model's.
            uplink: planned with instead of the measured one; see ``Uplink.typical``.
            power: of the device; without it energies are unknown.
            follow_network: keep bandwidth and round trip up to date from requests and probes, and plan again over the
                same answers when they change, until another plan is taken or another server connected. The next
                ``open`` starts with this plan; ``follow_network`` goes on from there.

        Raises:
            InfeasibleBudgetError: no plan keeps the requirement; names the nearest. The plan in use stays.
            InputError: samples or labels are not what the model takes.
            UsageError: the model is no classifier, or there is no server whose network could be followed.
        """
        self._in_use.running()
        self.bundle.require_whole("planning")
        self._samples.require_classifier()
        progress = progress or SilentProgress()
        targets = None if labels is None else self._samples.labels(labels)
        with self._change:
            planned = self._planning.plan(samples, targets, requirement, uplink=uplink, power=power, progress=progress)
            if follow_network:
                self._network.require(planned)
            self._take(planned.choice.plan)
            self._log.write(log_events.planned(planned, requirement))
            if follow_network:
                self._state.save_front(self._network.front(planned, requirement, power))
                self._network.start(
                    planned,
                    requirement,
                    power,
                    exchanged=self._followed(requirement, planned.samples),
                )
        return planned

    def plan_hybrid(
        self,
        samples: npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image],
        labels: npt.NDArray[np.int64] | Sequence[int],
        limit: float,
        *,
        resource: Resource = "macs",
        server: RemoteModel,
        others: Sequence[RemoteModel] = (),
        uplink: Uplink | None = None,
        power: Power | None = None,
        settings: JointSettings | None = None,
        progress: Progress | None = None,
    ) -> HybridChoice:
        """Choose a subnet for the device together with one for a server that has the same bundle, and run them.

        The hybrid cost, of the device's subnet and of the server's for the share of samples that is sent, keeps
        ``limit``. Subnets are those of the last adaptation and the full model, and others near them (Hybrid Alg. 4).

        Args:
            samples, labels: as for ``adapt``, but others than those it searched on.
            resource: what is limited: ``macs``, ``latency_ms`` or ``energy_mj``.
            server: where the bundle is; its ``model`` is replaced by the name of the path there, and connected.
            others: further models at servers that may be the global one; each is asked about all samples once. Their
                MACs are unknown.
            uplink: planned with instead of the measured one. power: of the device, for ``energy_mj``.

        Raises:
            InfeasibleBudgetError: no pair keeps the limit. The plan in use stays.
            InputError: samples or labels are not what the model takes.
            TransferError: a server does not answer that has to.
            UsageError: the model is no classifier, or the power is unknown.
        """
        self._in_use.running()
        self.bundle.require_whole("planning a hybrid")
        self._samples.require_classifier()
        with self._change:
            choice, asked = self._planning.plan_hybrid(
                samples,
                labels,
                limit,
                resource=resource,
                server=server,
                others=others,
                uplink=uplink,
                power=power,
                settings=settings or JointSettings(),
                progress=progress or SilentProgress(),
            )
            self._remote.connect(asked)
            self._take(choice.plan)
        return choice

    def follow_network(self) -> None:
        """Go on following the network after ``open``, with the plans that the last ``plan_for`` kept for networks.

        Connect the server first. Of the plans that were judged then, those are here that are the best on some network.
        If the network has changed, another one of them takes over within seconds. Live update ends.

        Raises:
            UsageError: ``plan_for`` never followed the network here, or no server is connected that the plans know.
        """
        self._in_use.running()
        with self._change:
            front = self._state.load_front()
            if front is None:
                raise UsageError(
                    "no plans for other networks are kept here", hint="plan with follow_network=True first"
                )
            self._live.stop()
            self._network.resume(front, exchanged=self._followed(front.requirement, front.samples))

    def _followed(self, requirement: Requirement, samples: int) -> Callable[[Choice, Uplink | None], None]:
        """Notes in the log that the network changed the plan."""
        return lambda choice, uplink: self._log.write(log_events.followed(choice, requirement, uplink, samples=samples))

    @property
    def exits(self) -> tuple[str, ...]:
        """The exits that are held here; ``bundle.offered`` has all that there are."""
        return self.bundle.exits

    def set_exits(self, exits: Collection[str], *, progress: Progress | None = None) -> None:
        """Hold exactly these exits from now on, also when the bundle is opened again.

        Blobs that are missing are fetched from the server that the bundle came from; new exits run their self-test.
        Calls in progress end with the plan that they began with; then plans are without the exits that went. New ones
        answer once ``calibrate`` or ``plan_for`` has put them into the plan. The network is no longer followed.

        Raises:
            UsageError: the bundle has no such exit.
            TransferError, BlobError, StorageError, SelfTestError: a new exit cannot be had; the old set stays.
        """
        self._in_use.running()
        with self._change:
            self._network.stop()  # it would make plans with exits that go
            self._exit_sets.exchange(exits, chosen_by="caller", progress=progress or SilentProgress())

    def place_exits(self, *, memory_kb: float | None = None, progress: Progress | None = None) -> PlacedExits:
        """Hold the exits worth their memory (MEEdge §3.3), as the server of the bundle chooses them.

        ``memory_kb``: for all branches, in kilobytes; None for no limit. If the server does not answer, or its answer
        does not hold, the device chooses among the exits that are here, and the result says why.

        Raises:
            UsageError: a negative memory.
            StorageError, SelfTestError: a new exit cannot be had; the old set stays.
        """
        self._in_use.running()
        limit = None if memory_kb is None else round(memory_kb * 1000)
        if limit is not None and limit < 0:
            raise UsageError(f"the memory for exits is {limit} bytes; it cannot be negative")
        with self._change:
            self._network.stop()
            return self._exit_sets.place(memory_bytes=limit, progress=progress or SilentProgress())

    def _test_exits_here(self, bundle: Bundle, exits: Collection[str]) -> None:
        run_self_test(self._in_use.workspace.of(bundle), exits=exits)

    def use(self, plan: Plan) -> None:
        """Run ``plan`` from now on, whatever a search or calibration found. Live update ends.

        A plan that needs a server which is not connected, or which the privacy setting keeps samples from, runs here
        alone, and the log of the process says so once; the samples concerned are marked ``fallback``.

        Raises:
            UsageError: it does not fit this bundle's graph, or it needs logits of a model that is no classifier; the
                plan in use stays.
        """
        self._in_use.running()
        self._require_decidable(plan)
        with self._change:
            self._take(plan)
        self._say_what_is_missing(plan)

    def use_hybrid(self, server: RemoteModel) -> None:
        """Run the plan that ``package --pair`` trained this bundle for, with the global model at ``server``.

        ``server.model`` is replaced by the model's name there.

        Raises:
            BundleError: the bundle is not the base of a hybrid.
        """
        plan = hybrid_plan(self.bundle)
        assert isinstance(plan.hard, Ask)
        self.connect(replace(server, model=plan.hard.server.model))
        self.use(plan)

    def connect(self, model: RemoteModel) -> None:
        """Let a server's model answer what the plan sends to it: hard samples, or with ``NAME:tail`` the rest of paths.

        Nothing is sent that ``model.privacy`` forbids: inputs need "inputs", activations "activations" or "inputs". An
        earlier connection of the same kind ends. A plan that was restored by ``open`` uses the server from here on.
        """
        self._in_use.running()
        self._network.stop()
        self._remote.connect(model)

    def pool_answers(
        self,
        samples: npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image],
        labels: npt.NDArray[np.int64] | Sequence[int],
        *,
        progress: Progress | None = None,
    ) -> LogarithmicPool | None:
        """Learn how to pool the connected server's answers with the device's own; hard samples get both from now on.

        The server is asked about all samples once. Not kept across ``open``: give it as ``RemoteModel(pool=…)``.
        Following the network ends; plan again to have plans judged with pooled answers.

        Args:
            samples, labels: as for ``adapt``, but others than those that a network learned from.

        Returns:
            The pool; None if the device's answers add nothing to the server's, which replace them then.

        Raises:
            InputError: samples or labels are not what the model takes.
            TransferError: the server does not answer. UsageError: none is connected, or the model is no classifier.
        """
        self._in_use.running()
        self._samples.require_classifier()
        with self._change:
            model, pool = self._planning.pool(
                samples, self._samples.labels(labels), progress=progress or SilentProgress()
            )
            self.connect(replace(model, pool=pool))
        return pool

    def _require_decidable(self, plan: Plan) -> None:
        if plan.exits or not isinstance(plan.hard, AnswerLocally):
            self._samples.require_classifier()

    def _say_what_is_missing(self, plan: Plan) -> None:
        missing = self._remote.why_not(plan)
        if missing is not None:
            alone = "the plan answers as its fallback says" if plan.is_head else "the plan runs on the device alone"
            _log.warning("%s: %s", alone, missing)

    def split(
        self,
        model: RemoteModel,
        *,
        uplink_mbps: float | None = None,
        memory_mb: float | None = None,
        storage_mb: float | None = None,
        max_drop: float | None = None,
        fallback: Fallback | None = None,
        samples: npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image] | None = None,
        labels: npt.NDArray[Any] | Sequence[int] | None = None,
        follow_network: bool = False,
        progress: Progress | None = None,
    ) -> SplitDecision:
        """Decide where the subnet in use crosses to the server that runs its tail, and run it so from now on.

        ``model``: ``NAME:tail`` at the server, with a ``privacy`` that allows activations to be sent; where it allows
        inputs and a drop is allowed, the input as JPEG (``NAME:jpeg``) competes. A few calls with noise measure what a
        call takes. Exits behind the split are given up. Live update ends. A device that holds a head only splits it
        where it can.

        Args:
            uplink_mbps: planned with instead of the measured uplink.
            memory_mb: limit of the device's part, weights as they are loaded and working set, with what answers as the
                fallback.
            storage_mb: limit of its weights as they are stored and sent.
            fallback: what answers when the server does not: the rest of the ``subnet``, the last ``exit`` before the
                cut, or nothing (``abstain``). By default the subnet where the memory allows it, else an exit if there
                is one.
            follow_network: move to another place, or to the device alone, when bandwidth, round trip or the load of the
                server change; ``follow_network`` goes on after the next ``open``.
            max_drop: limit of the score lost, 0–1, on ``samples`` with ``labels``: accuracy of classes, mIoU of maps
                [count, height, width], share of boxes found [count, most, 5]. Without ``labels`` what the subnet
                answers stands in. With a drop, 1 to 8 bits on the way are tried, and all renditions of the device's
                part.

        Raises:
            UsageError: an uplink of nothing, the privacy setting forbids to send activations, or nothing keeps the
                limits; the hint names the nearest.
            TransferError: the server has no profile, or serves another bundle.
        """
        self._in_use.running()
        with self._change:
            decision, front = self._planning.split(
                model,
                SplitWish(memory_mb, max_drop, samples, labels, storage_mb, fallback),
                uplink_mbps=uplink_mbps,
                follow=follow_network,
                progress=progress or SilentProgress(),
            )
            self._remote.connect(model)
            split = decision.plan.split
            if split is not None and split.is_whole:
                self._remote.connect(replace(model, model=split.server.model))
            self._take(decision.plan)
            self._log.write(log_events.split_chosen(decision))
            if front is not None:
                self._state.save_front(front)
                self._network.resume(front, exchanged=self._followed(front.requirement, front.samples))
        return decision

    def estimate_split(
        self,
        uplink: Uplink,
        *,
        memory_mb: float | None = None,
        storage_mb: float | None = None,
        max_drop: float | None = None,
        fallback: Fallback | None = None,
        samples: npt.NDArray[np.uint8] | Sequence[npt.NDArray[np.uint8] | Image.Image] | None = None,
        labels: npt.NDArray[Any] | Sequence[int] | None = None,
        device_factor: float = 1.0,
        progress: Progress | None = None,
    ) -> SplitDecision:
        """The same without a server: an estimate for one as fast as this device. The plan in use stays.

        ``device_factor``: k for a device k times slower than this one.

        Raises:
            UsageError: a limit or a factor is out of range, or nothing keeps the limits.
        """
        self._in_use.running()
        return self._planning.estimate_split(
            uplink,
            SplitWish(memory_mb, max_drop, samples, labels, storage_mb, fallback),
            device_factor=device_factor,
            progress=progress or SilentProgress(),
        )

    def disconnect(self) -> None:
        """Disconnect all servers: everything is answered here. Idempotent."""
        self._network.stop()
        self._remote.close()

    def _take(self, plan: Plan) -> None:
        self._exchange(plan, before=self._stop_following)

    def _use_prior(self, prior: Prior, answers: int, moved_share: float) -> None:
        """Correct answers by ``prior`` from now on, also those of the plan that the next ``open`` starts with."""
        with self._change:
            if self._network.running:  # its plans are judged under the prior that they were made with
                return
            active = self._in_use.running()
            plan = active.plan.with_prior(prior)
            loaded = self._in_use.prepare(plan)
            self._state.save_plan((self._state.load_plan() or plan).with_prior(prior))
            self._live.use_prior(prior)
            if not self._in_use.exchange(Active(plan, loaded), expected=active):
                loaded.close()  # live update came first, with a plan of the pool
                return
            self._live.follow()
            self._log.write(PriorChanged(answers=answers, moved_share=moved_share))

    def _stop_following(self) -> None:
        self._live.stop()
        self._network.stop()

    def _exchange(self, plan: Plan, *, before: Callable[[], None] = lambda: None) -> None:
        """Load the plan, store it, call ``before``, exchange it. If one of the first two fails, nothing changes.

        The old plan is freed after the last call that uses it returns.
        """
        self._in_use.lend_workspace()
        loaded = self._in_use.load(plan)
        self._in_use.running()
        self._state.save_plan(plan)
        before()
        self._in_use.exchange(Active(plan, loaded))

    def __call__(self, images: npt.NDArray[np.uint8] | Image.Image, *, deadline_ms: float | None = None) -> Answer:
        """Answer for raw images: one [h, w, channels] or grey [h, w], a batch [n, h, w, channels], or a Pillow image.

        ``deadline_ms``: as for ``infer``; the preparation of the images counts.

        Raises:
            InputError: not what the model takes; says what was expected.
            InfeasibleDeadlineError: as for ``infer``.
            ClosedError: the model was closed.
        """
        began_s = time.perf_counter()
        active = self._in_use.active or self._in_use.running()
        if deadline_ms is not None:
            tensor = self._samples.prepare(images, active.plan.subnet.input_size)
            return self._timed.by_deadline(tensor, deadline_ms, began_s=began_s)
        return self._answer(active, self._samples.prepare(images, active.plan.subnet.input_size), images)

    async def answer_async(self, images: npt.NDArray[np.uint8] | Image.Image) -> Answer:
        """The same for a coroutine: the call runs in a thread; raises as a call does."""
        self._in_use.running()
        return await self._async_calls.call(self, images)

    def prepare(self, images: npt.NDArray[np.uint8] | Image.Image) -> npt.NDArray[np.float32]:
        """Raw images as the model takes them at its own size: [batch, *input] float32, ready for ``infer``.

        Raises:
            InputError: not what the model takes.
        """
        return self._samples.prepare(images)

    def infer(self, tensor: Array, *, deadline_ms: float | None = None) -> Answer:
        """Answer for prepared tensors: float32 [batch, *input] or one sample [*input].

        At the model's own size, or at the input size of the plan in use. A plan for smaller inputs resizes the former.
        ``deadline_ms``: the answer is that of the plan's last exit, or of its end, that is sure to be there so long
        after the call; servers are not asked. The first such call measures the plan's exits, and its time begins then.

        Raises:
            InputError: another shape or type.
            InfeasibleDeadlineError: not even the first exit is sure to be in time; names the least deadline.
            ClosedError: the model was closed.
        """
        began_s = time.perf_counter()
        active = self._in_use.active or self._in_use.running()
        if deadline_ms is not None:
            tensor = self._samples.tensor(tensor, active.plan.subnet.input_size)
            return self._timed.by_deadline(tensor, deadline_ms, began_s=began_s)
        return self._answer(active, self._samples.tensor(tensor, active.plan.subnet.input_size), None)

    async def infer_async(self, tensor: Array) -> Answer:
        """The same for a coroutine: the call runs in a thread; raises as ``infer`` does."""
        self._in_use.running()
        return await self._async_calls.call(self.infer, tensor)

    def start(self, tensor: Array | Image.Image) -> Running:
        """Begin an anytime run in a thread of its own: ``with model.start(x) as running: … running.latest()``.

        Its exits answer one after the other; the best answer so far is there at any moment, and ``running.stop()``
        ends it. Servers are not asked. ``tensor``: prepared as for ``infer``, or raw images as for a call.

        Raises:
            InputError: not what the model takes.
            ClosedError: the model was closed.
        """
        return self._timed.start(self._any_input(tensor))

    def answer_times_ms(self, tensor: Array | Image.Image) -> dict[str, float]:
        """Time after the start of a run by which each answer is sure to be there, by source, in order.

        The first call measures the plan's exits for this batch size, so that later deadlines find them measured.
        """
        return self._timed.answer_times_ms(self._any_input(tensor))

    def _any_input(self, tensor: Array | Image.Image) -> Array:
        input_size = self._in_use.running().plan.subnet.input_size
        if isinstance(tensor, np.ndarray) and tensor.dtype != np.uint8:
            return self._samples.tensor(tensor, input_size)
        return self._samples.prepare(tensor, input_size)

    def _answer(self, active: Active, tensor: Array, images: npt.NDArray[np.uint8] | Image.Image | None) -> Answer:
        started = time.perf_counter()
        self._pace.note(started)
        while True:
            try:
                output, source = self._remote.answer(active.plan, active.loaded, tensor, images)
                break
            except PlanRetired:  # the memory cap sank
                active = self._in_use.instead_of(active)
        latency_ms = (time.perf_counter() - started) * 1e3
        if active.times is not None and source == (SUBNET,):  # the time of exits and servers is not the subnet's
            active.times.record(latency_ms)
        mix = self._mix
        if mix is not None:
            mix.note(output, active.plan.class_prior)
        return Answer(output, source, latency_ms, self._class_names, active.plan)

    def close(self) -> None:
        """Free the model, once the calls in progress have ended; answering then raises ClosedError.

        May be called twice.
        """
        self._in_use.close()
        if self._in_use.forked:  # locks and threads of the others stayed behind
            return
        self._elastic.stop()
        self._timed.close()
        self._stop_following()
        self.stop_watching()
        self._live.forget()
        self._async_calls.close()
        self._remote.close()

    def __enter__(self) -> AdaptiveModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
