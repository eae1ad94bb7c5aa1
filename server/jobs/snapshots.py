"""Copies of a job's folders in the shared store: each file by its sha256, and one short list of them."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import msgspec

from device_sdk.files.atomic import decode_json, storage_errors
from server.jobs.job_objects import JobObjects
from server.state.object_store import ObjectError

_PART_BYTES = 2**20
_MOST_FILES = 10_000
# The packager writes caches in place and makes them again; all else in its work folder is replaced atomically.
_CACHE_FOLDER, _CACHE_SUFFIX = "features.", ".f32"
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class StoredFile(msgspec.Struct, frozen=True):
    """A file of a folder: its path there, with /, and its contents."""

    path: str
    digest: str
    size: int


@dataclass(frozen=True)
class FileState:
    """A file that changes its state when it is replaced."""

    path: str
    inode: int
    size: int
    changed_ns: int


def encode_files(files: Sequence[StoredFile]) -> str:
    """The list as it is kept in the database."""
    return msgspec.json.encode(files).decode()


def decode_files(text: str | None) -> tuple[StoredFile, ...]:
    """Undoes ``encode_files``; none without a text."""
    return () if text is None else decode_json(text.encode(), tuple[StoredFile, ...])


def is_saved_work(path: str) -> bool:
    """True for what a run of the packager resumes from, false for caches and files that are being written."""
    *folders, name = path.split("/")
    cached = name.endswith(_CACHE_SUFFIX) or any(folder.startswith(_CACHE_FOLDER) for folder in folders)
    return not cached and not name.startswith(".")


def any_file(path: str) -> bool:
    """True."""
    return True


def states_of(folder: Path, wanted: Callable[[str], bool]) -> tuple[FileState, ...]:
    """The files of a folder as they are now, in the order of their paths."""
    found = []
    for path in _paths(folder, wanted):
        try:
            status = os.lstat(folder / path)
        except OSError:  # it was replaced or removed meanwhile
            continue
        found.append(FileState(path, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found, key=lambda one: one.path))


def save(
    folder: Path,
    states: Sequence[FileState],
    *,
    job_id: str,
    objects: JobObjects,
    wanted: Callable[[str], bool],
    scratch: Path,
    stored: Collection[str] = (),
) -> tuple[StoredFile, ...] | None:
    """Store the files of a folder as they were at one moment; None if they are not in ``states`` any more.

    All are opened before the first is read: one that is replaced meanwhile keeps its contents. ``scratch``: a folder
    for one copy at a time; ``stored``: digests that the store has.

    Raises:
        StorageError: the store is away, or the disk is full.
    """
    with ExitStack() as opened:
        try:
            files = [(one.path, opened.enter_context(_open_plain(folder / one.path))) for one in states]
        except OSError:
            return None
        if states_of(folder, wanted) != tuple(states):
            return None
        return tuple(_stored(path, file, job_id, objects, scratch, stored) for path, file in files)


def restore(files: Sequence[StoredFile], folder: Path, *, job_id: str, objects: JobObjects) -> None:
    """Write stored files into a folder, verified.

    Raises:
        ObjectError: one is missing or altered. StorageError: the store is away, or the disk is full.
    """
    for one in files:
        parts = PurePosixPath(one.path).parts
        if not parts or ".." in parts or one.path.startswith("/"):
            raise ObjectError(f"a stored file of job {job_id} has no proper path")
        objects.fetch(job_id, one.digest, folder.joinpath(*parts))


def _paths(folder: Path, wanted: Callable[[str], bool]) -> Iterator[str]:
    count = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = (Path(parent) / name).relative_to(folder).as_posix()
            if wanted(path) and count < _MOST_FILES:
                count += 1
                yield path


def _open_plain(path: Path) -> BinaryIO:
    """A file to read: no link, no pipe, and none that is another file's too (OSError otherwise)."""
    file = os.fdopen(os.open(path, _READ), "rb")
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        file.close()
        raise OSError("no plain file")
    return file


def _stored(
    path: str, file: BinaryIO, job_id: str, objects: JobObjects, scratch: Path, stored: Collection[str]
) -> StoredFile:
    copy, digest, size = scratch / f".{secrets.token_hex(8)}.part", hashlib.sha256(), 0
    try:
        with storage_errors(copy):
            scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
            with copy.open("xb") as target:
                while part := file.read(_PART_BYTES):
                    digest.update(part)
                    target.write(part)
                    size += len(part)
        if digest.hexdigest() not in stored:
            objects.put(job_id, digest.hexdigest(), copy)
    finally:
        with suppress(OSError):
            copy.unlink()
    return StoredFile(path, digest.hexdigest(), size)
