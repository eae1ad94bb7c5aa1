"""An anytime run: it may be ended at any moment, and has the best answer so far."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from device_sdk.errors import NoAnswerYetError
from device_sdk.runtimes.port import StopSignal
from device_sdk.session.answer import Answer

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
