"""One job on this machine, from its lease to its end, in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import msgspec

from device_sdk.errors import PathweaveError, StorageError
from device_sdk.files.atomic import write_atomically
from server.errors import ConflictError
from server.jobs.job_files import JobFiles
from server.jobs.job_folders import JobFolders
from server.jobs.job_request import recipe_toml
from server.jobs.job_user import JobUser
from server.jobs.processes import end_group, excess_of, mark_of
from server.jobs.publishing import check_made
from server.jobs.store import Job, JobStore, storable
from server.jobs.worker import Failure, arguments_of, failure_of, start_worker, without_paths
from server.jobs.workplace import ProgressReport
from server.settings import Settings

_log = logging.getLogger(__name__)

_ROUND_S = 0.1  # between two looks at the process
_MEASURE_S = 1.0  # between two looks at its memory and disk space
_TROUBLE_S = 5.0  # delay after database or store was away
_FETCH_TRIES = 60
_END_S = 10.0
LOG_BYTES = 65_536  # of the end of a log, for clients

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Parts:
    """The parts that runs of jobs work with."""

    store: JobStore
    files: JobFiles
    folders: JobFolders
    settings: Settings
    user: JobUser | None
    now: Callable[[], datetime]


class _StoppedError(Exception):
    """The run was stopped while it waited."""


class JobRun:
    """The run of ``job`` on this machine. ``fetches``: its files are elsewhere; ``ended``: is called at the end.

    ``until_s``: end of its lease on the monotonic clock, as far as this machine knows.
    """

    def __init__(self, job: Job, parts: Parts, *, fetches: bool, until_s: float, ended: Callable[[], None]) -> None:
        self.job, self.until_s = job, until_s
        self.is_over = False  # its end is in the database
        self._parts, self._fetches, self._ended = parts, fetches, ended
        self._workplace = parts.folders.workplace(job.id)
        settings = parts.settings
        self._saver = parts.files.new_saver(job, every_s=settings.job_checkpoint_s, max_bytes=settings.job_disk_bytes)
        self._stopped = threading.Event()
        self._lock = threading.Lock()  # guards the process
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"job {job.id}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        """True once the thread is over."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the process and the thread, soon; nothing is stored any more."""
        self._stopped.set()
        self._end_process()

    def join(self) -> None:
        """Wait for the thread."""
        self._thread.join()

    def save_work(self) -> None:
        """Copy what the ended process has saved, for the machine that goes on (StorageError)."""
        if self._saver is not None:
            self._take_back()
            self._saver.save(self._workplace)

    def told(self) -> tuple[str | None, str | None]:
        """Progress as JSON and the end of the log, for clients of other machines; None where they stay."""
        if not self._parts.files.are_shared:
            return None, None
        progress: ProgressReport | None = self._workplace.read_progress()
        log = self._workplace.read_log(max_bytes=LOG_BYTES)
        names = self._parts.folders.names_of_paths(self.job.id)
        encoded = None if progress is None else msgspec.json.encode(progress).decode()
        return encoded, storable(without_paths(log, names))

    def _run(self) -> None:
        try:
            self._work()
        except _StoppedError:
            pass
        except Exception:
            _log.exception("job %s: running it failed", self.job.id)
        finally:
            self._end_process()
            self._ended()

    def _work(self) -> None:
        """1. fetch and start; 2. wait; 3. check the bundle, or find why there is none; 4. store the end."""
        failure = self._begin() or self._wait()
        if self._stopped.is_set():
            return
        digest = ""
        if failure is None:
            assert self._process is not None
            failure = failure_of(self._process.returncode, self._workplace)
        if failure is None:
            digest, failure = self._checked()
        if failure is not None:
            failure = failure.without_paths(self._parts.folders.names_of_paths(self.job.id))
        self._store_end(digest, failure)

    def _begin(self) -> Failure | None:
        try:
            if self._fetches:
                self._patiently(lambda: self._parts.files.fetch(self.job, self._workplace), tries=_FETCH_TRIES)
            process = self._start()
            mark = mark_of(process.pid)
            if mark is not None:
                self._parts.store.note_worker(self.job, mark)
        except (PathweaveError, OSError) as error:
            self._end_process()
            return Failure(f"the worker could not be started: {error}", getattr(error, "hint", None))
        return None

    def _start(self) -> subprocess.Popen[bytes]:
        parts, workplace, job = self._parts, self._workplace, self.job
        references = parts.folders.references()
        for name in (job.request.data, job.request.validation):
            if name not in references:
                raise ConflictError(f"the server no longer has data {name!r}")
        arguments = arguments_of(
            job, workplace, training=references[job.request.data], validation=references[job.request.validation]
        )
        self._take_back()  # from a worker that was killed with its server
        write_atomically(workplace.recipe, recipe_toml(job.request.recipe).encode())
        resumes = workplace.work.exists()
        with workplace.open_to_append(workplace.log) as log:
            did = "resumes" if resumes else "starts"
            log.write(f"[{parts.now().isoformat(timespec='seconds')}] packaging {did}\n".encode())
        command = [*parts.settings.package_command, *arguments]
        with self._lock:
            if self._stopped.is_set():
                raise _StoppedError
            self._process = start_worker(command, workplace, parts.user)
        _log.info("job %s: attempt %d %s (%s)", job.id, job.attempt, did, job.request.name)
        return self._process

    def _wait(self) -> Failure | None:
        """Until the process ends; the excess if it takes too much, which ends it."""
        assert self._process is not None
        began_s, measured_s, group = time.monotonic(), 0.0, self._process.pid
        while self._process.poll() is None:
            if self._stopped.wait(_ROUND_S):
                return None
            now_s = time.monotonic()
            if now_s - measured_s >= _MEASURE_S:
                measured_s, minutes = now_s, (now_s - began_s) / 60
                folder = self._workplace.folder
                excess = excess_of(self._parts.settings, minutes=minutes, group=group, folder=folder)
                if excess is not None:
                    self._end_process()
                    return excess
            if self._saver is not None:
                self._saver.save_if_due(self._workplace)
        return None

    def _checked(self) -> tuple[str, Failure | None]:
        job = self.job
        assert job.version is not None
        try:
            self._take_back()
            return check_made(self._workplace.out, name=job.request.name, version=job.version), None
        except (PathweaveError, OSError) as error:
            return "", Failure(str(error), getattr(error, "hint", None))

    def _store_end(self, digest: str, failure: Failure | None) -> None:
        """Keep what is needed and tell the database, as soon as it and the store can be reached."""
        job, files, store = self.job, self._parts.files, self._parts.store
        bundle = None
        if failure is None:
            bundle = self._patiently(lambda: files.save_bundle(job, self._workplace))
        self._workplace.clear(keep_bundle=failure is None)  # first, to free disk space for the database update
        if failure is None:
            self.is_over = self._patiently(lambda: store.finish(job, digest, bundle=bundle, log=self.told()[1]))
        else:
            error, hint = failure.error, failure.hint
            self.is_over = self._patiently(lambda: store.fail(job, error, hint, log=self.told()[1]))
        if self.is_over:
            if failure is None:
                _log.info("job %s: done", job.id)
            else:
                _log.warning("job %s (%s) failed: %s", job.id, job.request.name, failure.error)
            files.remove(job.id, but=bundle)

    def _patiently(self, step: Callable[[], _Found], *, tries: int | None = None) -> _Found:
        """The result of a step that needs database or store, tried again while they are away and the job is ours."""
        count = 0
        while True:
            try:
                return step()
            except StorageError as error:
                count += 1
                if count == tries:
                    raise
                _log.warning("job %s: %s; next attempt in %g s", self.job.id, error, _TROUBLE_S)
            if self._stopped.wait(_TROUBLE_S):
                raise _StoppedError

    def _take_back(self) -> None:
        if self._parts.user is not None:
            self._parts.user.take_back(self._workplace.folder)

    def _end_process(self) -> None:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                end_group(self._process.pid)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_END_S)
