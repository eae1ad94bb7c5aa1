"""A bounded queue with dynamic batching.

There is no batching delay: an idle worker takes all queued requests of one model that fit, so batches grow with the
backlog and a single request runs at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field

import numpy as np

from device_sdk.runtimes.port import Array, LoadedStretch
from server.errors import BusyClientError, OverloadedError

_Result = list[Array]


@dataclass(eq=False)
class _Job:
    model: LoadedStretch
    tensors: Sequence[Array]  # each [rows, ...]
    future: Future[_Result] = field(default_factory=Future)

    @property
    def rows(self) -> int:
        return len(self.tensors[0])


class BatchQueue:
    """Admits up to ``limit`` concurrent requests and runs up to ``max_batch`` rows of one model together.

    ``client_share``: maximum requests per client; None for no limit. ``close`` stops the workers.
    """

    def __init__(self, *, limit: int, max_batch: int, client_share: int | None = None, workers: int = 1) -> None:
        self._limit = limit
        self._max_batch = max_batch
        self._client_share = limit if client_share is None else client_share
        self._changed = threading.Condition()  # guards all that follows
        self._admitted: Counter[str] = Counter()
        self._waiting: deque[_Job] = deque()
        self._closed = False
        self._workers = [
            threading.Thread(target=self._work, name=f"inference-{n}", daemon=True) for n in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    def __len__(self) -> int:
        """Number of admitted requests."""
        with self._changed:
            return self._admitted.total()

    @property
    def closed(self) -> bool:
        """Whether the queue refuses new requests."""
        return self._closed

    @contextlib.contextmanager
    def admit(self, client: str) -> Iterator[None]:
        """Hold a slot for a request of ``client``, from before its body is decoded until its reply is complete.

        Raises:
            OverloadedError: all slots are taken, or the queue is closed.
            BusyClientError: the client's share is used up.
        """
        with self._changed:
            if self._closed:
                raise OverloadedError("the server is shutting down")
            if self._admitted.total() >= self._limit:
                raise OverloadedError(f"{self._limit} requests are waiting")
            if self._admitted[client] >= self._client_share:
                raise BusyClientError(f"{self._client_share} requests of this client are waiting")
            self._admitted[client] += 1
        try:
            yield
        finally:
            with self._changed:
                self._admitted[client] -= 1
                if not self._admitted[client]:
                    del self._admitted[client]

    def run(self, model: LoadedStretch, tensors: Sequence[Array], *, timeout_s: float) -> list[Array]:
        """Run ``tensors``, each [rows, ...], and return the model's outputs, each [rows, ...].

        Raises:
            RuntimeFailedError: the runtime failed.
            OverloadedError: timeout, or the queue was closed.
        """
        job = _Job(model, tensors)
        with self._changed:
            if self._closed:
                raise OverloadedError("the server is shutting down")
            self._waiting.append(job)
            self._changed.notify()
        try:
            return job.future.result(timeout_s)
        except FutureTimeoutError as error:
            job.future.cancel()  # no effect if a worker has started it
            raise OverloadedError(f"no answer within {timeout_s:g} s") from error

    def close(self) -> None:
        """Refuse queued and new requests. Running ones are finished."""
        with self._changed:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for job in waiting:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(OverloadedError("the server is shutting down"))

    def _work(self) -> None:
        while jobs := self._next_batch():
            started = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if started:
                self._answer(started)

    def _next_batch(self) -> list[_Job]:
        """Waiting jobs of one model, the oldest first, as many as fit; none once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            taken: list[_Job] = []
            left: deque[_Job] = deque()
            rows = 0
            for job in self._waiting:
                fits = not taken or (job.model is taken[0].model and rows + job.rows <= self._max_batch)
                (taken if fits else left).append(job)
                rows += job.rows if fits else 0
            self._waiting = left
            return taken

    def _answer(self, jobs: Sequence[_Job]) -> None:
        try:
            outputs = self._run(jobs)
        except BaseException as error:
            for job in jobs:
                job.future.set_exception(error)
            return
        start = 0
        for job in jobs:
            job.future.set_result([output[start : start + job.rows] for output in outputs])
            start += job.rows

    def _run(self, jobs: Sequence[_Job]) -> list[Array]:
        inputs = [
            np.concatenate(parts) if len(parts) > 1 else parts[0]
            for parts in zip(*(j.tensors for j in jobs), strict=True)
        ]
        # A request with more rows than ``max_batch`` runs in slices, which bounds the memory for its features.
        slices = [
            jobs[0].model.run([tensor[at : at + self._max_batch] for tensor in inputs])
            for at in range(0, len(inputs[0]), self._max_batch)
        ]
        return [np.concatenate(parts) if len(parts) > 1 else parts[0] for parts in zip(*slices, strict=True)]
