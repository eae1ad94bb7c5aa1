"""The adaptation events of this run, read from the adaptation log."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from device_sdk.logs.adaptation_log import Adapted, Delivered, Event, Infeasible, PlanChosen, Profiled, read_log
from pathweave.errors import UsageError


class RunEvents:
    """Events added to the log at ``path`` since construction. The log is read again only if its size changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines_before = self._count()
        self._size = -1
        self._texts: tuple[str, ...] = ()

    def texts(self) -> tuple[str, ...]:
        """One line per event, oldest first; empty if the log cannot be read."""
        with contextlib.suppress(OSError, UsageError):
            size = self._path.stat().st_size
            if size != self._size:
                lines = list(read_log(self._path))[self._lines_before :]
                self._texts = tuple(f"{line.time[11:19]} {describe(line.event)}" for line in lines)
                self._size = size
        return self._texts

    def _count(self) -> int:
        with contextlib.suppress(UsageError):
            return sum(1 for _ in read_log(self._path))
        return 0


def describe(event: Event) -> str:
    """A short description of an event."""
    match event:
        case Profiled():
            return f"profiled: the full model takes {event.original_ms:.3g} ms"
        case Adapted():
            return f"switched to {event.subnet}: {event.measured_ms:.3g} ms measured"
        case PlanChosen():
            return f"chose {event.plan_kind}: {event.share_early:.0%} expected to leave early"
        case Infeasible():
            return f"nothing fits the budget; the nearest takes {event.nearest_latency_ms:.3g} ms"
        case Delivered():
            return f"bundle version {event.version} {event.how}"
        case _:
            return str(msgspec.to_builtins(event)["event"])
