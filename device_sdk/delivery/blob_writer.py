"""Writes one blob to the store: a temporary file per writer, verified before it is renamed to its digest.

A temporary file is called ``<sha256>.<process id>.<unique>.part``. It is an orphan once its process has ended or its
writer has given up (process id 0). The next writer of that blob copies the orphan's bytes and resumes. It does not
reuse the file: process ids are recycled, so another writer may still have it open.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from device_sdk.errors import BlobError, StorageError
from device_sdk.files.atomic import in_use, make_folder, storage_errors, sync_folder, unique

COPY_BYTES = 1_000_000

_PARTIAL = re.compile(r"([0-9a-f]{64})\.([0-9]{1,10})\.([0-9a-f]+)\.part")


class BlobWriter:
    """Collects the bytes of blob ``name``, at most ``max_bytes``, and moves them to the store.

    A context manager. It starts with the bytes of an orphan, if there is one (see ``size``). Bytes that are not
    committed on exit become an orphan for the next writer of this blob.
    """

    def __init__(self, folder: Path, name: str, target: Path, *, max_bytes: int) -> None:
        self._folder = folder
        self._name = name
        self._target = target
        self._max_bytes = max_bytes
        self._path = _own_path(folder, name, os.getpid())
        self._in_store = False

    @property
    def size(self) -> int:
        """Bytes collected so far."""
        return self._size

    def __enter__(self) -> BlobWriter:
        with storage_errors(self._path):
            make_folder(self._folder)
            self._file = open(self._path, "xb", buffering=0)  # unbuffered: a kill loses nothing
        self.restart()
        try:
            self._inherit()
        except BaseException:
            self._drop()
            raise
        return self

    def restart(self) -> None:
        """Discard the bytes collected so far."""
        with storage_errors(self._path):
            self._file.seek(0)
            self._file.truncate()
        self._digest = hashlib.sha256()
        self._size = 0

    def append(self, data: bytes) -> None:
        """Add ``data``.

        Raises:
            BlobError: more than ``max_bytes``.
            StorageError: the disk is full.
        """
        if self._size + len(data) > self._max_bytes:
            raise BlobError(f"blob {self._name[:12]}… is larger than the {self._max_bytes} bytes that it should have")
        with storage_errors(self._path):
            left = memoryview(data)
            while left:  # each iteration writes at least one byte or raises
                left = left[self._file.write(left) or 0 :]
        self._digest.update(data)
        self._size += len(data)

    def commit(self) -> None:
        """Move the blob to the store if its digest matches its name.

        Raises:
            BlobError: the digest does not match; the collected bytes are discarded.
            StorageError: the blob could not be written.
        """
        if self._digest.hexdigest() != self._name:
            self.restart()
            raise BlobError(
                f"blob {self._name[:12]}… does not match its digest",
                hint="it was altered on the way or on the server; do not use this server",
            )
        with storage_errors(self._target):
            os.fsync(self._file.fileno())
            self._file.close()
            make_folder(self._target.parent)
            os.replace(self._path, self._target)
            sync_folder(self._target.parent)
        self._in_store = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._in_store:
            return
        if self._size == 0 or isinstance(error, StorageError):  # free the space of a full disk
            self._drop()
            return
        self._file.close()
        with contextlib.suppress(OSError):
            os.rename(self._path, _own_path(self._folder, self._name, 0))

    def _drop(self) -> None:
        self._file.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _inherit(self) -> None:
        """Copy the longest orphan of this blob, then delete all of them."""
        left = sorted(orphans(self._folder, self._name), key=_size_of)
        if left and 0 < _size_of(left[-1]) <= self._max_bytes:
            with contextlib.suppress(OSError), open(left[-1], "rb") as file:
                for _ in range(self._max_bytes // COPY_BYTES + 1):
                    self.append(file.read(min(COPY_BYTES, self._max_bytes - self._size)))
        for path in left:
            with contextlib.suppress(OSError):
                path.unlink()


def orphans(folder: Path, name: str | None = None) -> Iterator[Path]:
    """Temporary files without a running writer: of blob ``name``, or of all blobs."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _PARTIAL.fullmatch(path.name)
            if match and name in (None, match[1]) and not in_use(int(match[2]), match[3]):
                yield path


def _own_path(folder: Path, name: str, process: int) -> Path:
    return folder / f"{name}.{process}.{unique()}.part"


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
