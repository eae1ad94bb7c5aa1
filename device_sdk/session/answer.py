"""Answers, anytime runs, and calls of coroutines."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.manifest import Task
from device_sdk.errors import NoAnswerYetError
from device_sdk.runtimes.port import Array, StopSignal
from device_sdk.supernet.deciders.port import confidence
from device_sdk.supernet.plan import Plan
from device_sdk.tasks import answer_task
from device_sdk.tasks.port import Prediction

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

SUBNET, SERVER, FALLBACK, ABSTAINED, CASCADE = "subnet", "server", "fallback", "abstained", "cascade"


@dataclass(frozen=True)
class Answer:
    """The answer to a batch (a single image is a batch of one).

    ``output``: logits [batch, classes], or what else ``task`` says; ``source``: where each answer comes from:
    ``exit <id>``, ``subnet``, ``cascade`` (its second path), ``server``, ``fallback`` (the subnet or an exit in place
    of a server that did not answer) or ``abstained`` (the plan gives no answer; the logits are the subnet's, or no
    numbers where nothing was computed); ``latency_ms``: of running the plan, without the preparation of raw images,
    but for that of a cascade's second path; ``plan``: the one that ran.
    """

    output: Array
    source: tuple[str, ...]
    latency_ms: float
    task: Task
    plan: Plan

    @cached_property
    def confidence(self) -> npt.NDArray[np.float64]:
        """The highest softmax probability of each sample, [batch]; NaN where its logits are not numbers."""
        with np.errstate(invalid="ignore"):  # infinite logits
            return confidence(self.output)

    @cached_property
    def labels(self) -> tuple[str | None, ...]:
        """The name of the most probable class of each sample.

        None where the plan abstained, where the logits are not numbers (a damaged input, or an overflow), and for
        tasks whose answer is no class.
        """
        if self.task.kind != "classification":
            return (None,) * len(self.output)
        named = [self.task.class_names[index] for index in self.output.argmax(axis=1)]
        given = [
            source != ABSTAINED and bool(known)
            for source, known in zip(self.source, np.isfinite(self.confidence), strict=True)
        ]
        return tuple(name if has else None for name, has in zip(named, given, strict=True))

    @cached_property
    def predictions(self) -> tuple[tuple[Prediction, ...], ...]:
        """Predictions for each sample, by the task.

        The class of classification; the labels that are there, the surest first; numbers by name; the boxes that are
        left of those that overlap, the surest first; the classes of a map's pixels with their shares; spans of tokens.
        None of embeddings, whose answer is the vector, and where the plan abstained.
        """
        found = answer_task(self.task).predictions(self.output, self.task.class_names)
        return tuple(() if source == ABSTAINED else one for source, one in zip(self.source, found, strict=True))


Run = Callable[[StopSignal, Callable[[Answer], None]], None]
"""Runs to the end, or until the signal is set, and calls the function with each answer."""


class Running:
    """A plan that runs in a thread of its own, exit by exit. All methods may be called from any thread.

    Source: anytime inference of MEEdge §3.4. Left alone, it ends with the answer of the device without servers. As a
    context manager it is stopped at the end of the block.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._signal = StopSignal()
        self._latest: Answer | None = None
        self._failure: Exception | None = None
        self._first = threading.Event()  # there is an answer, or there will be none
        self._thread = threading.Thread(target=self._begin, name="pathweave-anytime", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        try:
            self._run(self._signal, self._take)
        except Exception as error:  # belongs to whoever asks for the answer
            self._failure = error
        finally:
            self._first.set()

    def _take(self, answer: Answer) -> None:
        self._latest = answer
        self._first.set()

    @property
    def answered(self) -> bool:
        """True if there is an answer."""
        return self._latest is not None

    @property
    def done(self) -> bool:
        """True once nothing runs any more."""
        return not self._thread.is_alive()

    def latest(self) -> Answer:
        """The best answer so far: that of the last exit reached, or of the end. ``latency_ms``: when it was there.

        Raises:
            NoAnswerYetError: no exit was reached yet, or the run was stopped before it was.
            RuntimeFailedError, BlobError, ClosedError: the run failed before it had an answer.
        """
        answer = self._latest
        if answer is not None:
            return answer
        if self._failure is not None:
            raise self._failure
        raise NoAnswerYetError(
            "the run was stopped before its first exit" if self._signal.is_set else "no exit was reached yet",
            hint="wait for the first answer with wait_first, or calibrate the plan with earlier exits",
        )

    def wait_first(self, timeout_s: float | None = None) -> Answer:
        """Wait for the first answer, at most ``timeout_s``, and return the latest. Raises as ``latest``."""
        self._first.wait(timeout_s)
        return self.latest()

    def wait(self, timeout_s: float | None = None) -> Answer:
        """Wait for the end, at most ``timeout_s``, and return the latest answer. Raises as ``latest``."""
        self._thread.join(timeout_s)
        return self.latest()

    def stop(self) -> None:
        """End it, without waiting: the runtime stops at its next operator, or after the block where it cannot."""
        self._signal.set()

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join()


Argument = TypeVar("Argument")
Result = TypeVar("Result")

WORKERS = 4


class AsyncCalls:
    """A small pool of threads, made when it is first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    async def call(self, function: Callable[[Argument], Result], argument: Argument) -> Result:
        """Await the result of ``function``. Cancelling the wait does not stop a call that has begun."""
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(self._threads(), function, argument)

    def close(self) -> None:
        """End the threads once their calls have ended. May be called twice."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)

    def _threads(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="pathweave-call")
            return self._executor
