"""Calls that a coroutine can wait for: each runs in one of a few threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Argument = TypeVar("Argument")
Result = TypeVar("Result")

WORKERS = 4


class AsyncCalls:
    """A small pool of threads, made when it is first used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    async def call(self, function: Callable[[Argument], Result], argument: Argument) -> Result:
        """Await the result of ``function``. Cancelling the wait does not stop a call that has begun."""
        import asyncio

        return await asyncio.get_running_loop().run_in_executor(self._threads(), function, argument)

    def close(self) -> None:
        """End the threads once their calls have ended. May be called twice."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)

    def _threads(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="pathweave-call")
            return self._executor
