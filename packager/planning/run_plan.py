"""Allocates a run's minutes and memory: refuses too little, gives training the time that other steps leave, and times
each step for progress and report.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import msgspec
import torch

from device_sdk.errors import UsageError
from device_sdk.machine import memory_bytes, peak_resident_bytes, resident_bytes
from device_sdk.progress import Progress, Task
from packager.inputs.job import Job
from packager.output.checkpoints import Checkpoints
from packager.planning.estimate import TRAIN, VALIDATE, WRITE, Estimate, Estimator, Size, measured_machine
from packager.renditions.calibration import LEAST_SAMPLES
from packager.supernet.expansion import Expansion
from packager.torch_device import resolve_device

LOGGER = logging.getLogger(__name__)
_MARGIN = 1.1  # on the seconds reserved for the steps after training
_VALIDATION_SHARE = 0.15  # maximum, of the budget
_SHARE_OF_MACHINE = 0.5
_WITHOUT_KNOWING = 4_000_000_000  # default where the system does not report its memory
_BEAT_S = 1.0
_MOST = 0.95  # of the bar, while a step runs


def estimator_for(job: Job, expansion: Expansion, examples: torch.Tensor) -> Estimator:
    """An estimator for the model on this machine, measured with ``examples`` [batch, *input]."""
    return Estimator(
        recipe=job.recipe,
        size=Size.of(expansion),
        machine=measured_machine(expansion, examples),
        training_samples=len(job.training),
        validation_samples=len(job.validation),
        examples=len(examples),
    )


def estimated(estimator: Estimator, memory_bytes: int | None, *, spent: float) -> dict[str, object]:
    """The output of ``--dry-run``: the estimate, and the memory limit that it assumes."""
    limit = memory_limit(None) if memory_bytes is None else memory_bytes
    estimate = estimator.estimate(memory_bytes=limit, resident_bytes=memory_in_use(), spent=spent)
    return estimate.described(spent) | {"memory_limit_gb": round(limit / 1e9, 2)}


def within_limits(job: Job, *, recalibrate: int) -> Job:
    """The job with at most ``recalibrate`` batches for recalibration; 0 means no limit."""
    wanted = job.recipe.recalibrate_batches
    if not recalibrate or wanted == 0 or recalibrate >= (wanted or 30):
        return job
    return replace(job, recipe=msgspec.structs.replace(job.recipe, recalibrate_batches=recalibrate))


class RunPlan:
    """The estimate of a run, corrected after each step, and the budget of each step.

    Raises:
        UsageError: the minutes or the memory are below the minimum; names it. Not raised for a resumed run.
    """

    def __init__(
        self,
        job: Job,
        expansion: Expansion,
        examples: torch.Tensor,
        memory_bytes: int | None,
        checkpoints: Checkpoints,
    ) -> None:
        self._job = job
        self._limit = memory_limit(None) if memory_bytes is None else memory_bytes
        minutes = job.recipe.budget_minutes
        self._budget = MinutesLimit(None if minutes is None else 60 * minutes, lambda: checkpoints.seconds)
        self._resident = memory_in_use()
        self._estimator = estimator_for(job, expansion, examples)
        self.now = self._estimate()
        self.notes: tuple[str, ...] = ()
        if checkpoints.state is None:
            self._require_enough()
        self._bound_training()

    def announce(self) -> None:
        """Log the estimate."""
        said = self.now.described(self._budget.spent)
        LOGGER.info("estimate: %s", ", ".join(f"{name} {value}" for name, value in said.items()))

    def settle(self, expansion: Expansion) -> None:
        """Estimate again for ``expansion``, from which blocks may have been dropped."""
        self._estimator = replace(self._estimator, size=Size.of(expansion))
        self.now = self._estimate()

    @contextlib.contextmanager
    def step(self, times: StepTimes, name: str) -> Iterator[None]:
        """Time a step; its seconds correct the estimate of later ones."""
        with times.whole(name, expected_s=self.now.seconds[name]):
            yield
        self.learn(name, times.of(name))

    def learn(self, step: str, took: float) -> None:
        """Correct the estimate by the measured time of a step."""
        self._estimator = self._estimator.corrected(step, expected=self.now.seconds[step], took=took)
        self.now = self._estimate()

    def training_seconds(self) -> float:
        """Seconds for training: all that later steps do not need."""
        kept = _MARGIN * self.now.after_training
        if self._budget.seconds is not None:
            most = _VALIDATION_SHARE * self._budget.seconds
            kept -= max(0.0, self.now.seconds[VALIDATE] - max(most, self.now.least_validation_s))
        return self._budget.left(after=kept)

    @property
    def recalibrate_batches(self) -> int:
        """The limit for recalibration; 0 for none, with the recipe's own number or without tuning."""
        return self.now.recalibrate_batches if 0 < self.training_seconds() < math.inf else 0

    def calibration_samples(self) -> int:
        """Samples for calibration, fewer if time is short."""
        wanted, seconds = self.now.calibration_samples, self.now.seconds
        if "int8" not in seconds or self._budget.seconds is None:
            return wanted
        others = [seconds[kind] for kind in ("fp16", "htp", "xnnpack") if kind in seconds]
        left = self._budget.left(after=seconds[WRITE] + self.now.least_validation_s + sum(others))
        return max(min(LEAST_SAMPLES, wanted), math.floor(wanted * min(1.0, left / max(seconds["int8"], 1e-9))))

    def validation_seconds(self) -> float:
        """Seconds for validation."""
        return self._budget.left(after=_MARGIN * self.now.seconds[WRITE])

    def _estimate(self) -> Estimate:
        return self._estimator.estimate(
            memory_bytes=self._limit, resident_bytes=self._resident, spent=self._budget.spent
        )

    def _require_enough(self) -> None:
        least, seconds = self.now.least_seconds, self._budget.seconds
        if seconds is not None and least > seconds:
            raise UsageError(
                f"{seconds / 60:g} minutes are too few for this model",
                hint=f"it takes at least {_up(least / 60)} minutes without any training; --steps 0 has no time limit",
            )
        if self.now.least_bytes > self._limit:
            raise UsageError(
                f"{self._limit / 1e9:.2g} GB of memory are too few for this model",
                hint=f"it takes at least {_up(self.now.least_bytes / 1e9)} GB: give --memory-gb",
            )

    def _bound_training(self) -> None:
        """Limit the training batch to the memory; only on the CPU, since an accelerator has its own memory."""
        if resolve_device(self._job.recipe.device).type != "cpu":
            self.now = replace(self.now, training_batch=0)
            return
        batch = self.now.training_batch
        if self.now.seconds[TRAIN] > 0 and batch < self._job.recipe.largest_batch:
            wanted, limit = self._job.recipe.largest_batch, self._limit / 1e9
            self.notes = (f"trained with batches of {batch} instead of {wanted}, to stay below {limit:.2g} GB",)


def _up(value: float) -> str:
    """Rounded up to one decimal."""
    return f"{math.ceil(10 * value) / 10:g}"


class MinutesLimit:
    """The wall time of a run in ``seconds``, None for no limit; ``spent``: returns the seconds used so far."""

    def __init__(self, seconds: float | None, spent: Callable[[], float]) -> None:
        self.seconds = seconds
        self._spent = spent

    @property
    def spent(self) -> float:
        """Seconds so far."""
        return self._spent()

    def left(self, *, after: float = 0.0) -> float:
        """Seconds left, with ``after`` reserved at the end; infinite without a budget, at least 0."""
        return math.inf if self.seconds is None else max(0.0, self.seconds - after - self._spent())


def memory_limit(gigabytes: float | None) -> int:
    """The limit in bytes, by default half of the memory of the machine or container.

    Raises:
        UsageError: it is not a positive number.
    """
    if gigabytes is None:
        return int(_SHARE_OF_MACHINE * (memory_bytes() or _WITHOUT_KNOWING))
    if not 0 < gigabytes < math.inf:
        raise UsageError(f"{gigabytes:g} GB is not a limit for memory", hint="give a number above 0")
    return int(gigabytes * 1e9)


def memory_in_use() -> int:
    """Resident memory of this process; its peak if the system reports only that, 0 if it reports nothing."""
    return resident_bytes() or peak_resident_bytes() or 0


class StepTimes:
    """A ``Progress`` that wraps ``shown`` and records the seconds of each task by name."""

    def __init__(self, shown: Progress, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._shown = shown
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of each finished step, in order of their start."""
        return {name: round(seconds, 2) for name, seconds in self._seconds.items()}

    def of(self, name: str) -> float:
        """Seconds of the step ``name``, 0 if there was none."""
        return self._seconds.get(name, 0.0)

    @contextlib.contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Task]:
        """Start a task of ``total`` units."""
        started = self._clock()
        self._seconds.setdefault(name, 0.0)
        LOGGER.info("%s …", name)
        try:
            with self._shown.task(name, total, done=done) as task:
                yield task
        finally:
            took = self._clock() - started
            self._seconds[name] += took
            LOGGER.info("%s: %.1f s", name, took)

    @contextlib.contextmanager
    def whole(self, name: str, *, expected_s: float | None = None) -> Iterator[None]:
        """A step without progress of its own: shows its seconds, relative to ``expected_s`` if given."""
        with self.task(name, 1.0) as task, _Beat(task, expected_s):
            yield


class _Beat:
    """Advances a progress bar once a second from its own thread."""

    def __init__(self, task: Task, expected_s: float | None) -> None:
        self._task = task
        self._expected_s = expected_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._shown = 0.0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._task.advance(1.0 - self._shown)

    def _run(self) -> None:
        started = time.monotonic()
        while not self._over.wait(_BEAT_S):
            elapsed = time.monotonic() - started
            share = min(_MOST, elapsed / self._expected_s) if self._expected_s else self._shown
            self._task.note(f"{elapsed:.0f} s" + (f" of about {self._expected_s:.0f}" if self._expected_s else ""))
            self._task.advance(max(0.0, share - self._shown))
            self._shown = max(share, self._shown)
