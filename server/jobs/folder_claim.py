"""The right to run jobs in a data folder: one process at a time, which keeps the name of the one before it."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
from pathlib import Path

from device_sdk.files.atomic import storage_errors

_NAME = re.compile(r"[A-Za-z0-9._-]{1,80}")
_NAME_BYTES = 100


class FolderClaim:
    """A lock on the file ``.claim`` in ``folder``. It ends with the process.

    ``name``: of the machine with this folder, for all that share its jobs; it is kept in the file, so that a process
    that is started again recognises its jobs.

    Raises:
        StorageError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".claim"
        self._handle: int | None = None
        self.name = ""

    @property
    def held(self) -> bool:
        """True between ``take`` and ``close``."""
        return self._handle is not None

    def take(self) -> bool:
        """Try to take the lock; False if another process has it."""
        if self._handle is not None:
            return True
        with storage_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.name = _kept_name(handle)
            except BlockingIOError:
                os.close(handle)
                return False
            except BaseException:
                os.close(handle)
                raise
        self._handle = handle
        return True

    def close(self) -> None:
        """Give the lock back. Idempotent."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def new_name() -> str:
    """A name that no other machine has; it begins with that of the host."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:40] or "machine"
    return f"{host}-{secrets.token_hex(4)}"


def _kept_name(handle: int) -> str:
    kept = os.pread(handle, _NAME_BYTES, 0).decode("ascii", "replace").strip()
    if _NAME.fullmatch(kept):
        return kept
    name = new_name()
    os.ftruncate(handle, 0)
    os.pwrite(handle, name.encode(), 0)
    os.fsync(handle)
    return name
