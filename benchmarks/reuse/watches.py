"""Instrumentation of an evaluator's edges: their latency, and the lifetime of their outputs."""

from __future__ import annotations

import time
import weakref
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from device_sdk.runtimes.port import Array, LoadedStretch, StopSignal
from device_sdk.supernet.plan import Edge


class Watch(Protocol):
    """Callbacks before and after each run."""

    def before(self, inputs: Sequence[Array]) -> None: ...

    def after(self, outputs: Sequence[Array]) -> None: ...


def watched(stretch: LoadedStretch, watch: Watch) -> LoadedStretch:
    """``stretch`` with a watch on its runs."""
    return _Watched(stretch, watch)


class _Watched:
    def __init__(self, stretch: LoadedStretch, watch: Watch) -> None:
        self._stretch, self._watch = stretch, watch

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        self._watch.before(inputs)
        outputs = self._stretch.run(inputs)
        self._watch.after(outputs)
        return outputs

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        return None if stop.is_set else self.run(inputs)

    def close(self) -> None:
        self._stretch.close()


class EdgeTimes:
    """Mean time of each edge."""

    def __init__(self) -> None:
        self._seconds: defaultdict[Edge, float] = defaultdict(float)
        self._runs: defaultdict[Edge, int] = defaultdict(int)

    def of(self, edge: Edge) -> Watch:
        """The watch to put on this edge."""
        return _Stopwatch(self, edge)

    def add(self, edge: Edge, seconds: float) -> None:
        """Record one run."""
        self._seconds[edge] += seconds
        self._runs[edge] += 1

    def mean_ms(self, edge: Edge) -> float:
        """Mean time of the runs so far; of all edges' runs if it never ran."""
        if edge in self._runs:
            return 1000 * self._seconds[edge] / self._runs[edge]
        return 1000 * sum(self._seconds.values()) / sum(self._runs.values())


class _Stopwatch:
    def __init__(self, times: EdgeTimes, edge: Edge) -> None:
        self._times, self._edge = times, edge
        self._started_s = 0.0

    def before(self, inputs: Sequence[Array]) -> None:
        self._started_s = time.perf_counter()

    def after(self, outputs: Sequence[Array]) -> None:
        self._times.add(self._edge, time.perf_counter() - self._started_s)


class Audit:
    """Counts the bytes of outputs that are alive whenever an edge begins to run, knowing nothing of any cache.

    The input of the running edge counts only if it is still alive when the next edge starts.
    """

    def __init__(self) -> None:
        self._alive: dict[int, tuple[weakref.ref[Array], int]] = {}
        self._outputs = 0
        self._last: tuple[int, list[int]] = (0, [])  # all bytes at the last run, and which outputs went into it
        self._peak_bytes = 0

    def before(self, inputs: Sequence[Array]) -> None:
        """Account for the last run and start this one."""
        self._settle()
        read = {id(array) for array in inputs}
        numbers = [number for number, (ref, _) in self._alive.items() if id(ref()) in read]
        self._last = (sum(nbytes for _, nbytes in self._alive.values()), numbers)

    def after(self, outputs: Sequence[Array]) -> None:
        """Track these arrays."""
        for output in outputs:
            self._alive[self._outputs] = (weakref.ref(output), output.nbytes)
            self._outputs += 1

    def peak_bytes(self) -> int:
        """Peak bytes kept while an edge ran."""
        self._settle()
        return self._peak_bytes

    def _settle(self) -> None:
        total, read = self._last
        gone = {number: nbytes for number, (ref, nbytes) in self._alive.items() if ref() is None}
        self._peak_bytes = max(self._peak_bytes, total - sum(gone.get(number, 0) for number in read))
        for number in gone:
            del self._alive[number]
        self._last = (0, [])
