"""Batches in parallel: a few threads that each take the next one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from device_sdk.errors import ClosedError
from device_sdk.search.port import EvaluationStopped

Item = TypeVar("Item")


class Workers:
    """Runs work on many items, ``count`` of them at a time; with one, in the calling thread."""

    def __init__(self, count: int) -> None:
        self._count, self._closed = count, False
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="pathweave-evaluate") if count > 1 else None

    def each(self, items: Iterable[Item], work: Callable[[Item], None], should_stop: Callable[[], bool]) -> None:
        """Call ``work`` on every item, in order of their start; ends when all that was begun has ended.

        ``should_stop`` is called in this thread before an item is begun. Raises what ``work`` raises first.

        Raises:
            EvaluationStopped: ``should_stop`` returned True before the last item.
            ClosedError: it was closed.
        """
        running: set[Future[None]] = set()
        try:
            for item in items:
                if self._pool is not None and len(running) == self._count:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    _raise_first(done)
                if should_stop():
                    raise EvaluationStopped
                if self._closed:
                    raise ClosedError("the evaluator was closed")
                if self._pool is None:
                    work(item)
                else:
                    running.add(self._pool.submit(work, item))
        finally:
            wait(running)
        _raise_first(running)

    def close(self) -> None:
        """End the threads. May be called twice."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown()


def _raise_first(done: Iterable[Future[None]]) -> None:
    for one in done:
        one.result()
