"""``AdaptiveModel``: a bundle on a device, from opening it to its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from device_sdk.adaptation import Adaptation, AdaptationSettings
from device_sdk.adaptation import adapt as run_adaptation
from device_sdk.adaptation_log import AdaptationLog, Adapted, Infeasible, Opened, Profiled
from device_sdk.bundle import Bundle
from device_sdk.cost import Budget
from device_sdk.device_state import DeviceState, default_state_folder, log_path
from device_sdk.errors import ClosedError, InfeasibleBudgetError, InputError, UsageError
from device_sdk.graph import Plan
from device_sdk.preprocessing import prepare
from device_sdk.profiling import Profile
from device_sdk.profiling import profile as run_profile
from device_sdk.progress import Progress, SilentProgress
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.self_test import run_self_test

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Answer:
    """The answer to a batch (a single image is a batch of one).

    ``output``: logits [batch, classes]; ``source``: who answered each sample, ``subnet`` for all as yet;
    ``latency_ms``: of the whole call.
    """

    output: Array
    source: tuple[str, ...]
    latency_ms: float
    class_names: tuple[str, ...]

    @cached_property
    def confidence(self) -> npt.NDArray[np.float64]:
        """The highest softmax probability of each sample, [batch]."""
        logits = self.output.astype(np.float64)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return np.asarray(powers.max(axis=1) / powers.sum(axis=1))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The name of the most probable class of each sample."""
        return tuple(self.class_names[index] for index in self.output.argmax(axis=1))


@dataclass(frozen=True)
class _Active:
    """A plan and the model that runs it: exchanged as one, so that no call sees half of a switch."""

    plan: Plan
    loaded: LoadedStretch
    source: str


class AdaptiveModel:
    """A packaged model that runs here, and can be adapted to here. Make one with ``AdaptiveModel.open``.

    Calls may come from several threads; a call that has begun ends with the plan it began with.
    """

    def __init__(self, bundle: Bundle, *, runtime: str, threads: int, state_folder: Path) -> None:
        self._bundle = bundle
        self._runtime = make_runtime(runtime, threads=threads)
        self._state = DeviceState(state_folder, bundle, self._runtime)
        self._log = AdaptationLog(log_path(state_folder, bundle), bundle=bundle.digest, runtime=self._runtime.identity)
        self._change = threading.Lock()  # held by what changes the plan; calls never wait for it
        self._exchange = threading.Lock()  # guards writes to _active, so that nothing reopens a closed model
        self._active: _Active | None = None

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        trust: str | Path | None = None,
        runtime: str = "onnxruntime",
        threads: int = 1,
        state_folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> AdaptiveModel:
        """Open the bundle in a folder and make it ready to answer.

        With ``trust``, a public key, an unsigned or wrongly signed bundle is refused. The first time, every block runs
        its self-test. Starts with the plan that the last adaptation on this device chose, else with the full model.
        ``state_folder``: where profiles, the plan and the log are kept (default: the user's folder for state).

        Raises:
            BundleError: the bundle cannot be used (a kind of it says why).
            StorageError: the state folder cannot be written.
        """
        bundle = Bundle.open(location, trust=trust)
        folder = Path(state_folder) if state_folder is not None else default_state_folder()
        model = cls(bundle, runtime=runtime, threads=threads, state_folder=folder)
        if not model._state.self_test_passed():
            run_self_test(bundle, model._runtime, progress=progress)
            model._state.remember_self_test()
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
            self._bundle.supernet.check(plan.subnet)
        except UsageError:
            return None
        return plan

    def _load(self, plan: Plan) -> _Active:
        return _Active(plan, self._runtime.load(self._bundle.stretch(plan.subnet.edges)), source="subnet")

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
        predict = profile.cost_model().latency_ms
        errors = [abs(predict(one.subnet) / one.measured_ms - 1) for one in profile.fitted]
        self._log.write(
            Profiled(
                original_ms=profile.original_ms,
                scale=profile.scale,
                offset_ms=profile.offset_ms,
                median_error=float(np.median(errors)),
            )
        )
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
        inputs = self._prepare_all(samples)
        targets = None if labels is None else self._checked_labels(labels)
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
                self._log.write(_infeasible_event(budget, error))
                raise
            self._switch(adaptation.plan)
            self._state.save_plan(adaptation.plan)
            self._log.write(_adapted_event(adaptation))
        return adaptation

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
        return self.infer(self.prepare(images))

    def prepare(self, images: npt.NDArray[np.uint8] | Image.Image) -> npt.NDArray[np.float32]:
        """Raw images as the model takes them: [batch, *input] float32, ready for ``infer``.

        Raises:
            InputError: not what the model takes.
        """
        shape = self._bundle.supernet.cut_points[0].tensors[0].shape
        if len(shape) != 3:
            raise InputError(f"the model takes tensors [batch, {_joined(shape)}], not images", hint="use model.infer")
        return prepare(images, self._bundle.manifest.preprocessing, input_shape=(shape[0], shape[1], shape[2]))

    def infer(self, tensor: Array) -> Answer:
        """Answer for prepared tensors: float32 [batch, *input] or one sample [*input].

        Raises:
            InputError: another shape or type.
            ClosedError: the model was closed.
        """
        started = time.perf_counter()
        active = self._running()
        outputs = active.loaded.run([self._checked(tensor)])
        return Answer(
            output=outputs[-1],
            source=(active.source,) * len(outputs[-1]),
            latency_ms=(time.perf_counter() - started) * 1e3,
            class_names=self._bundle.manifest.task.class_names,
        )

    def close(self) -> None:
        """Free the model, once the calls in progress have ended; answering then raises ClosedError.

        May be called twice.
        """
        with self._exchange:
            self._active = None

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

    def _prepare_all(self, samples: Any) -> npt.NDArray[np.float32]:
        if isinstance(samples, np.ndarray):
            return self.prepare(samples)
        if not len(samples):
            raise InputError("there are no samples to adapt on")
        return np.concatenate([self.prepare(sample) for sample in samples])

    def _checked_labels(self, labels: Any) -> npt.NDArray[np.int64]:
        array = np.asarray(labels)
        classes = len(self._bundle.manifest.task.class_names)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"labels must be class indices [count], got {array.dtype} {array.shape}")
        if len(array) and not (array.min() >= 0 and array.max() < classes):
            raise InputError(f"labels must lie between 0 and {classes - 1}")
        return array.astype(np.int64)

    def _checked(self, tensor: Array) -> Array:
        spec = self._bundle.supernet.cut_points[0].tensors[0]
        if not isinstance(tensor, np.ndarray):
            raise InputError(f"expected a numpy array, got {type(tensor).__name__}")
        if tensor.shape == spec.shape:
            tensor = tensor[np.newaxis]
        if tensor.shape[1:] != spec.shape or len(tensor) == 0:
            raise InputError(f"expected a tensor of shape [batch, {_joined(spec.shape)}], got {list(tensor.shape)}")
        if tensor.dtype != spec.dtype:
            raise InputError(f"expected {spec.dtype}, got {tensor.dtype}", hint="raw images go to model(x)")
        return tensor


def _joined(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _adapted_event(adaptation: Adaptation) -> Adapted:
    return Adapted(
        budget_latency_ms=adaptation.budget.latency_ms,
        budget_memory_mb=adaptation.budget.memory_mb,
        subnet=str(adaptation.subnet),
        predicted_ms=adaptation.predicted_ms,
        measured_ms=adaptation.measured_ms,
        predicted_peak_bytes=adaptation.predicted_peak_bytes,
        accuracy_search=adaptation.accuracy_search,
        accuracy_holdout=adaptation.accuracy_holdout,
        samples=adaptation.search_samples,
        subnets_evaluated=adaptation.subnets_evaluated,
        seconds=adaptation.seconds,
        stopped=adaptation.stopped,
    )


def _infeasible_event(budget: Budget, error: InfeasibleBudgetError) -> Infeasible:
    return Infeasible(
        budget_latency_ms=budget.latency_ms,
        budget_memory_mb=budget.memory_mb,
        nearest=" ".join(error.nearest),
        nearest_latency_ms=error.nearest_latency_ms,
    )
