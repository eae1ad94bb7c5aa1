"""Times the steps of a run: shown as progress, logged, and recorded for the report."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from device_sdk.progress import Progress, Task

LOGGER = logging.getLogger(__name__)
_BEAT_S = 1.0
_MOST = 0.95  # of the bar, while a step runs


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
