"""``AdaptiveModel``: a bundle on a device, from opening it to its answers."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

import msgspec

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import UsageError
from device_sdk.execution.guarded_self_test import run_guarded_self_test
from device_sdk.execution.open_homes import ONE_HOME
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.execution.running_calls import CallPace, PlanRetired
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.logs import adaptation_log
from device_sdk.logs.adaptation_log import AdaptationLog, Opened
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.profiling.profile import Profile
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes.port import Array, Runtime
from device_sdk.runtimes.settings import RuntimeSettings
from device_sdk.session.answer import SUBNET, Answer, AsyncCalls, Running
from device_sdk.session.choosing import Choosing
from device_sdk.session.device_state import DeviceState, default_state_folder, device_id, load_part, log_path
from device_sdk.session.elastic_memory import ElasticMemory
from device_sdk.session.exits import Exits, Origin, TestExits
from device_sdk.session.homes import CheckedHomes, WantedHomes, check_homes, wanted_homes
from device_sdk.session.live import Live
from device_sdk.session.live_keeper import LiveKeeper, NetworkKeeper, PrivateSamples
from device_sdk.session.opening import UPDATE_DEADLINE_S, open_location, origin_of
from device_sdk.session.remote import Remote
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.samples import Labels, Raw, SampleChecker, Samples
from device_sdk.session.timed_answers import TimedAnswers
from device_sdk.signing.trust import UNSTATED, Trustable, Unstated
from device_sdk.supernet.cost import MB, Power, Uplink
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import AnswerLocally, Plan

if TYPE_CHECKING:
    from PIL import Image


_log = logging.getLogger(__name__)

_MOVED = {
    "adapt_async": "adapt in a thread",
    "answer_async": "acall(images)",
    "answer_times_ms": "exits.answer_times_ms(images)",
    "calibrate": 'adapt(samples, Goal(optimise="latency_ms", max_drop=0.005), consider={"exits"})',
    "connect": "remote.connect(model)",
    "disconnect": "remote.disconnect()",
    "estimate_split": 'adapt(samples, goal, consider={"split"}, uplink=Uplink(…), take=False)',
    "follow_network": 'live.start("network")',
    "infer_async": "acall(tensor)",
    "log_path": "log.path",
    "place_exits": "exits.place(memory_mb=…)",
    "plan_for": 'adapt(samples, Goal(…), consider={"subnets", "exits", "ask", …})',
    "plan_hybrid": 'adapt(samples, Goal(macs=…), consider={"hybrid"})',
    "pool_answers": "remote.pool(samples, labels)",
    "set_exits": "exits.hold(names)",
    "split": 'adapt(samples, Goal(optimise="latency_ms", max_drop=…), consider={"split"})',
    "start": "stream(images)",
    "stop_watching": "live.stop()",
    "stop_watching_memory": 'live.stop("memory")',
    "use_hybrid": "remote.use_hybrid(server)",
    "watch": 'live.start("latency")',
    "watch_memory": 'live.start("memory")',
    "watching": "live.running",
}


class AdaptiveModel:
    """A packaged model that runs here, and can be adapted to here. Make one with ``pathweave.open``.

    Calls may come from several threads; a call that has begun ends with the plan it began with. Of two threads that
    adapt the second waits. A process that is forked off afterwards cannot use it (ForkedError).

    Attributes:
        exits: which exits this device holds. remote: the servers' models that are connected. live: keeps the plan right
            while conditions change. log: the adaptation log of this bundle on this device. home_reports: of each home
            that has a provider of its own, what runs there, what it refuses and why; also of those left out.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        runtime: Runtime,
        state_folder: Path,
        memory_cap_bytes: int | None = None,
        homes: CheckedHomes | None = None,
        origin: Origin | None = None,
        test_exits: TestExits | None = None,
    ) -> None:
        self._runtime = runtime
        self.home_reports = () if homes is None else homes.reports
        open_homes = ONE_HOME if homes is None else homes.open
        self._opened = bundle
        self._homes_left_out = {} if homes is None else homes.left_out
        self._state_folder = state_folder
        self._state = DeviceState(state_folder, bundle, runtime, memory_cap_bytes=memory_cap_bytes)
        self.log = AdaptationLog(log_path(state_folder, bundle), bundle=bundle.digest, runtime=runtime.identity)
        self._samples = SampleChecker(bundle.manifest, bundle.read_blob)
        self._answers = RemoteAnswers(bundle, self.log)
        self._in_use = PlanInUse(Workspace(bundle, runtime, memory_cap_bytes, homes=open_homes))
        self._change = threading.Lock()  # held by what changes the plan on demand; calls never wait for it
        self._pool = LiveKeeper(self._state, self._in_use, self.log)
        self._network = NetworkKeeper(self._in_use, self._answers)
        self._choosing = Choosing(self._state, self._in_use, self._samples, self._answers, self.log)
        self._task = bundle.manifest.task
        self._timed = TimedAnswers(self._in_use, self._task)
        self.exits = Exits(
            state_folder,
            self._state,
            self._in_use,
            self._pool,
            self.log,
            origin=origin,
            test=test_exits or self._test_exits_here,
            change=self._change,
            before=self._network.stop,  # it would make plans with exits that go
            samples=self._samples,
            timed=self._timed,
        )
        self.remote = Remote(
            self._in_use,
            self._answers,
            self._choosing,
            self._change,
            before=self._network.stop,
            use=weakref.WeakMethod(self.use),
        )
        self._elastic = ElasticMemory(self._state, self._in_use, self._pool, self.log)
        self.live = Live(
            self._state,
            self._in_use,
            self._samples,
            self._pool,
            self._network,
            self._elastic,
            self.log,
            self._change,
        )
        self._async_calls = AsyncCalls()
        self._pace = CallPace()

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        trust: Trustable | Unstated = UNSTATED,
        token: str | None = None,
        allow_rollback: bool = False,
        tags: Mapping[str, str] | None = None,
        update_deadline_s: float = UPDATE_DEADLINE_S,
        runtime: str = "onnxruntime",
        threads: int = 1,
        provider: str | None = None,
        homes: WantedHomes = None,
        provider_options: Mapping[str, Mapping[str, str]] | None = None,
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
        under its version. ``tags``: of this device, such as its region: a server chooses by them, and by this device's
        random name, whom a release goes to first. ``update_deadline_s``: for fetching, where there is a last good
        bundle; what came by then is kept. ``provider``: of the runtime, such as ``CUDAExecutionProvider``; one that is
        not here is refused, never replaced silently. ``homes``: instead of ``threads`` and ``provider``, several places
        where blocks may run, such as ``["cpu-1t", "cpu-2t", "openvino-2t"]``, or "all": each is checked once, one that
        fails is left out, and plans name the best home of every block (docs/guide/homes.md). The full model runs at
        the first. ``provider_options``: by provider, before those of this SDK. ``spin_us``: microseconds for which each
        of several threads waits on the processor before it sleeps: shorter calls for more power
        (docs/guide/profiling.md). ``memory_cap_mb``:
        for all that is loaded, beyond the bare runtime; a plan that needs more runs in pages (docs/guide/memory.md).
        ``exits``: those to begin with, for example none: blobs of the others are not fetched (default: all); later the
        set that was held last opens again. ``plan``: runs from now on, and only what it needs on this device is fetched
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
        settings = RuntimeSettings(
            runtime,
            threads,
            provider,
            lean=cap_bytes is not None,
            spin_us=spin_us,
            cache_folder=str((folder / "engines").resolve()),
            homes=wanted_homes(homes),
            provider_options={name: dict(given) for name, given in (provider_options or {}).items()},
        )
        first = settings.first
        engine = first.make()
        bundle, delivery = open_location(
            location,
            trust=trust,
            token=token,
            allow_rollback=allow_rollback,
            tags=tags,
            update_deadline_s=update_deadline_s,
            runtime=engine,
            settings=first,
            accepts=settings.accepts,
            state_folder=folder,
            exits=exits,
            plan=plan,
            memory_cap_bytes=cap_bytes,
            progress=progress,
        )

        checked = check_homes(bundle, settings, engine, folder, progress=progress)

        def test_exits(held: Bundle, names: Collection[str]) -> None:
            run_guarded_self_test(held, checked.runtime, first, exits=names, memory_cap_bytes=cap_bytes)

        model = cls(
            checked.bundle,
            runtime=checked.runtime,
            state_folder=folder,
            memory_cap_bytes=cap_bytes,
            homes=checked,
            origin=origin_of(location, state_folder=folder, token=token),
            test_exits=test_exits,
        )
        model._opened = bundle  # holds the lease of its blobs
        if delivery is not None:
            model.log.write(adaptation_log.delivered(delivery))
            if delivery.refused is not None:
                model.log.write(adaptation_log.refused(delivery.refused, delivery.failure))
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
        homes = tuple(map(str, self._in_use.workspace.homes.homes))
        self.log.write(
            Opened(
                subnet=str(plan.subnet),
                restored=remembered is not None,
                plans_for=others,
                homes=homes,
                homes_left_out=self._homes_left_out,
            )
        )

    def __getattr__(self, name: str) -> object:
        if name in _MOVED:
            raise AttributeError(f"AdaptiveModel.{name} is now {_MOVED[name]}")
        raise AttributeError(f"AdaptiveModel has no attribute {name!r}")

    @property
    def bundle(self) -> Bundle:
        """The opened bundle, with the exits that are held now."""
        return self._in_use.workspace.bundle

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self._in_use.running().plan

    @property
    def device_id(self) -> str:
        """A random name for this device, or rather its state folder, under which servers keep its log lines."""
        return device_id(self._state_folder)

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

    def profile(self, *, again: bool = False, batch: int = 1, progress: Progress | None = None) -> Profile:
        """Cost of each block here for ``batch`` samples; measured once per bundle, runtime and condition, or ``again``.

        Raises:
            RuntimeFailedError, BlobError: a block does not load or run.
        """
        self._in_use.running()
        return self._choosing.profile(again=again, batch=batch, progress=progress or SilentProgress())

    def adapt(
        self,
        samples: Samples | None,
        goal: Goal,
        consider: Collection[str] | None = None,
        labels: Labels | None = None,
        *,
        take: bool = True,
        settings: AdaptationSettings | None = None,
        uplink: Uplink | None = None,
        power: Power | None = None,
        progress: Progress | None = None,
    ) -> Found:
        """Find the best plan for ``goal`` on private data, and switch to it. The old one serves until it is ready.

        Some of the samples are held back: they judge what the others choose. If the adaptation fails or is interrupted,
        the plan in use stays. Following the latency or the network ends, but for exits that are chosen for the subnet
        in use.

        Args:
            samples: raw images uint8 [count, height, width, channels], or a list of arrays or Pillow images of any
                sizes, prepared when they are needed. None for a split without a limit of the score.
            consider: kinds of plans, of ``subnets``, ``exits``, ``abstain``, ``ask``, ``split`` and ``hybrid``. By
                default subnets, abstention where the goal's coverage allows it, and what connected servers make
                possible. Without ``subnets`` the one in use stays. ``split`` alone also tries 1 to 8 bits per value
                sent, all renditions of the device's part and the input as JPEG where the goal allows a drop. A server
                is asked about all samples once, as far as its privacy setting allows.
            labels: class indices [count], or the targets of another task (``device_sdk.tasks``): maps of classes for
                segmentation, boxes for detection, whose subnets are searched within a budget. None: the server's
                answers stand in, or the full model's, or without ``subnets`` those of the one in use.
            take: switch to the plan; otherwise the one in use stays.
            uplink: planned with instead of the measured one; see ``Uplink.typical``. With it a split is estimated
                where no server is connected, for one as fast as this device.
            power: of the device; without it energies are unknown.

        Raises:
            InfeasibleBudgetError: no plan keeps the goal; names the nearest.
            BudgetError: the goal limits nothing that the kinds know.
            InputError: samples or labels are not what the model takes.
            TransferError: a server does not answer that has to.
            UsageError: a kind that lacks what it needs, such as a server or a classifier.
        """
        self._in_use.running()
        progress, settings = progress or SilentProgress(), settings or AdaptationSettings()
        if settings.fill_pool and not goal.limits_latency:
            raise UsageError("live update keeps a latency budget, and there is none", hint="set Goal(latency_ms=…)")
        if goal.calls_per_second is None and goal.limits_latency:
            goal = msgspec.structs.replace(goal, calls_per_second=self._pace.calls_per_second())
        started_s = time.monotonic()
        with self._change:
            kinds = self._choosing.kinds(consider, goal, estimates=uplink is not None and not take)
            found, asked = self._choosing.choose(
                samples, labels, goal, kinds, settings=settings, uplink=uplink, power=power, progress=progress
            )
            found = replace(found, seconds=time.monotonic() - started_s)
            if not take:
                return found
            if asked is not None:
                self._answers.connect([asked])
            keeps_subnet = kinds == {"exits"} and "latency" in self.live.running
            self._exchange(found.plan, before=self._network.stop if keeps_subnet else self._stop_following)
            self.log.write(adaptation_log.chosen(found))
            self.live.offer(found)
            if keeps_subnet:
                self._pool.follow()
                self._pool.give_exits(lambda one: self._choosing.exits_for(one, samples, labels, goal, settings))
            elif found.pool:
                inputs = self._samples.inputs(samples)
                targets = self._choosing.targets(labels, len(inputs))
                private = PrivateSamples(inputs, targets, settings, self._choosing.profile(progress=progress))
                self._pool.remember(found, private, progress=progress)
        return found

    def use(self, plan: Plan) -> None:
        """Run ``plan`` from now on, whatever ``adapt`` found. Live update ends.

        A plan that needs a server which is not connected, or which the privacy setting keeps samples from, runs here
        alone, and the log of the process says so once; the samples concerned are marked ``fallback``.

        Raises:
            UsageError: it does not fit this bundle's graph, or it needs logits of a model that is no classifier; the
                plan in use stays.
        """
        self._in_use.running()
        self._require_decidable(plan)
        with self._change:
            self._exchange(plan, before=self._stop_following)
        self._say_what_is_missing(plan)

    def _require_decidable(self, plan: Plan) -> None:
        if plan.exits or not isinstance(plan.hard, AnswerLocally):
            self._samples.require_classifier()

    def _say_what_is_missing(self, plan: Plan) -> None:
        missing = self._answers.why_not(plan)
        if missing is not None:
            alone = "the plan answers as its fallback says" if plan.is_head else "the plan runs on the device alone"
            _log.warning("%s: %s", alone, missing)

    def _stop_following(self) -> None:
        self._pool.stop()
        self._network.stop()

    def _test_exits_here(self, bundle: Bundle, exits: Collection[str]) -> None:
        run_self_test(self._in_use.workspace.of(bundle), exits=exits)

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

    def warm_up(self) -> None:
        """Run the plan in use once on zeros: the first call after ``open`` is then as quick as the next ones."""
        self._in_use.run_once(self._in_use.running().loaded)

    def __call__(self, samples: Raw, *, deadline_ms: float | None = None) -> Answer:
        """Answer for raw samples, one or several, as the model takes them.

        Images: one [h, w, channels] or grey [h, w], a batch [n, h, w, channels], or a Pillow image. Texts: a str or a
        list of them. Sounds: an array [samples] or a list of them. An array of float32 is a prepared tensor, as for
        ``infer``. ``deadline_ms``: as for ``infer``; the preparation of the samples counts.

        Raises:
            InputError: not what the model takes; says what was expected.
            InfeasibleDeadlineError: as for ``infer``.
            ClosedError: the model was closed.
        """
        if self._samples.is_tensor(samples):
            return self.infer(samples, deadline_ms=deadline_ms)
        began_s = time.perf_counter()
        active = self._in_use.active or self._in_use.running()
        tensor = self._samples.prepare(samples, active.plan.subnet.input_size)
        if deadline_ms is not None:
            return self._timed.by_deadline(tensor, deadline_ms, began_s=began_s)
        return self._answer(active, tensor, samples, samples)

    async def acall(self, samples: Raw) -> Answer:
        """The same for a coroutine: the call runs in a thread; raises as a call does."""
        self._in_use.running()
        return await self._async_calls.call(self, samples)

    def prepare(self, samples: Raw) -> Array:
        """Raw samples as the model takes them at its own size: [batch, *input], ready for ``infer``.

        Raises:
            InputError: not what the model takes.
        """
        return self._samples.prepare(samples)

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
        return self._answer(active, self._samples.tensor(tensor, active.plan.subnet.input_size), None, tensor)

    def stream(self, images: Array | Image.Image) -> Running:
        """Begin an anytime run in a thread of its own: ``with model.stream(image) as run: … run.latest()``.

        Its exits answer one after the other; the best answer so far is there at any moment, and ``run.stop()`` ends it.
        Servers are not asked. ``images``: raw as for a call, or prepared as for ``infer``.

        Raises:
            InputError: not what the model takes.
            ClosedError: the model was closed.
        """
        return self._timed.start(self._samples.either(images, self._in_use.running().plan.subnet.input_size))

    def _answer(
        self,
        active: Active,
        tensor: Array,
        raw: Raw | None,
        given: Raw,
    ) -> Answer:
        at_size = partial(self._samples.some, given)
        started = time.perf_counter()
        self._pace.note(started)
        while True:
            try:
                output, source = self._answers.answer(active.plan, active.loaded, tensor, raw, at_size)
                break
            except PlanRetired:  # the memory cap sank
                active = self._in_use.instead_of(active)
        latency_ms = (time.perf_counter() - started) * 1e3
        if active.times is not None and source == (SUBNET,):  # the time of exits and servers is not the subnet's
            active.times.record(latency_ms)
        self.live.note(output, active.plan.class_prior)
        return Answer(output, source, latency_ms, self._task, active.plan)

    def close(self) -> None:
        """Free the model, once the calls in progress have ended; answering then raises ClosedError.

        May be called twice.
        """
        self._in_use.close()
        if self._in_use.forked:  # locks and threads of the others stayed behind
            return
        self.live.stop()
        self._timed.close()
        self._pool.forget()
        self._async_calls.close()
        self._answers.close()

    def __enter__(self) -> AdaptiveModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
