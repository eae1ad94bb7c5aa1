"""The act of an operator that turns the bundle of a done job into a served, signed one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from device_sdk.files.atomic import storage_errors
from server.errors import ConflictError
from server.jobs.job_request import check_name
from server.jobs.publishing import Signer, is_published, next_version, publish, seal
from server.jobs.store import Job, JobStore, State
from server.jobs.workplace import Workplace
from server.state.catalogue import Catalogue


class Publisher:
    """Publishes bundles in ``folder``, signed with ``private_key`` if there is one, with a release if it has key lists.

    One call at a time. It can be killed between any two statements and repeated.
    """

    def __init__(
        self,
        store: JobStore,
        catalogue: Catalogue,
        *,
        folder: Path,
        private_key: Path | None,
        now: Callable[[], datetime],
    ) -> None:
        self._store, self._catalogue = store, catalogue
        self._folder, self._private_key, self._now = folder, private_key, now

    def publish(self, job: Job, workplace: Workplace, *, name: str | None, by: str) -> None:
        """Publish the bundle in ``workplace`` as the next version of ``name`` (None: of the job's).

        1. check name and state; 2. seal and note what is published; 3. move it; 4. note that it was.

        Raises:
            UnprocessableError: an invalid name.
            ConflictError: the job is not done, or was published under another name.
            PublishError: it cannot be put into the folder. BundleError: damaged. SignatureError: an unusable key.
            UsageError: the key may not sign releases by the newest key list. StorageError: the disk is full.
        """
        name = name or job.published_name or job.request.name
        check_name(name)
        if job.state is not State.DONE:
            raise ConflictError(f"the job is {job.state}", hint="only a job that is done has a bundle")
        if job.published is None and self._is_there(job):
            job = self._mark(job, workplace)
        if job.published is not None:
            if job.published_name != name:
                raise ConflictError(f"the bundle was published as {job.published_name} {job.published_version} already")
            return
        self._seal_and_move(job, workplace.out, name, by)
        self._mark(job, workplace)

    def _mark(self, job: Job, workplace: Workplace) -> Job:
        self._store.mark_published(job.id)
        workplace.clear()
        return self._store.find(job.id)

    def _is_there(self, job: Job) -> bool:
        """True if the bundle is served as noted: the server was killed between publishing and recording it."""
        name, version, digest = job.published_name, job.published_version, job.digest
        if name is None or version is None or digest is None:
            return False
        return is_published(name, version, digest, catalogue=self._catalogue)

    def _seal_and_move(self, job: Job, out: Path, name: str, by: str) -> None:
        version = next_version(name, catalogue=self._catalogue, folder=self._folder)
        with storage_errors(out):
            signer = Signer.of(self._private_key, self._folder)
            digest = seal(out, name=name, version=version, signer=signer, now_s=self._now().timestamp())
        self._store.note_publication(job.id, name=name, version=version, digest=digest, by=by)
        publish(out, name=name, version=version, folder=self._folder, catalogue=self._catalogue)
