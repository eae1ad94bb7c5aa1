"""Atomic file writes."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from device_sdk.errors import StorageError


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path``: temporary file in the same folder, fsync, rename. ``mode``: its permissions.

    Raises:
        StorageError: the file could not be written; the old content of ``path`` is unchanged.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Translate OSError into StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}",
            hint="free some space or choose another folder",
        ) from error
