"""Advisory locks between processes (flock).

A lock goes with its holder: one that is killed leaves none behind. Where the system or the file system has no locks,
``shared`` and ``exclusive`` do nothing, and ``try_exclusive`` always fails, so work that must run alone is skipped.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from device_sdk.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

WAIT_S = 10.0  # holders do a few small writes
_POLL_S = 0.01
_BUSY = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EINTR})

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def exclusive(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock on ``path``, a file that is created if need be or a folder, alone.

    Raises:
        StorageError: another process held it for ``wait_s``, or the file cannot be created.
    """
    with _held(path, shared=False, wait_s=wait_s):
        yield


@contextlib.contextmanager
def shared(path: Path, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the lock on ``path`` together with others that share it.

    Raises:
        StorageError: as ``exclusive``.
    """
    with _held(path, shared=True, wait_s=wait_s):
        yield


@contextlib.contextmanager
def if_possible(lock: AbstractContextManager[None]) -> Iterator[None]:
    """Hold ``lock``; where it cannot be had, go on without it and say why in the log of the process."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock)
        except StorageError as error:
            _log.warning("%s", error)
        yield


@contextlib.contextmanager
def try_exclusive(path: Path) -> Iterator[bool]:
    """Hold the lock alone if it is free now; yields True if it is held."""
    try:
        handle = _open(path)
    except OSError:
        yield False
        return
    try:
        yield _try(handle, shared=False) is True
    finally:
        os.close(handle)


class Lease:
    """A shared lock on the folder ``path`` until ``close``, or nothing where there is no such folder or no locks."""

    def __init__(self, path: Path) -> None:
        self._handle: int | None = None
        with contextlib.suppress(OSError):
            self._handle = os.open(path, os.O_RDONLY)
            _try(self._handle, shared=True)

    def close(self) -> None:
        """Give it up. Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def _held(path: Path, *, shared: bool, wait_s: float) -> Iterator[None]:
    try:
        handle = _open(path)
    except OSError as error:
        raise StorageError(
            f"cannot lock {path}: {error.strerror or error}", hint="free some space or choose another folder"
        ) from error
    try:
        ends_s = time.monotonic() + wait_s
        while _try(handle, shared=shared) is False:
            if time.monotonic() > ends_s:
                raise StorageError(f"another process holds {path}", hint="try again once it has ended")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    if path.is_dir():
        return os.open(path, os.O_RDONLY)
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)


def _try(handle: int, *, shared: bool) -> bool | None:
    """Try to take the lock, without waiting: True if taken, False if held elsewhere, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True
