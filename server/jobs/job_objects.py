"""Files of jobs where all machines reach them: each by its sha256, below the id of its job, only ever created."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from device_sdk.errors import StorageError
from device_sdk.files.atomic import make_folder, storage_errors
from server.settings import Settings
from server.state.object_store import ObjectError, ObjectStore

_PREFIX = "jobs"
_HIDDEN = ".pathweave-jobs"  # in a shared folder of bundles, which ignores it
_RANGE_BYTES = 16 * 2**20
_DIGEST = re.compile(r"[0-9a-f]{64}")


class JobObjects(Protocol):
    """Stored files of jobs. Thread-safe. All methods raise StorageError if the store is away."""

    def put(self, job_id: str, digest: str, path: Path) -> None:
        """Store a file that has this sha256; nothing happens if it is there."""

    def fetch(self, job_id: str, digest: str, path: Path) -> None:
        """Write a stored file to ``path``, verified (ObjectError if it is missing or altered)."""

    def digests(self, job_id: str) -> set[str]:
        """The stored files of a job."""

    def delete(self, job_id: str, digests: Iterable[str]) -> None:
        """Delete some of them; nothing happens for those that are not there."""

    def job_ids(self) -> set[str]:
        """The jobs that have files."""


def open_job_objects(settings: Settings) -> JobObjects | None:
    """The files of jobs beside the bundles that machines share; None if jobs stay on this machine."""
    if settings.database is None:
        return None
    if isinstance(settings.bundles, Path):
        return FolderJobObjects(settings.bundles / _HIDDEN)
    return StoredJobObjects(ObjectStore.at(settings.bundles))


class StoredJobObjects:
    """``jobs/ID/SHA256`` in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put(self, job_id: str, digest: str, path: Path) -> None:
        """As ``JobObjects.put``."""
        key = _key(job_id, digest)
        if self._store.size(key) is None:
            self._store.create(key, path)

    def fetch(self, job_id: str, digest: str, path: Path) -> None:
        """As ``JobObjects.fetch``."""
        key = _key(job_id, digest)
        size = self._store.size(key)
        if size is None:
            raise _missing(job_id)
        starts = range(0, size, _RANGE_BYTES)
        _write_verified(
            path, digest, (self._store.read_range(key, start, min(size, start + _RANGE_BYTES)) for start in starts)
        )

    def digests(self, job_id: str) -> set[str]:
        """As ``JobObjects.digests``."""
        return {entry.key.rpartition("/")[2] for entry in self._store.list(f"{_PREFIX}/{job_id}")}

    def delete(self, job_id: str, digests: Iterable[str]) -> None:
        """As ``JobObjects.delete``."""
        for digest in digests:
            self._store.delete(f"{_PREFIX}/{job_id}/{digest}")

    def job_ids(self) -> set[str]:
        """As ``JobObjects.job_ids``."""
        return {entry.key.split("/")[1] for entry in self._store.list(_PREFIX) if entry.key.count("/") > 1}


class FolderJobObjects:
    """``ID/SHA256`` in a folder that all machines have mounted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def put(self, job_id: str, digest: str, path: Path) -> None:
        """As ``JobObjects.put``: copied beside its place, then renamed."""
        target = self._folder / job_id / digest
        if target.exists():
            return
        with storage_errors(target):
            make_folder(target.parent)
            part = target.with_name(f".{digest}.{secrets.token_hex(8)}")
            try:
                with path.open("rb") as source, part.open("xb") as file:
                    shutil.copyfileobj(source, file, _RANGE_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part, target)
            finally:
                part.unlink(missing_ok=True)

    def fetch(self, job_id: str, digest: str, path: Path) -> None:
        """As ``JobObjects.fetch``."""
        source = self._folder / job_id / digest
        try:
            with source.open("rb") as file:
                _write_verified(path, digest, iter(lambda: file.read(_RANGE_BYTES), b""))
        except FileNotFoundError as error:
            raise _missing(job_id) from error
        except OSError as error:
            raise StorageError(f"cannot read {source}: {error.strerror}") from error

    def digests(self, job_id: str) -> set[str]:
        """As ``JobObjects.digests``; files that a copier left unfinished are among them."""
        folder = self._folder / job_id
        with storage_errors(folder):
            return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

    def delete(self, job_id: str, digests: Iterable[str]) -> None:
        """As ``JobObjects.delete``."""
        folder = self._folder / job_id
        with storage_errors(folder):
            for digest in digests:
                (folder / digest).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it is not empty, or gone
                folder.rmdir()

    def job_ids(self) -> set[str]:
        """As ``JobObjects.job_ids``."""
        with storage_errors(self._folder):
            return {path.name for path in self._folder.iterdir()} if self._folder.is_dir() else set()


def _missing(job_id: str) -> ObjectError:
    return ObjectError(f"a stored file of job {job_id} is missing")


def _key(job_id: str, digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ObjectError(f"a file of job {job_id} has no proper name")
    return f"{_PREFIX}/{job_id}/{digest}"


def _write_verified(path: Path, digest: str, parts: Iterator[bytes]) -> None:
    found = hashlib.sha256()
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for part in parts:
                found.update(part)
                file.write(part)
    if found.hexdigest() != digest:
        path.unlink(missing_ok=True)
        raise ObjectError(f"{path.name}, a stored file of the job, does not match its digest")
