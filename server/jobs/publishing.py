"""Checking a job's finished bundle, and an operator's act that turns it into a served, signed one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from device_sdk.bundles.bundle import MANIFEST, SIGNATURE, Bundle
from device_sdk.bundles.releasing import RELEASE_DAYS, list_numbers, read_chain, require_usable, write_release
from device_sdk.files.atomic import storage_errors, write_atomically
from device_sdk.signing import signatures
from device_sdk.signing.release import KEYS, RELEASE
from device_sdk.signing.trust import TrustedKeys
from server.errors import ConflictError, PublishError
from server.jobs.job_request import check_name
from server.jobs.store import Job, JobStore, State
from server.jobs.workplace import Workplace
from server.state.bundle_store import BundleStore


def check_made(out: Path, *, name: str, version: int) -> str:
    """Verify the bundle that a worker made in ``out``. Returns the digest of its manifest.

    Raises:
        PublishError: name or version differ from the job's. BundleError: it is damaged.
    """
    bundle = Bundle.open(out)
    bundle.verify()
    manifest = bundle.manifest
    if (manifest.name, manifest.version) != (name, version):
        raise PublishError(f"the worker made {manifest.name} {manifest.version} instead of {name} {version}")
    return bundle.digest


@dataclass(frozen=True)
class Signer:
    """Signing key of a server, and the chain of key lists that names it a release key, if there is one."""

    private_key: Path
    keys: TrustedKeys | None = None

    @classmethod
    def of(cls, private_key: Path | None, folder: Path) -> Signer | None:
        """For bundles that are served from ``folder``, with the key lists in it; None without a key.

        Raises:
            UsageError, SignatureError: a key list is missing or not valid.
        """
        if private_key is None:
            return None
        lists = folder / KEYS
        return cls(private_key, read_chain(lists) if list_numbers(lists, "json") else None)

    def sign(self, out: Path, *, now_s: float) -> None:
        """Sign the bundle in ``out``, and write its release where devices trust key lists.

        Raises:
            UsageError: the key is not a release key of the newest list, or that list has expired.
            SignatureError: the key cannot be used. StorageError.
        """
        if self.keys is not None:
            require_usable(self.keys, self.private_key, int(now_s))
        write_atomically(out / SIGNATURE, signatures.sign((out / MANIFEST).read_bytes(), private_key=self.private_key))
        if self.keys is not None:
            write_release(Bundle.open(out), self.keys, self.private_key, int(now_s), RELEASE_DAYS)


def seal(out: Path, *, name: str, version: int, signer: Signer | None, now_s: float) -> str:
    """Write ``name`` and ``version`` into the bundle in ``out``, verify it, and sign it if there is a key.

    Returns the digest of its manifest. Repeatable.

    Raises:
        BundleError: it is damaged. UsageError, SignatureError: the key cannot be used. StorageError: the disk is full.
    """
    manifest = json.loads((out / MANIFEST).read_bytes())
    (out / SIGNATURE).unlink(missing_ok=True)
    (out / RELEASE).unlink(missing_ok=True)
    renamed = json.dumps({**manifest, "name": name, "version": version}, separators=(",", ":"), ensure_ascii=False)
    write_atomically(out / MANIFEST, renamed.encode())
    bundle = Bundle.open(out)
    bundle.verify()
    if signer is not None:
        signer.sign(out, now_s=now_s)
    return bundle.digest


def is_published(name: str, version: int | None, digest: str | None, *, bundles: BundleStore) -> bool:
    """True if a bundle of this name, version and digest is served."""
    return any(
        (served.version, served.bundle.digest) == (version, digest)
        for served in bundles.listing().bundles.get(name, ())
    )


class Publisher:
    """Publishes in ``bundles``, signed with ``private_key`` if there is one, with a release if it has key lists.

    One call at a time. It can be killed between any two statements and repeated.
    """

    def __init__(
        self,
        store: JobStore,
        bundles: BundleStore,
        *,
        private_key: Path | None,
        now: Callable[[], datetime],
    ) -> None:
        self._store, self._bundles, self._private_key, self._now = store, bundles, private_key, now

    def publish(self, job: Job, workplace: Workplace, *, name: str | None, by: str) -> None:
        """Publish the bundle in ``workplace`` as the next version of ``name`` (None: of the job's).

        1. check name and state; 2. seal and note what is published; 3. move it; 4. note that it was.

        Raises:
            UnprocessableError: an invalid name.
            ConflictError: the job is not done, or was published under another name.
            PublishError: the version was taken meanwhile. BundleError: damaged. SignatureError: an unusable key.
            UsageError: the key may not sign releases by the newest key list. StorageError: the disk is full.
        """
        name = name or job.published_name or job.request.name
        check_name(name)
        if job.state is not State.DONE:
            raise ConflictError(f"the job is {job.state}", hint="only a job that is done has a bundle")
        noted, version, digest = job.published_name, job.published_version, job.digest
        if job.published is None and noted and is_published(noted, version, digest, bundles=self._bundles):
            job = self._mark(job, workplace)  # the server was killed before it could
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

    def _seal_and_move(self, job: Job, out: Path, name: str, by: str) -> None:
        version = self._bundles.next_version(name)
        with storage_errors(out):
            signer = Signer.of(self._private_key, self._bundles.key_lists())
            digest = seal(out, name=name, version=version, signer=signer, now_s=self._now().timestamp())
        self._store.note_publication(job.id, name=name, version=version, digest=digest, by=by)
        self._bundles.publish(out, name=name, version=version)
