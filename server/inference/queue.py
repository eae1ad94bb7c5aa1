"""A bounded queue with dynamic batching, without threads of its own.

The threads of the requests run the batches. A request that finds a free place leads: its thread takes what waits for
one model and fits, runs it, and gives each job its rows, until its own are complete. Then it wakes one that still
waits, which leads from there on. So a single request runs at once, on the thread that decoded it, and batches grow with
the backlog. Requests take turns: a large one runs in slices, and between two of them others run.

While there are fewer requests than places, one batch at a time has all cores. From then on every place has a core of
its own, and what waits is divided among them: a batch on one core needs no synchronisation between operators, so all
cores together answer more (ResNet-56 at batch 1 on two cores: 2.3 ms of processor time per image instead of 3.2).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from device_sdk.errors import RuntimeFailedError
from device_sdk.runtimes.port import Array
from server.errors import BusyClientError, OverloadedError

_Result = list[Array]

# Whether a client has gone is only asked for requests that wait long: each such system call releases the interpreter
# lock, which takes milliseconds to come back while many threads work.
ASK_AFTER_S = 0.5


@dataclass(eq=False)
class _Job:
    """A request. All fields but the first five are guarded by the queue's lock."""

    model: BatchModel
    tensors: Sequence[Array]  # each [rows, ...]
    deadline_s: float  # on the monotonic clock
    abandoned: Callable[[], bool]
    queued_s: float = field(default_factory=time.monotonic)
    woken: threading.Event = field(default_factory=threading.Event)  # to lead, or because it is done
    leads: bool = False
    result: _Result | None = None
    error: BaseException | None = None
    taken: int = 0  # rows that run or have run
    parts: dict[int, _Result] = field(default_factory=dict)  # outputs by their first row

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None

    @property
    def rows(self) -> int:
        return len(self.tensors[0])

    @property
    def left(self) -> int:
        return self.rows - self.taken


@dataclass(frozen=True)
class _Slice:
    """The rows ``start`` to ``stop`` of a job."""

    job: _Job
    start: int
    stop: int


class BatchModel(Protocol):
    """A model as the queue runs it: inputs and outputs are [rows, ...] each. Raises as ``LoadedStretch.run``."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on all cores."""

    def run_beside(self, inputs: Sequence[Array]) -> list[Array]:
        """Run on one core, beside other batches."""


class Shares(Protocol):
    """Requests at once of each client, counted on all servers together."""

    def take(self, client: str) -> bool:
        """Take a place for a request; False if the share is used up."""

    def give_back(self, client: str) -> None:
        """The request is over."""


class BatchQueue:
    """Admits up to ``limit`` concurrent requests and runs up to ``max_batch`` rows of one model together.

    ``client_share``: maximum requests per client; None for no limit; ``shares``: holds it together with other servers.
    ``places``: batches that run at the same time once there are as many requests. ``observe``: told the rows of each
    batch that begins, and the seconds that the requests waited whose first rows are in it.
    """

    def __init__(
        self,
        *,
        limit: int,
        max_batch: int,
        client_share: int | None = None,
        shares: Shares | None = None,
        places: int = 1,
        ask_after_s: float = ASK_AFTER_S,
        observe: Callable[[int, Sequence[float]], None] | None = None,
    ) -> None:
        self._limit = limit
        self._max_batch = max_batch
        self._ask_after_s = ask_after_s
        self._observe = observe
        self._client_share = limit if client_share is None else client_share
        self._shares = shares
        self._lock = threading.Lock()  # guards all that follows
        self._admitted: Counter[str] = Counter()
        self._waiting: deque[_Job] = deque()
        self._places = places
        self._leaders = 0
        self._closed = False

    def __len__(self) -> int:
        """Number of admitted requests."""
        with self._lock:
            return self._admitted.total()

    @property
    def closed(self) -> bool:
        """True if the queue refuses new requests."""
        return self._closed

    @contextlib.contextmanager
    def admit(self, client: str) -> Iterator[None]:
        """Hold a slot for a request of ``client``, from before its body is decoded until its reply is complete.

        Raises:
            OverloadedError: all slots are taken, or the queue is closed.
            BusyClientError: the client's share is used up.
        """
        if self._shares is None:
            with self._admit_here(client):
                yield
            return
        if not self._shares.take(client):
            raise self._busy()
        try:
            with self._admit_here(client):
                yield
        finally:
            self._shares.give_back(client)

    @contextlib.contextmanager
    def _admit_here(self, client: str) -> Iterator[None]:
        with self._lock:
            if self._closed:
                raise OverloadedError("the server is shutting down")
            if self._admitted.total() >= self._limit:
                raise OverloadedError(f"{self._limit} requests are waiting")
            if self._admitted[client] >= self._client_share:
                raise self._busy()
            self._admitted[client] += 1
        try:
            yield
        finally:
            with self._lock:
                self._admitted[client] -= 1
                if not self._admitted[client]:
                    del self._admitted[client]

    def _busy(self) -> BusyClientError:
        return BusyClientError(f"{self._client_share} requests of this client are waiting")

    def run(
        self,
        model: BatchModel,
        tensors: Sequence[Array],
        *,
        timeout_s: float,
        abandoned: Callable[[], bool] = lambda: False,
    ) -> list[Array]:
        """Run ``tensors``, each [rows, ...], and return the model's outputs, each [rows, ...].

        ``abandoned``: True if the result is no longer wanted; called before each of its slices runs, once it has
        waited for ``ask_after_s``.

        Raises:
            RuntimeFailedError: the runtime failed.
            OverloadedError: timeout, it was abandoned, or the queue was closed. What the model runs at that moment on
                this thread is finished first.
        """
        job = _Job(model, tensors, time.monotonic() + timeout_s, abandoned)
        with self._lock:
            if self._closed:
                raise OverloadedError("the server is shutting down")
            self._waiting.append(job)
            self._appoint()
        while not job.done:
            if not job.woken.wait(max(job.deadline_s - time.monotonic(), 0.0)) and self._given_up(job):
                raise OverloadedError(f"no answer within {timeout_s:g} s")
            if job.leads:
                self._lead(job)
        if job.error is not None:
            raise job.error
        assert job.result is not None
        return job.result

    def close(self) -> None:
        """Refuse queued and new requests. Running ones are finished, unless some of their rows still wait."""
        with self._lock:
            self._closed = True
            for job in self._waiting:
                _fail(job, OverloadedError("the server is shutting down"))
            self._waiting.clear()

    def _appoint(self) -> None:
        """Give the free places to jobs that wait. Call with the lock."""
        places = self._places if self._crowded() else 1
        for job in self._idle()[: max(0, places - self._leaders)]:
            self._leaders += 1
            job.leads = True
            job.woken.set()

    def _given_up(self, job: _Job) -> bool:
        """Take a job whose time is up out of the queue, unless it is done or was appointed meanwhile."""
        with self._lock:
            if job.done or job.leads:
                return False
            with contextlib.suppress(ValueError):  # a slice of it may be running
                self._waiting.remove(job)
            return True

    def _lead(self, job: _Job) -> None:
        """Run batches on this thread until ``job`` is done, then give the place to one that waits."""
        try:
            while not job.done:
                with self._lock:
                    self._drop_unwanted()
                    beside = self._crowded()
                    batch = self._take_batch(beside=beside) if self._waiting else []
                if not batch:  # its last rows run elsewhere
                    break
                if self._observe is not None:
                    now_s = time.monotonic()
                    waits_s = [now_s - part.job.queued_s for part in batch if part.start == 0]
                    self._observe(sum(part.stop - part.start for part in batch), waits_s)
                self._run_and_answer(batch, beside=beside)
        finally:
            with self._lock:
                job.leads = False
                if not job.done:
                    job.woken.clear()
                self._leaders -= 1
                self._appoint()

    def _crowded(self) -> bool:
        """True if there are several places and a request for each. Call with the lock."""
        return 1 < self._places <= self._leaders + len(self._idle())

    def _idle(self) -> list[_Job]:
        """Jobs that wait and lead no batches, oldest first."""
        return [job for job in self._waiting if not job.leads and not job.done]

    def _run_and_answer(self, batch: Sequence[_Slice], *, beside: bool) -> None:
        try:
            outputs = self._run(batch, beside=beside)
        except BaseException as error:
            with self._lock:
                for part in batch:
                    _fail(part.job, error)
                self._waiting = deque(job for job in self._waiting if not job.done)
        else:
            self._answer(batch, outputs)

    def _drop_unwanted(self) -> None:
        now_s = time.monotonic()
        wanted: deque[_Job] = deque()
        for job in self._waiting:
            if now_s >= job.deadline_s or (now_s - job.queued_s >= self._ask_after_s and job.abandoned()):
                _fail(job, OverloadedError("the time of the request is up, or its client has gone"))
            else:
                wanted.append(job)
        self._waiting = wanted

    def _take_batch(self, *, beside: bool) -> list[_Slice]:
        """Up to ``max_batch`` rows. The first job gives half of them to others if it needs more than one batch.

        It then waits behind all others for its next turn. ``beside``: others join it only up to a place's share of the
        rows that wait.
        """
        share = -(-sum(job.left for job in self._waiting) // self._places) if beside else self._max_batch
        first = self._waiting.popleft()
        half = max(1, self._max_batch // 2)
        room = min(share, self._max_batch) - (first.left if first.left <= self._max_batch else half)
        others = []
        for job in self._waiting:
            if job.model is first.model and job.left <= room and not job.leads:
                others.append(job)
                room -= job.left
        batch = [_take(first, min(first.left, self._max_batch - sum(job.left for job in others)))]
        batch += [_take(job, job.left) for job in others]
        self._waiting = deque(job for job in self._waiting if job.left)
        if first.left:
            self._waiting.append(first)
        return batch

    @staticmethod
    def _run(batch: Sequence[_Slice], *, beside: bool) -> list[Array]:
        """The outputs of the whole batch.

        Raises:
            RuntimeFailedError: the runtime failed, or returned another number of rows.
        """
        columns = zip(*([tensor[part.start : part.stop] for tensor in part.job.tensors] for part in batch), strict=True)
        inputs = [_joined(parts) for parts in columns]
        model = batch[0].job.model
        outputs = model.run_beside(inputs) if beside else model.run(inputs)
        for output in outputs:
            if len(output) != len(inputs[0]):  # no row could be told to be whose
                raise RuntimeFailedError(f"the model returned {len(output)} rows for {len(inputs[0])}")
        return outputs

    def _answer(self, batch: Sequence[_Slice], outputs: Sequence[Array]) -> None:
        """Give every job its rows; answer those that are complete."""
        at = 0
        complete = []
        with self._lock:
            for part in batch:
                size = part.stop - part.start
                part.job.parts[part.start] = [output[at : at + size] for output in outputs]
                at += size
                if sum(len(result[0]) for result in part.job.parts.values()) == part.job.rows:
                    complete.append(part.job)
        for job in complete:
            result = [_joined(column) for column in zip(*(job.parts[at] for at in sorted(job.parts)), strict=True)]
            with self._lock:
                if not job.done:  # another slice failed
                    job.result = result
                    job.woken.set()


def _take(job: _Job, rows: int) -> _Slice:
    start, job.taken = job.taken, job.taken + rows
    return _Slice(job, start, job.taken)


def _fail(job: _Job, error: BaseException) -> None:
    if not job.done:
        job.error = error
        job.woken.set()


def _joined(parts: Sequence[Array]) -> Array:
    return np.concatenate(parts) if len(parts) > 1 else parts[0]
