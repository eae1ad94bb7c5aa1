"""Threads in lanes: requests of one kind never wait for a thread that another kind holds."""

from __future__ import annotations

import enum
import logging
from collections.abc import Mapping
from typing import Any

from waitress.task import ThreadedTaskDispatcher


class Lane(enum.Enum):
    """The kinds of requests."""

    QUICK = enum.auto()  # health, and refusals that were decided at the head: no work, no lock, no disk
    INFERENCE = enum.auto()
    DELIVERY = enum.auto()  # bundles and blobs
    OTHER = enum.auto()  # jobs, logs, profiles, the page


def lane_of(path: str, *, refused: bool) -> Lane:
    """The lane of a request, by its path."""
    if refused or path == "/health" or path.startswith("/v2/health/"):
        return Lane.QUICK
    if path.startswith("/v2/models/") and path.endswith("/infer"):
        return Lane.INFERENCE
    if path.startswith("/v1/bundles") and not path.endswith("/profile"):
        return Lane.DELIVERY
    return Lane.OTHER


class LaneDispatcher:
    """A dispatcher for waitress with a pool of threads per lane; ``threads``: the size of each."""

    def __init__(self, threads: Mapping[Lane, int]) -> None:
        self._pools = {lane: ThreadedTaskDispatcher() for lane in Lane}
        for lane, pool in self._pools.items():
            # Silences a warning for every request that finds all threads busy; queues are bounded by the connections.
            pool.queue_logger = logging.getLogger(f"{__name__}.waiting")
            pool.queue_logger.setLevel(logging.ERROR)
            pool.set_thread_count(threads[lane])

    def add_task(self, connection: Any) -> None:
        """Queue the first request of ``connection``."""
        request = connection.requests[0]
        self._pools[lane_of(request.path, refused=request.error is not None)].add_task(connection)

    def shutdown(self, *, timeout: float) -> None:
        """End all threads; wait for those that work for ``timeout`` seconds in all."""
        for pool in self._pools.values():
            pool.set_thread_count(0)
        for pool in self._pools.values():
            pool.shutdown(timeout=timeout / len(self._pools))
