"""Progress of long work, as a port: algorithms report, whoever started them shows."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol


class Task(Protocol):
    """One piece of long work."""

    def advance(self, amount: float = 1.0) -> None:
        """``amount`` more of the task's total is done."""

    def note(self, text: str) -> None:
        """A short remark beside the bar, replacing the last one (for example ``loss 0.12``)."""


class Progress(Protocol):
    """Receiver of progress. ``task`` opens one piece of work that counts up to ``total``."""

    def task(self, name: str, total: float, *, done: float = 0.0) -> contextlib.AbstractContextManager[Task]:
        """Start a task of ``total`` units; it ends when the context is left. ``done``: units that earlier runs did."""


class _SilentTask:
    def advance(self, amount: float = 1.0) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class SilentProgress:
    """Shows nothing: the default of every library call."""

    @contextlib.contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Task]:
        yield _SilentTask()


class TerminalProgress:
    """Bars with elapsed and remaining time on standard error."""

    @contextlib.contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Task]:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[remark]}"),
        )
        with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
            # rich says int, and takes any number
            yield _TerminalTask(bars, bars.add_task(name, total=total, completed=done, remark=""))  # type: ignore[arg-type]


class _TerminalTask:
    def __init__(self, bars, handle) -> None:  # type: ignore[no-untyped-def]  # rich is imported lazily
        self._bars = bars
        self._handle = handle

    def advance(self, amount: float = 1.0) -> None:
        self._bars.advance(self._handle, amount)

    def note(self, text: str) -> None:
        self._bars.update(self._handle, remark=text)


class FileProgress:
    """Keeps a small JSON file up to date for another process to read, besides what ``shown`` shows.

    ``{"task": name, "share": 0–1, "note": remark, "elapsed_s": seconds of this task}``, written atomically: at the
    start of a task, then at most once in ``interval_s``. A report that cannot be written is left out: the work goes on.
    """

    def __init__(
        self,
        path: Path,
        shown: Progress,
        *,
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._shown = shown
        self._interval_s = interval_s
        self._clock = clock

    @contextlib.contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Task]:
        """Start a task of ``total`` units."""
        with self._shown.task(name, total, done=done) as shown:
            yield _FileTask(self._path, name, total, done, shown, interval_s=self._interval_s, clock=self._clock)


class _FileTask:
    def __init__(
        self,
        path: Path,
        name: str,
        total: float,
        done: float,
        shown: Task,
        *,
        interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._path, self._name, self._total, self._shown = path, name, total, shown
        self._done, self._remark = done, ""
        self._interval_s, self._clock = interval_s, clock
        self._started_s = clock()
        self._write(self._started_s)

    def advance(self, amount: float = 1.0) -> None:
        self._shown.advance(amount)
        self._done += amount
        self._report()

    def note(self, text: str) -> None:
        self._shown.note(text)
        self._remark = text
        self._report()

    def _report(self) -> None:
        now_s = self._clock()
        if now_s - self._written_s >= self._interval_s:
            self._write(now_s)

    def _write(self, now_s: float) -> None:
        from device_sdk.errors import StorageError
        from device_sdk.files.atomic import write_atomically

        self._written_s = now_s
        share = min(1.0, max(0.0, self._done / self._total)) if self._total > 0 else 0.0
        elapsed_s = round(now_s - self._started_s, 3)
        report = {"task": self._name, "share": round(share, 4), "note": self._remark, "elapsed_s": elapsed_s}
        with contextlib.suppress(StorageError):
            write_atomically(self._path, json.dumps(report).encode())
