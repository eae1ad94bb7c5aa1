"""The exclusive right to write a bundle folder and its work folder: one process at a time (docs/adr/0039)."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from device_sdk.files.atomic import storage_errors
from packager.errors import OutputBusyError, PackagingError
from packager.output.folder_exchange import recover, sweep
from packager.output.ownership import is_work

try:
    import fcntl
except ImportError:  # Windows has no flock: only one process at a time is safe
    fcntl = None  # type: ignore[assignment]

_PID_BYTES = 20


def work_folder(out: Path) -> Path:
    """The folder of unfinished work on the bundle ``out``."""
    return out.with_name(f"{out.name}.work")


class OutputClaim:
    """A lock on the folder ``out``, held as a context manager. It ends with the process.

    On entry an interrupted exchange is recovered, and temporaries of killed runs are deleted. ``target`` is the folder
    itself: ``out``, or what the link ``out`` points to.

    Raises:
        OutputBusyError: another process or thread holds it.
        PackagingError: a file that packaging did not write has the lock's name.
        StorageError: the folder of ``out`` cannot be written.
    """

    def __init__(self, out: Path) -> None:
        self.target = Path(os.path.realpath(out)) if out.is_symlink() else out
        self._work = work_folder(out)
        self._path = self.target.with_name(f".{self.target.name}.lock")
        self._handle: int | None = None

    def __enter__(self) -> OutputClaim:
        with storage_errors(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._handle = _locked(self._path, self.target)
            _held.add(self._handle)
            try:
                recover(self.target)
                sweep(self.target)
                sweep(self._work)
                if is_work(self._work):
                    _sweep_work(self._work)
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._handle is not None
        with contextlib.suppress(OSError):
            self._path.unlink()  # while it is locked: the next process checks that its file is still there
        _held.discard(self._handle)
        os.close(self._handle)
        self._handle = None


def _locked(path: Path, target: Path) -> int:
    """A descriptor of the locked file ``path``, which contains this process's id."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(handle, path):
                _require_lock_file(handle, path)
                _write_pid(handle)
                return handle
            os.close(handle)  # deleted since it was opened
        except BlockingIOError as error:
            holder = os.pread(handle, _PID_BYTES, 0).decode("ascii", "replace").strip()
            os.close(handle)
            raise OutputBusyError(
                f"{target} is being written by {f'process {holder}' if holder else 'another process'}",
                hint="wait until it ends, or choose another --out folder",
            ) from error


def _require_lock_file(handle: int, path: Path) -> None:
    """Refuse a file of the lock's name that holds anything but a process's id: it would be deleted at the end."""
    content = os.pread(handle, _PID_BYTES + 1, 0)
    if len(content) > _PID_BYTES or (content and not content.strip().isdigit()):
        os.close(handle)
        raise PackagingError(f"{path} is not a lock of packaging", hint="move it away, or choose another --out folder")


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _write_pid(handle: int) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock is held all the same
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)


def _sweep_work(work: Path) -> None:
    """Delete what killed runs left in the work folder: files half written, and caches that no run resumes."""
    for path in work.iterdir():
        if path.is_dir() and path.name.startswith("features."):
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file() and path.name.startswith("."):
            path.unlink(missing_ok=True)


_held: set[int] = set()


def _close_held() -> None:
    """In a forked child, which would keep the lock when its parent is killed."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_held)
