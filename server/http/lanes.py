"""Threads in lanes: requests of one kind never wait for a thread that another kind holds."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Mapping
from typing import Any

from waitress.task import ThreadedTaskDispatcher


class Lane(enum.Enum):
    """The kinds of requests. A route declares its own; requests that were refused at the head are quick."""

    QUICK = enum.auto()  # no work, no lock, no disk
    INFERENCE = enum.auto()
    DELIVERY = enum.auto()  # bundles and blobs
    OTHER = enum.auto()  # jobs, logs, profiles, the page


class LaneDispatcher:
    """A dispatcher for waitress with a pool of threads per lane.

    ``threads``: the size of each; ``lane_of``: of a request, by method and path.
    """

    def __init__(self, threads: Mapping[Lane, int], lane_of: Callable[[str, str], Lane]) -> None:
        self._lane_of = lane_of
        self._pools = {lane: ThreadedTaskDispatcher() for lane in Lane}
        for lane, pool in self._pools.items():
            # Silences a warning for every request that finds all threads busy; queues are bounded by the connections.
            pool.queue_logger = logging.getLogger(f"{__name__}.waiting")
            pool.queue_logger.setLevel(logging.ERROR)
            pool.set_thread_count(threads[lane])

    def add_task(self, connection: Any) -> None:
        """Queue the first request of ``connection``."""
        request = connection.requests[0]
        lane = Lane.QUICK if request.error is not None else self._lane_of(request.command, request.path)
        self._pools[lane].add_task(connection)

    def shutdown(self, *, timeout: float) -> None:
        """End all threads; wait for those that work for ``timeout`` seconds in all."""
        for pool in self._pools.values():
            pool.set_thread_count(0)
        for pool in self._pools.values():
            pool.shutdown(timeout=timeout / len(self._pools))
