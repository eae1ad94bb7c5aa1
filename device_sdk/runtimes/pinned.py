"""Stretches that run on the cores of a cluster: the calling thread while it runs, the runtime's own threads always."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal

from device_sdk.errors import UsageError
from device_sdk.runtimes.port import Array, LoadedStretch, StopSignal

AFFINITIES = "session.intra_op_thread_affinities"
"""The entry of ONNX Runtime's session configuration that takes ``affinity_config``."""

WhyNotPinned = Literal["this system pins no threads", "none of the cores is usable"]


def affinity_config(cores: Collection[int], threads: int) -> str:
    """The value of ``AFFINITIES`` with which all threads of a session's pool may use ``cores``, and no others.

    The pool has a thread less than ``threads``, for the caller runs too; empty, for no entry, where it has none. ONNX
    Runtime counts cores from 1.

    Raises:
        UsageError: there are no cores.
    """
    if not cores:
        raise UsageError("threads cannot run on no core")
    allowed = ",".join(str(core + 1) for core in sorted(cores))
    return ";".join([allowed] * (threads - 1))


def pinned(stretch: LoadedStretch, cores: Collection[int]) -> PinnedStretch:
    """``stretch``, with the thread that runs it on ``cores`` alone for as long as it runs.

    Raises:
        UsageError: there are no cores.
    """
    if not cores:
        raise UsageError("a stretch cannot run on no core")
    return PinnedStretch(stretch, frozenset(cores))


class PinnedStretch:
    """A loaded stretch whose calling thread is moved to some cores, and back, also after an error. Thread-safe.

    ``why_not``: the reason why the last run was not moved; None if it was.
    """

    def __init__(self, stretch: LoadedStretch, cores: frozenset[int]) -> None:
        self._stretch, self._cores = stretch, cores
        self.why_not: WhyNotPinned | None = None

    @property
    def nodes_by_provider(self) -> Mapping[str, int]:
        """Nodes of the stretch by provider; empty where it does not tell."""
        return getattr(self._stretch, "nodes_by_provider", {})

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        before = self._move()
        try:
            return self._stretch.run(inputs)
        finally:
            _move_back(before)

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port."""
        before = self._move()
        try:
            return self._stretch.run_until(inputs, stop)
        finally:
            _move_back(before)

    def close(self) -> None:
        """See the port."""
        self._stretch.close()

    def _move(self) -> set[int] | None:
        before, self.why_not = _move_to(self._cores)
        return before


@contextlib.contextmanager
def on_cores(cores: Collection[int]) -> Iterator[WhyNotPinned | None]:
    """The calling thread runs on ``cores`` alone within the block; the reason if it does not, else None.

    Threads that begin within the block inherit this: sessions that are created in it have their pools there.
    """
    before, why_not = _move_to(frozenset(cores))
    try:
        yield why_not
    finally:
        _move_back(before)


def _move_to(cores: frozenset[int]) -> tuple[set[int] | None, WhyNotPinned | None]:
    """Move the calling thread; where it could run before, None if it stays there, and the reason if it may not move."""
    if not hasattr(os, "sched_setaffinity"):
        return None, "this system pins no threads"
    try:
        before = os.sched_getaffinity(0)  # of the calling thread
        if before == cores:
            return None, None
        os.sched_setaffinity(0, cores)
    except OSError:  # a control group or an administrator took the cores away
        return None, "none of the cores is usable"
    return before, None


def _move_back(before: set[int] | None) -> None:
    if before is not None:
        with contextlib.suppress(OSError):  # as above: the system has placed the thread itself
            os.sched_setaffinity(0, before)


__all__ = ["AFFINITIES", "PinnedStretch", "WhyNotPinned", "affinity_config", "on_cores", "pinned"]
