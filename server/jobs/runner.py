"""Jobs as a server handles them: it shows, cancels and publishes them, and runs them if it has a worker inside."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable
from datetime import datetime

from device_sdk.errors import StorageError
from device_sdk.files.atomic import decode_json
from server.errors import ConflictError
from server.jobs.folder_claim import new_name
from server.jobs.job_files import JobFiles
from server.jobs.job_folders import JobFolders
from server.jobs.job_objects import JobObjects
from server.jobs.job_run import LOG_BYTES, Parts
from server.jobs.job_user import JobUser
from server.jobs.job_worker import JobWorker
from server.jobs.leases import Leases, Machine, data_of_machines, machines
from server.jobs.publishing import Publisher
from server.jobs.store import Job, JobStore, State
from server.jobs.waiting import SEEN_S, jobs_before, why_waiting
from server.jobs.worker import without_paths
from server.jobs.workplace import ProgressReport, Workplace
from server.settings import Settings
from server.state.bundle_store import BundleStore

BUSY_HINT = "ask again in a moment; the next answer says as what it was published"


class JobRunner:
    """The jobs of ``store`` in one server; a worker inside runs them from ``start`` to ``close``.

    ``objects``: files of jobs where machines share them; None: they stay in this data folder, and one server at a time
    has its jobs. ``user``: of the workers; None: the server's own.
    """

    def __init__(
        self,
        store: JobStore,
        bundles: BundleStore,
        settings: Settings,
        *,
        now: Callable[[], datetime],
        user: JobUser | None = None,
        objects: JobObjects | None = None,
    ) -> None:
        self._store, self._settings = store, settings
        self._files, self._folders = JobFiles(store, objects), JobFolders(settings)
        self._worker = JobWorker(store.database, Parts(store, self._files, self._folders, settings, user, now))
        self._publisher = Publisher(store, bundles, private_key=settings.signing_key, now=now)
        self._publications = Leases(store.database, new_name(), now=now)
        self._turn = threading.Lock()  # one publication at a time

    def start(self) -> None:
        """Run jobs here too."""
        self._worker.start()

    def close(self) -> None:
        """Stop the jobs that run here. Idempotent."""
        self._worker.close()

    def wake(self) -> None:
        """Look for jobs at once."""
        self._worker.wake()

    def require_ours(self) -> None:
        """Raise ConflictError if another server has the jobs of this data folder, and shares none."""
        if not (self._files.are_shared or self._worker.claim.held):
            raise ConflictError("another server runs the jobs of this data folder", hint="send the request to it")

    def workplace(self, job_id: str) -> Workplace:
        """The folder of a job on this machine."""
        return self._folders.workplace(job_id)

    def share_weights(self, workplace: Workplace, digest: str | None) -> None:
        """Store the weights of a request where its machine will find them (StorageError)."""
        self._files.share_weights(workplace, digest)
        if self._files.are_shared:
            workplace.remove()

    def forget(self, job_id: str) -> None:
        """Remove what a request that was refused has left."""
        self.workplace(job_id).remove()
        self._files.remove(job_id)

    def progress_of(self, job: Job) -> ProgressReport | None:
        """The progress of a running job; None before its worker's first report."""
        if job.state is not State.RUNNING:
            return None
        if not self._files.are_shared:
            return self.workplace(job.id).read_progress()
        with contextlib.suppress(ValueError):
            return None if job.progress is None else decode_json(job.progress.encode(), ProgressReport)
        return None

    def why_waiting(self, job: Job) -> str | None:
        """The reason why a job waits, in one line; None for one that does not."""
        if job.state is not State.QUEUED:
            return None
        database, settings = self._store.database, self._settings
        if self._files.are_shared:
            known = machines(database, within_s=SEEN_S)
        else:
            known = [Machine(settings.job_tags, self._folders.references())] if settings.jobs_at_once else []
        return why_waiting(job.request, known, before=jobs_before(database, job.id))

    def log_of(self, job: Job) -> str:
        """The end of a job's log, without paths of the machine."""
        if self._files.are_shared:
            return self._store.log_of(job.id)
        text = self.workplace(job.id).read_log(max_bytes=LOG_BYTES)
        return without_paths(text, self._folders.names_of_paths(job.id))

    def data_names(self) -> set[str]:
        """Names of data that jobs may use: this server's, or those of the machines that share its jobs.

        Raises:
            ConfigurationError: ``data.toml`` is invalid. StorageError.
        """
        own = set(self._folders.references())
        return own if not self._files.are_shared else own | data_of_machines(self._store.database)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job unless it is finished, and remove its files. Returns its new state.

        Elsewhere its process ends when its machine renews the lease, within seconds.

        Raises:
            NotFoundError: unknown id. ConflictError: another server runs the jobs.
        """
        job = self._store.find(job_id)
        if not job.state.over:
            self.require_ours()
            job = self._store.find(job_id)
            if self._store.cancel(job_id):
                self._worker.stop(job)
                self.workplace(job_id).remove()
                self._files.remove(job_id)
        return self._store.find(job_id)

    def publish(self, job_id: str, *, name: str | None, by: str) -> Job:
        """Publish the bundle of a done job (``Publisher.publish``). Returns its new state.

        Raises:
            NotFoundError: unknown id. ConflictError: another server runs the jobs, or publishes this one now. As
            ``Publisher.publish``.
        """
        self._store.find(job_id)
        self.require_ours()
        with self._turn:
            if not self._files.are_shared:
                self._publisher.publish(self._store.find(job_id), self.workplace(job_id), name=name, by=by)
            else:
                self._publish_shared(job_id, name=name, by=by)
        return self._store.find(job_id)

    def _publish_shared(self, job_id: str, *, name: str | None, by: str) -> None:
        if self._store.find(job_id).state is State.DONE and not self._publications.take_publication(job_id):
            raise ConflictError("another server publishes the bundle of this job", hint=BUSY_HINT)
        workplace = self._folders.workplace(f"publishing-{secrets.token_hex(8)}")
        try:
            job = self._store.find(job_id)
            self._files.fetch_bundle(job, workplace)
            self._publisher.publish(job, workplace, name=name, by=by)
            self._files.remove(job_id)
        finally:
            workplace.remove()
            with contextlib.suppress(StorageError):  # then the lease runs out
                self._publications.end_publication(job_id)
