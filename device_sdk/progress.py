"""Progress of long work, as a port: algorithms report, whoever started them shows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Protocol


class Task(Protocol):
    """One piece of long work."""

    def advance(self, amount: float = 1.0) -> None:
        """``amount`` more of the task's total is done."""

    def note(self, text: str) -> None:
        """A short remark beside the bar, replacing the last one (for example ``loss 0.12``)."""


class Progress(Protocol):
    """Where progress goes. ``task`` opens one piece of work that counts up to ``total``."""

    def task(self, name: str, total: float) -> contextlib.AbstractContextManager[Task]:
        """Start a task of ``total`` units; it ends when the context is left."""


class _SilentTask:
    def advance(self, amount: float = 1.0) -> None:
        pass

    def note(self, text: str) -> None:
        pass


class SilentProgress:
    """Shows nothing: the default of every library call."""

    @contextlib.contextmanager
    def task(self, name: str, total: float) -> Iterator[Task]:
        yield _SilentTask()


class TerminalProgress:
    """Bars with elapsed and remaining time on standard error."""

    @contextlib.contextmanager
    def task(self, name: str, total: float) -> Iterator[Task]:
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
            yield _TerminalTask(bars, bars.add_task(name, total=total, remark=""))


class _TerminalTask:
    def __init__(self, bars, handle) -> None:  # type: ignore[no-untyped-def]  # rich is imported lazily
        self._bars = bars
        self._handle = handle

    def advance(self, amount: float = 1.0) -> None:
        self._bars.advance(self._handle, amount)

    def note(self, text: str) -> None:
        self._bars.update(self._handle, remark=text)
