"""Files of a job that travel between machines: weights, saved work, the bundle. Without a shared store none does."""

from __future__ import annotations

import contextlib
import logging
import os
import time

from device_sdk.errors import StorageError
from device_sdk.files.atomic import storage_errors
from server.errors import ConflictError
from server.jobs.job_objects import JobObjects
from server.jobs.snapshots import (
    FileState,
    any_file,
    decode_files,
    encode_files,
    is_saved_work,
    restore,
    save,
    states_of,
)
from server.jobs.store import Job, JobStore, State
from server.jobs.workplace import Workplace

_log = logging.getLogger(__name__)


class JobFiles:
    """Files of the jobs in ``store``; ``objects``: where machines share them, None where jobs stay on this one."""

    def __init__(self, store: JobStore, objects: JobObjects | None) -> None:
        self._store, self._objects = store, objects

    @property
    def are_shared(self) -> bool:
        """True if a job may go on, and be published, on another machine."""
        return self._objects is not None

    def share_weights(self, workplace: Workplace, digest: str | None) -> None:
        """Store the weights of a request before its job is queued (StorageError)."""
        if self._objects is not None and digest is not None:
            self._objects.put(workplace.folder.name, digest, workplace.weights)

    def fetch(self, job: Job, workplace: Workplace) -> None:
        """Make the folder of a job that was elsewhere, as a whole: weights, saved work, log.

        Raises:
            ObjectError: a file is missing or altered. StorageError: the store is away, or the disk is full.
        """
        if self._objects is None:
            return
        fetched = Workplace(workplace.folder.with_name(f".fetching-{job.id}"))
        for folder in (workplace, fetched):
            folder.remove()
        with storage_errors(fetched.folder):
            fetched.folder.mkdir(parents=True, mode=0o700)
            if job.weights_sha256 is not None:
                self._objects.fetch(job.id, job.weights_sha256, fetched.weights)
            saved = decode_files(self._store.checkpoint_of(job.id))
            restore(saved, fetched.work, job_id=job.id, objects=self._objects)
            with fetched.open_to_append(fetched.log) as log:
                log.write(self._store.log_of(job.id).encode())
            os.rename(fetched.folder, workplace.folder)

    def save_bundle(self, job: Job, workplace: Workplace) -> str | None:
        """Store the bundle that was made; returns the list of its files, None where it stays (StorageError)."""
        if self._objects is None:
            return None
        states = states_of(workplace.out, any_file)
        files = save(
            workplace.out, states, job_id=job.id, objects=self._objects, wanted=any_file, scratch=workplace.folder
        )
        if files is None:
            raise StorageError(f"the bundle of job {job.id} changes while it is read")
        return encode_files(files)

    def fetch_bundle(self, job: Job, workplace: Workplace) -> None:
        """Bring the bundle of a done job here, to be published.

        Raises:
            ConflictError: the store has none. ObjectError: a file is missing or altered. StorageError.
        """
        if self._objects is None or job.state is not State.DONE or job.published is not None:
            return
        files = decode_files(self._store.bundle_of(job.id))
        if not files:
            raise ConflictError("the bundle of the job is not in the store", hint="package it again")
        workplace.remove()
        restore(files, workplace.out, job_id=job.id, objects=self._objects)

    def remove(self, job_id: str, *, but: str | None = None) -> None:
        """Delete the stored files of a job, but those in a list. What cannot be deleted now is swept later."""
        if self._objects is None:
            return
        kept = {one.digest for one in decode_files(but)}
        with contextlib.suppress(StorageError):
            self._objects.delete(job_id, self._objects.digests(job_id) - kept)

    def strays(self) -> set[str]:
        """Jobs with stray files: unknown jobs, those that are over without a bundle, or published (StorageError)."""
        return set() if self._objects is None else self._objects.job_ids() - self._store.ids_with_files()

    def new_saver(self, job: Job, *, every_s: float, max_bytes: int | None) -> WorkSaver | None:
        """Copies the saved work of a running job; None where it stays."""
        if self._objects is None:
            return None
        return WorkSaver(self._store, self._objects, job, every_s=every_s, max_bytes=max_bytes)


class WorkSaver:
    """Copies of one running job's saved work, at most every ``every_s``, and of at most ``max_bytes``.

    A copy is of one moment: files first, then the list of them, which replaces the one before; then the files that
    only that one had are deleted.
    """

    def __init__(
        self,
        store: JobStore,
        objects: JobObjects,
        job: Job,
        *,
        every_s: float,
        max_bytes: int | None,
    ) -> None:
        self._store, self._objects, self._job = store, objects, job
        self._every_s, self._max_bytes = every_s, max_bytes
        self._states: tuple[FileState, ...] = ()
        self._known = {one.digest for one in decode_files(store.checkpoint_of(job.id))}
        self._next_s = time.monotonic() + every_s

    def save_if_due(self, workplace: Workplace) -> None:
        """``save``, if the last one is long enough ago. Failures are logged, and it is tried again later."""
        if time.monotonic() < self._next_s:
            return
        try:
            if self.save(workplace):
                self._next_s = time.monotonic() + self._every_s
        except StorageError as error:
            _log.warning("job %s: its saved work could not be copied: %s", self._job.id, error)
            self._next_s = time.monotonic() + self._every_s

    def save(self, workplace: Workplace) -> bool:
        """Copy what has changed; False if it changes just now (StorageError)."""
        states = states_of(workplace.work, is_saved_work)
        size = sum(one.size for one in states)
        if states == self._states or not states:
            return True
        if self._max_bytes is not None and size > self._max_bytes:
            raise StorageError(f"it has {size} bytes, more than --job-disk-gb allows")
        found = save(
            workplace.work,
            states,
            job_id=self._job.id,
            objects=self._objects,
            wanted=is_saved_work,
            scratch=workplace.folder.parent,
            stored=self._known,
        )
        if found is None:
            return False
        if self._store.note_checkpoint(self._job, encode_files(found)):
            _log.info("job %s: saved work copied (%d files, %d bytes)", self._job.id, len(found), size)
            replaced, self._known, self._states = self._known, {one.digest for one in found}, states
            # Only what this lease or the one before has listed: another machine may store files by now.
            self._objects.delete(self._job.id, replaced - self._known - {self._job.weights_sha256 or ""})
        return True
