"""Takes jobs from the database and runs them in a data folder: inside a server, or as ``pathweave worker``.

The state in the database suffices to go on after a kill at any point. Of several processes with the same data folder,
one at a time holds the lock and runs jobs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time

from device_sdk.errors import PathweaveError, StorageError
from server.jobs.folder_claim import FolderClaim
from server.jobs.job_files import JobFiles
from server.jobs.job_folders import JobFolders
from server.jobs.job_objects import open_job_objects
from server.jobs.job_run import JobRun, Parts
from server.jobs.job_user import user_of
from server.jobs.leases import Leases
from server.jobs.processes import end_orphan
from server.jobs.store import Job, JobStore
from server.jobs.workplace import Workplace
from server.settings import Settings
from server.state.database import Database, utc_now

_log = logging.getLogger(__name__)

_TROUBLE_S = 5.0  # delay after a failed iteration, such as on a full disk
_ANNOUNCE_S = 15.0
_SWEEP_S = 3600.0  # longer than any upload takes


class JobWorker:
    """Runs up to ``settings.jobs_at_once`` jobs at once, from ``start`` to ``close``, which stops them.

    Where machines share the jobs, those that are stopped go on elsewhere at once; else the next process on the data
    folder resumes them.
    """

    def __init__(self, database: Database, parts: Parts) -> None:
        self._database, self._parts, self._settings = database, parts, parts.settings
        self.claim = FolderClaim(parts.folders.jobs)
        self._leases: Leases | None = None  # once the lock, which has the machine's name, is held
        self._recovered = False
        self._wake, self._closed = threading.Event(), False
        self._turn = threading.RLock()  # guards all that follows
        self._runs: dict[str, JobRun] = {}
        self._announced_s = self._swept_s = self._rests_until_s = float("-inf")
        self._strays: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Start the thread. It waits until no other process holds this data folder."""
        with contextlib.suppress(StorageError):
            self._take_claim()
        self._thread.start()

    def wake(self) -> None:
        """Wake the thread after a change."""
        self._wake.set()

    def close(self) -> None:
        """Stop the jobs and the thread. Idempotent."""
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._turn:
            for run in self._runs.values():
                run.stop()
            for run in self._runs.values():
                run.join()
                if self._parts.files.are_shared:
                    with contextlib.suppress(StorageError):  # then its lease runs out
                        self._hand_over(run)
            self._runs.clear()
            self.claim.close()

    def stop(self, job: Job) -> bool:
        """End the process of a cancelled job, if it is here, and wait until it has ended; False if it is elsewhere."""
        with self._turn:
            run = self._runs.pop(job.id, None)
        if run is not None:
            run.stop()
            run.join()
        elif job.worker is not None and not self._parts.files.are_shared:
            end_orphan(job.worker)
        return run is not None

    def _run(self) -> None:
        while not self._closed:
            wait_s = self._settings.job_poll_s  # adding a job here wakes the thread
            try:
                self._round()
            except PathweaveError as error:
                _log.warning("looking for jobs failed: %s; next attempt in %g s", error, _TROUBLE_S)
                wait_s = min(_TROUBLE_S, self._settings.job_lease_s / 6)
            except Exception:
                _log.exception("running the jobs failed; next attempt in %g s", _TROUBLE_S)
                wait_s = _TROUBLE_S
            self._wake.wait(wait_s)
            self._wake.clear()

    def _round(self) -> None:
        """1. acquire the lock; 2. recover jobs of an earlier process; 3. renew leases; 4. take jobs."""
        leases = self._take_claim()
        if leases is None:
            return
        with self._turn:
            if not self._recovered:
                self._recover(leases)
            self._forget_ended()
            self._renew(leases)
            if self._parts.files.are_shared:
                self._announce(leases)
                self._sweep_store()
            while self._has_place() and self._take(leases):
                pass

    def _has_place(self) -> bool:
        return len(self._runs) < self._settings.jobs_at_once and time.monotonic() >= self._rests_until_s

    def _take_claim(self) -> Leases | None:
        """Try to acquire the lock. On success, folders of incomplete requests are removed."""
        if self._leases is None or not self.claim.held:
            if not self.claim.take():
                return None
            now, lease_s = self._parts.now, self._settings.job_lease_s
            self._leases = Leases(self._database, self.claim.name, lease_s=lease_s, now=now)
            try:
                self._sweep_folder(self._leases)
            except BaseException:
                self.claim.close()
                raise
        return self._leases

    def _sweep_folder(self, leases: Leases) -> None:
        """Remove the folders of jobs that are unknown, or run elsewhere."""
        shared = self._parts.files.are_shared
        needed = {job.id for job in leases.mine()} if shared else self._parts.store.ids()
        for folder in self._parts.folders.jobs.iterdir():
            if folder.is_dir() and folder.name not in needed:
                Workplace(folder).remove()

    def _recover(self, leases: Leases) -> None:
        """Kill what a killed process of this data folder left, and queue its jobs again."""
        for job in leases.mine():
            if job.worker is not None and not end_orphan(job.worker):
                raise StorageError(f"the worker {job.worker} of the job {job.id} does not end")
            leases.give_back(job, lost=self._parts.files.are_shared)
            _log.info("job %s: queued again after a restart", job.id)
        self._recovered = True

    def _forget_ended(self) -> None:
        """Drop the runs that have ended; one without an end in the database is queued again."""
        for run in [run for run in self._runs.values() if run.has_ended]:
            try:
                self._settle(run)
            except StorageError as error:
                _log.warning("job %s: %s", run.job.id, error)
            else:
                del self._runs[run.job.id]

    def _settle(self, run: JobRun) -> None:
        if run.is_over:
            self._forget_old_jobs()
        elif self._hand_over(run):
            self._rests_until_s = time.monotonic() + _TROUBLE_S
        if self._parts.files.are_shared:
            self._parts.folders.workplace(run.job.id).remove()
            if run.job.id not in self._parts.store.ids_with_files():
                self._parts.files.remove(run.job.id)

    def _forget_old_jobs(self) -> None:
        for job_id in self._parts.store.forget_old(self._settings.keep_jobs):
            self._parts.folders.workplace(job_id).remove()
            self._parts.files.remove(job_id)

    def _hand_over(self, run: JobRun) -> bool:
        """Have a stopped job go on from its last saved work; False if it is not ours any more (StorageError)."""
        if run.is_over or self._leases is None:
            return False
        try:
            run.save_work()
        except (PathweaveError, OSError) as error:
            _log.warning("job %s: its last saved work could not be copied: %s", run.job.id, error)
        is_given_back = self._leases.give_back(run.job, log=run.told()[1])
        if is_given_back:
            _log.info("job %s: given back", run.job.id)
        return is_given_back

    def _renew(self, leases: Leases) -> None:
        """Keep the leases. A job that was cancelled, or may be another machine's by now, is stopped."""
        for run in self._runs.values():
            began_s = time.monotonic()
            progress, log = run.told()
            try:
                kept = leases.renew(run.job, progress=progress, log=log)
            except StorageError as error:
                _log.warning("job %s: the lease was not renewed: %s", run.job.id, error)
                if self._parts.files.are_shared and time.monotonic() > run.until_s:
                    _log.warning("job %s: stopped, its lease has run out", run.job.id)
                    run.stop()
                continue
            if kept:
                run.until_s = began_s + leases.lease_s
            elif not run.is_over:
                _log.info("job %s: stopped, it was cancelled or is another machine's", run.job.id)
                run.stop()

    def _take(self, leases: Leases) -> bool:
        shared, began_s = self._parts.files.are_shared, time.monotonic()
        data = self._parts.folders.references() if shared else None
        taken = leases.take(tags=self._settings.job_tags, data=data, busy=self._runs)
        if taken is None:
            return False
        job, before = taken
        is_here = before == leases.owner and self._parts.folders.workplace(job.id).folder.is_dir()
        fetches = shared and not is_here
        until_s = began_s + leases.lease_s
        run = JobRun(job, self._parts, fetches=fetches, until_s=until_s, ended=self.wake)
        self._runs[job.id] = run
        _log.info("job %s: taken, attempt %d", job.id, job.attempt)
        run.start()
        return True

    def _announce(self, leases: Leases) -> None:
        if time.monotonic() - self._announced_s >= _ANNOUNCE_S:
            leases.announce(tags=self._settings.job_tags, data=self._parts.folders.references())
            self._announced_s = time.monotonic()

    def _sweep_store(self) -> None:
        """Delete stray files that were strays an hour ago too: a request stores its weights before its job."""
        if time.monotonic() - self._swept_s >= _SWEEP_S:
            self._swept_s = time.monotonic()
            strays = self._parts.files.strays()
            for job_id in strays & self._strays:
                self._parts.files.remove(job_id)
            self._strays = strays


def open_worker(database: Database, settings: Settings) -> JobWorker:
    """A worker without a server (StorageError, UsageError: the settings cannot be used)."""
    store = JobStore(database)
    files, user = JobFiles(store, open_job_objects(settings)), user_of(settings)
    return JobWorker(database, Parts(store, files, JobFolders(settings), settings, user, utc_now))
