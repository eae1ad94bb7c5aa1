"""Runs the jobs of one data folder: a thread that starts and monitors workers and checks their bundles.

The state in the database suffices to resume after a kill at any point. Of several servers with the same data folder,
one at a time holds the lock and runs the jobs.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from device_sdk.errors import PathweaveError, StorageError
from device_sdk.files.atomic import storage_errors, write_atomically
from server.errors import ConflictError
from server.jobs.data_sets import data_references, locations
from server.jobs.job_request import recipe_toml
from server.jobs.job_user import JobUser
from server.jobs.processes import end_group, end_orphan, excess_of, mark_of
from server.jobs.publishing import Publisher, check_made
from server.jobs.store import Job, JobStore, State
from server.jobs.worker import Failure, arguments_of, failure_of, start_worker
from server.jobs.workplace import ProgressReport, Workplace
from server.settings import Settings
from server.state.bundle_store import BundleStore

_log = logging.getLogger(__name__)

_ROUND_S = 0.1  # polling interval with workers
_IDLE_S = 2.0  # without workers: adding a job wakes the thread; polling detects the end of another server
_TROUBLE_S = 5.0  # delay after a failed iteration, such as on a full disk
_END_S = 10.0
_MEASURE_S = 1.0  # between two looks at a job's memory and disk space
DATA_FILE = "data.toml"
_PRIVATE_VERSION = 1  # in the manifest that a worker writes; publishing sets the served one


@dataclass
class _Work:
    """A job in progress. ``over``: the process has ended and its bundle was checked, with ``failure`` or ``digest``."""

    job: Job
    process: subprocess.Popen[bytes] | None = None
    over: bool = False
    failure: Failure | None = None
    digest: str = ""
    began_s: float = field(default_factory=time.monotonic)
    measured_s: float = 0.0


class JobRunner:
    """Runs jobs of ``store`` within the limits in ``settings``; ``publish`` serves a bundle.

    The data folder contains the jobs' folders and ``data.toml``. The thread runs from ``start`` to ``close``, which
    stops the workers; the next server resumes their jobs. ``user``: of the workers; None: the server's own.
    """

    def __init__(
        self,
        store: JobStore,
        bundles: BundleStore,
        settings: Settings,
        *,
        now: Callable[[], datetime],
        user: JobUser | None = None,
    ) -> None:
        self._store, self._settings, self._now, self._user = store, settings, now, user
        self._data_folder = settings.data_folder.absolute()
        self._jobs_folder = self._data_folder / "jobs"
        self._publisher = Publisher(store, bundles, private_key=settings.signing_key, now=now)
        self._claim: int | None = None  # file descriptor of the lock file
        self._recovered = False
        self._wake, self._closed = threading.Event(), False
        self._turn = threading.RLock()  # guards all that follows, and transitions of jobs
        self._work: dict[str, _Work] = {}
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Start the thread. It waits until no other server holds this data folder."""
        with contextlib.suppress(StorageError):
            self._take_claim()
        self._thread.start()

    def close(self) -> None:
        """Stop the workers and the thread. Idempotent."""
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
        """Wake the thread after a change."""
        self._wake.set()

    def require_ours(self) -> None:
        """Raise ConflictError if another server runs the jobs of this data folder."""
        if self._claim is None:
            raise ConflictError("another server runs the jobs of this data folder", hint="send the request to it")

    def workplace(self, job_id: str) -> Workplace:
        """The folder of a job."""
        return Workplace(self._jobs_folder / job_id)

    def progress_of(self, job: Job) -> ProgressReport | None:
        """The progress of a running job; None before its worker's first report."""
        return self.workplace(job.id).read_progress() if job.state is State.RUNNING else None

    def references(self) -> dict[str, str]:
        """Data references by name (ConfigurationError if ``data.toml`` is invalid)."""
        return data_references(self._data_folder / DATA_FILE)

    def names_of_paths(self, job_id: str) -> dict[str, str]:
        """Replacements for paths of this machine in messages to clients."""
        folders = [self.workplace(job_id).folder, self._data_folder]
        if self._settings.folder is not None:
            folders.append(self._settings.folder.absolute())
        names = {f"{folder}/": "" for folder in folders}
        with contextlib.suppress(PathweaveError):
            names |= locations(self.references())
        return names

    def cancel(self, job_id: str) -> Job:
        """Cancel a job unless it is finished, and remove its files. Returns its new state.

        Raises:
            NotFoundError: unknown id. ConflictError: another server runs the jobs.
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
                        end_orphan(worker)
                    self.workplace(job_id).remove()
        return self._store.find(job_id)

    def publish(self, job_id: str, *, name: str | None, by: str) -> Job:
        """Publish the bundle of a done job (``Publisher.publish``). Returns its new state.

        Raises:
            NotFoundError: unknown id. ConflictError: another server runs the jobs. As ``Publisher.publish``.
        """
        self._store.find(job_id)
        self.require_ours()
        with self._turn:
            self._publisher.publish(self._store.find(job_id), self.workplace(job_id), name=name, by=by)
        return self._store.find(job_id)

    def _run(self) -> None:
        while not self._closed:
            try:
                self._round()
                wait_s = _ROUND_S if self._work else _IDLE_S
            except Exception:
                _log.exception("running the jobs failed; next attempt in %g s", _TROUBLE_S)
                wait_s = _TROUBLE_S
            self._wake.wait(wait_s)
            self._wake.clear()

    def _round(self) -> None:
        """1. acquire the lock; 2. recover jobs of an earlier server; 3. handle ended workers; 4. start queued jobs."""
        if not self._take_claim():
            return
        with self._turn:
            if not self._recovered:
                self._recover()
            for work in list(self._work.values()):
                self._look_after(work)
            for job in self._store.in_state(State.QUEUED)[: self._settings.jobs_at_once - len(self._work)]:
                self._begin(job)

    def _take_claim(self) -> bool:
        """Try to acquire the lock. On success, folders of incomplete requests are removed."""
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
        job_ids = self._store.ids()
        for folder in self._jobs_folder.iterdir():
            if folder.is_dir() and folder.name not in job_ids:
                Workplace(folder).remove()

    def _recover(self) -> None:
        """Kill the workers of a server that was killed, and queue their jobs again."""
        for job in self._store.in_state(State.RUNNING):
            if job.worker is not None and not end_orphan(job.worker):
                raise StorageError(f"the worker {job.worker} of the job {job.id} does not end")
            self._store.queue_again(job.id)
        self._recovered = True

    def _begin(self, job: Job) -> None:
        work = _Work(job)
        try:
            if not self._store.start(job.id, version=job.version or _PRIVATE_VERSION):
                return  # cancelled
            self._work[job.id] = work
            work.job = self._store.find(job.id)
            work.process = self._start(work.job)
            mark = mark_of(work.process.pid)
            if mark is not None:
                self._store.note_worker(job.id, mark)
        except (PathweaveError, OSError) as error:
            if job.id not in self._work:
                raise
            self._end(work)
            self._conclude(work, Failure(f"the worker could not be started: {error}", getattr(error, "hint", None)))
            self._look_after(work)

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        references, workplace = self.references(), self.workplace(job.id)
        for name in (job.request.data, job.request.validation):
            if name not in references:
                raise ConflictError(f"the server no longer has data {name!r}")
        arguments = arguments_of(
            job, workplace, training=references[job.request.data], validation=references[job.request.validation]
        )
        if self._user is not None:
            self._user.take_back(workplace.folder)  # from a worker that was killed with its server
        write_atomically(workplace.recipe, recipe_toml(job.request.recipe).encode())
        with workplace.open_to_append(workplace.log) as log:
            resumed = "resumes" if workplace.out.with_name("out.work").exists() else "starts"
            log.write(f"[{self._now().isoformat(timespec='seconds')}] packaging {resumed}\n".encode())
        return start_worker([*self._settings.package_command, *arguments], workplace, self._user)

    def _look_after(self, work: _Work) -> None:
        """Check the bundle of an ended worker, or record its failure. Storage errors are retried."""
        job, workplace = work.job, self.workplace(work.job.id)
        if not work.over:
            if work.process is None:
                return
            if work.process.poll() is None:
                now_s = time.monotonic()
                if now_s - work.measured_s < _MEASURE_S:
                    return
                work.measured_s, minutes, group = now_s, (now_s - work.began_s) / 60, work.process.pid
                excess = excess_of(self._settings, minutes=minutes, group=group, folder=workplace.folder)
                if excess is None:
                    return
                self._end(work)
                self._conclude(work, excess)
            else:
                self._conclude(work, failure_of(work.process.returncode, workplace) or self._check(work))
        workplace.clear(keep_bundle=work.failure is None)  # first, to free disk space for the database update
        if work.failure is None:
            self._store.finish(job.id, work.digest)
        else:
            self._store.fail(job.id, work.failure.error, work.failure.hint)
        del self._work[job.id]
        for forgotten in self._store.forget_old(self._settings.keep_jobs):
            self.workplace(forgotten).remove()

    def _conclude(self, work: _Work, failure: Failure | None) -> None:
        if failure is not None:
            failure = failure.without_paths(self.names_of_paths(work.job.id))
            _log.warning("job %s (%s) failed: %s", work.job.id, work.job.request.name, failure.error)
        work.over, work.failure = True, failure

    def _check(self, work: _Work) -> Failure | None:
        job = work.job
        assert job.version is not None
        try:
            if self._user is not None:
                self._user.take_back(self.workplace(job.id).folder)
            work.digest = check_made(self.workplace(job.id).out, name=job.request.name, version=job.version)
        except (PathweaveError, OSError) as error:
            return Failure(str(error), getattr(error, "hint", None))
        return None

    def _end(self, work: _Work) -> None:
        if work.process is not None and work.process.poll() is None:
            end_group(work.process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                work.process.wait(_END_S)
