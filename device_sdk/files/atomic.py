"""Files that are written whole or not at all, folders with one writer, and JSON from files that are not trusted."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from device_sdk.errors import StorageError

_TEMPORARY = re.compile(r"\..+\.([0-9]{1,10})\.([0-9a-f]+)\.tmp")
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.ENOSYS})


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write ``data`` to ``path``: temporary file in the same folder, fsync, rename, fsync of the folder.

    ``mode``: the file's permissions.

    Raises:
        StorageError: the file could not be written; the old content of ``path`` is unchanged.
    """
    with storage_errors(path):
        make_folder(path.parent)
        temporary = path.with_name(f".{path.name}.{own_suffix()}.tmp")
        try:
            with open(temporary, "xb") as file:
                os.chmod(temporary, mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        sync_folder(path.parent)


def write_if_changed(path: Path, data: bytes) -> None:
    """``write_atomically``, unless ``path`` already has this content: a full disk then does not matter.

    Raises:
        StorageError: as ``write_atomically``.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return
    write_atomically(path, data)


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents; each new entry is synced to disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_folder(one.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` survive a power failure, where the file system can.

    Raises:
        OSError: the disk failed.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows does not open folders
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def remove_temporaries(folder: Path) -> None:
    """Delete the temporary files of ``write_atomically`` in ``folder`` whose writers have ended."""
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            match = _TEMPORARY.fullmatch(path.name)
            if match and not in_use(int(match[1]), match[2]):
                path.unlink(missing_ok=True)


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


_RUN = secrets.token_hex(8)  # identifies this process run: process ids are recycled
_numbers = itertools.count()


def own_suffix() -> str:
    """``<process id>.<unique>``: part of the name of a file that this process writes."""
    return f"{os.getpid()}.{unique()}"


def unique() -> str:
    """Hexadecimal digits, unique in this run and different in every other."""
    return f"{_RUN}{next(_numbers):x}"


def in_use(process: int, unique: str) -> bool:
    """True if the writer ``process``, which chose ``unique``, may still run. Process 0 stands for none."""
    if process == 0:
        return False
    if process == os.getpid():
        return unique.startswith(_RUN)
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


Decoded = TypeVar("Decoded")


def decode_json(data: bytes, kind: type[Decoded], *, hook: Callable[[type, Any], Any] | None = None) -> Decoded:
    """``data`` as a ``kind``; unknown fields are ignored. ``hook``: decodes types that msgspec does not know.

    Raises:
        ValueError: not JSON, not UTF-8, nested too deeply, or not a ``kind``; the message says which and where.
    """
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=hook)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
