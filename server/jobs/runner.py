"""Runs the jobs of one data folder: one thread that starts workers, looks after them and publishes what they made.

A kill at any moment loses nothing: what the database says is enough to go on. Of several servers with one data folder
one runs the jobs, until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from device_sdk.errors import PathweaveError, StorageError
from device_sdk.files.atomic import storage_errors, write_atomically
from server.catalogue import Catalogue
from server.errors import ConflictError
from server.jobs.data_sets import data_references, locations
from server.jobs.job_request import recipe_toml
from server.jobs.processes import WorkerMark, end_group, end_orphan, mark_of
from server.jobs.publishing import is_published, next_version, publish, seal
from server.jobs.store import Job, JobStore, State
from server.jobs.worker import Failure, arguments_of, failure_of, start_worker
from server.jobs.workplace import Workplace

_log = logging.getLogger(__name__)

_ROUND_S = 0.1  # while there are workers
_IDLE_S = 2.0  # otherwise: whoever adds a job says so, only the end of another server has to be noticed
_TROUBLE_S = 5.0  # after a round that failed; a full disk is not mended at once
_END_S = 10.0
DATA_FILE = "data.toml"


@dataclass
class _Work:
    """A job at work. ``failure`` counts once ``over``: its process has ended and its bundle was published, or not."""

    job: Job
    process: subprocess.Popen[bytes] | None = None
    over: bool = False
    failure: Failure | None = None


class JobRunner:
    """Runs up to ``at_once`` jobs of ``store`` and publishes their bundles in ``folder``, signed with ``private_key``.

    ``command`` is the packager's. ``data_folder`` holds the jobs' folders and ``data.toml``. Of finished jobs the
    ``keep`` newest are kept. The thread works from ``start`` until ``close``, which ends the workers; their jobs go on
    with the next server.
    """

    def __init__(
        self,
        store: JobStore,
        catalogue: Catalogue,
        *,
        folder: Path,
        data_folder: Path,
        command: Sequence[str],
        private_key: Path | None,
        at_once: int,
        keep: int,
        now: Callable[[], datetime],
    ) -> None:
        self._store, self._catalogue = store, catalogue
        self._folder, self._data_folder = folder.absolute(), data_folder.absolute()
        self._jobs_folder = self._data_folder / "jobs"
        self._command, self._private_key = tuple(command), private_key
        self._at_once, self._keep, self._now = at_once, keep, now
        self._claim: int | None = None  # a file that only one server can have locked
        self._recovered = False
        self._wake, self._closed = threading.Event(), False
        self._turn = threading.RLock()  # guards all that follows, and the steps of a job
        self._work: dict[str, _Work] = {}
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Begin, unless another server has this data folder; then as soon as that has ended."""
        with contextlib.suppress(StorageError):
            self._take_claim()
        self._thread.start()

    def close(self) -> None:
        """End the workers and the thread. May be called twice."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._turn:
            for work in self._work.values():
                self._end(work)
            self._work.clear()
            if self._claim is not None:
                os.close(self._claim)
                self._claim = None

    def wake(self) -> None:
        """There is something to do."""
        self._wake.set()

    def require_ours(self) -> None:
        """Raise ConflictError if another server runs the jobs of this data folder."""
        if self._claim is None:
            raise ConflictError("another server runs the jobs of this data folder", hint="ask that one")

    def workplace(self, job_id: str) -> Workplace:
        """The folder of a job."""
        return Workplace(self._jobs_folder / job_id)

    def references(self) -> dict[str, str]:
        """The data that jobs may name (ConfigurationError if what the operator wrote cannot be read)."""
        return data_references(self._data_folder / DATA_FILE)

    def names_of_paths(self, job_id: str) -> dict[str, str]:
        """What to call the paths of this machine in messages for clients."""
        ours = (self.workplace(job_id).folder, self._data_folder, self._folder)
        names = {f"{folder}/": "" for folder in ours}
        with contextlib.suppress(PathweaveError):
            names |= locations(self.references())
        return names

    def cancel(self, job_id: str) -> Job:
        """End a job that is not over yet and remove its work; returns what has become of it.

        Raises:
            NotFoundError: there is none of this id. ConflictError: it is another server's.
        """
        if not self._store.find(job_id).state.over:
            self.require_ours()
            with self._turn:
                worker = self._store.find(job_id).worker
                if self._store.cancel(job_id):
                    work = self._work.pop(job_id, None)
                    if work is not None:
                        self._end(work)
                    elif worker is not None:
                        end_orphan(WorkerMark.parse(worker))
                    self.workplace(job_id).remove()
        return self._store.find(job_id)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._round()
                wait_s = _ROUND_S if self._work else _IDLE_S
            except Exception:
                _log.exception("the jobs could not be looked after; tried again in %g s", _TROUBLE_S)
                wait_s = _TROUBLE_S
            self._wake.wait(wait_s)
            self._wake.clear()

    def _round(self) -> None:
        """1. be the only one; 2. take over what an earlier server left; 3. finish what ended; 4. start what waits."""
        if not self._take_claim():
            return
        with self._turn:
            if not self._recovered:
                self._recover()
            for work in list(self._work.values()):
                self._look_after(work)
            for job in self._store.in_state(State.QUEUED)[: self._at_once - len(self._work)]:
                self._begin(job)

    def _take_claim(self) -> bool:
        """Whether the jobs are ours. Whoever takes them over first removes folders of requests that were cut short."""
        if self._claim is None:
            path = self._jobs_folder / ".claim"
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                claim = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._sweep()
            except BaseException as error:
                os.close(claim)
                if isinstance(error, BlockingIOError):
                    return False
                raise
            self._claim = claim
        return True

    def _sweep(self) -> None:
        known = self._store.ids()
        for folder in self._jobs_folder.iterdir():
            if folder.is_dir() and folder.name not in known:
                Workplace(folder).remove()

    def _recover(self) -> None:
        """End the workers of a server that was killed, and queue their jobs again."""
        for job in self._store.in_state(State.RUNNING):
            worker = None if job.worker is None else WorkerMark.parse(job.worker)
            if worker is not None and not end_orphan(worker):
                raise StorageError(f"process {worker.pid}, which works on the job {job.id}, does not end")
            if self._was_published(job):
                self._store.finish(job.id)
                self.workplace(job.id).clear()
            else:
                self._store.queue_again(job.id)
        self._recovered = True

    def _was_published(self, job: Job) -> bool:
        """Whether the server was killed between publishing the bundle and saying so."""
        name, version, digest = job.request.name, job.version, job.digest
        if version is None or digest is None:
            return False
        return is_published(name, version, digest, catalogue=self._catalogue)

    def _begin(self, job: Job) -> None:
        work = _Work(job)
        try:
            version = job.version or self._next_version(job)
            if not self._store.start(job.id, version=version):
                return  # cancelled meanwhile
            self._work[job.id] = work
            work.job = self._store.find(job.id)
            work.process = self._start(work.job)
            mark = mark_of(work.process.pid)
            if mark is not None:
                self._store.note_worker(job.id, str(mark))
        except (PathweaveError, OSError) as error:
            if job.id not in self._work:
                raise
            self._end(work)
            self._conclude(work, Failure(f"the worker could not be started: {error}", getattr(error, "hint", None)))
            self._look_after(work)

    def _next_version(self, job: Job) -> int:
        name = job.request.name
        promised = self._store.unfinished_versions(name)
        return next_version(name, catalogue=self._catalogue, folder=self._folder, promised=promised)

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        references, workplace = self.references(), self.workplace(job.id)
        for name in (job.request.data, job.request.validation):
            if name not in references:
                raise ConflictError(f"the server has no data {name!r} any more")
        arguments = arguments_of(
            job, workplace, training=references[job.request.data], validation=references[job.request.validation]
        )
        write_atomically(workplace.recipe, recipe_toml(job.request.recipe).encode())
        with workplace.log.open("a") as log:
            resumed = "goes on" if workplace.out.with_name("out.work").exists() else "starts"
            log.write(f"[{self._now().isoformat(timespec='seconds')}] version {job.version} {resumed}\n")
        return start_worker([*self._command, *arguments], workplace)

    def _look_after(self, work: _Work) -> None:
        """Publish what a worker that has ended made, or note why there is nothing; what fails is tried again."""
        job, workplace = work.job, self.workplace(work.job.id)
        if not work.over:
            if work.process is None or work.process.poll() is None:
                return
            self._conclude(work, failure_of(work.process.returncode, workplace) or self._publish(job))
        workplace.clear()  # first: a full disk has to take the news as well
        error, hint = (None, None) if work.failure is None else (work.failure.error, work.failure.hint)
        self._store.finish(job.id, error, hint)
        del self._work[job.id]
        for forgotten in self._store.forget_old(self._keep):
            self.workplace(forgotten).remove()

    def _conclude(self, work: _Work, failure: Failure | None) -> None:
        if failure is not None:
            failure = failure.without_paths(self.names_of_paths(work.job.id))
            _log.warning("job %s (%s) failed: %s", work.job.id, work.job.request.name, failure.error)
        work.over, work.failure = True, failure

    def _publish(self, job: Job) -> Failure | None:
        out, name, version = self.workplace(job.id).out, job.request.name, job.version
        assert version is not None
        try:
            digest = seal(out, name=name, version=version, private_key=self._private_key)
            if not self._store.note_digest(job.id, digest):
                return Failure("the job was cancelled")
            publish(out, name=name, version=version, folder=self._folder, catalogue=self._catalogue)
        except (PathweaveError, OSError) as error:
            return Failure(str(error), getattr(error, "hint", None))
        return None

    def _end(self, work: _Work) -> None:
        if work.process is not None and work.process.poll() is None:
            end_group(work.process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                work.process.wait(_END_S)
