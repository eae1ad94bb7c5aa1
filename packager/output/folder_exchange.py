"""Replacing a folder by a new one so that a kill at any point leaves a whole one, or one that ``recover`` restores.

With ``renameat2(RENAME_EXCHANGE)`` the two folders change places in one step. Where the kernel or the file system lacks
it, three renames do:

    new → .NAME.ready     the new folder is complete
    NAME → .NAME.replaced
    .NAME.ready → NAME

Between the last two nothing is at NAME. ``recover`` then completes the exchange. A folder that is to be deleted is
renamed first, so a folder that was deleted in part is never taken for a whole one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from device_sdk.files.atomic import sync_folder
from packager.output.ownership import is_bundle

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)  # EPERM: by a seccomp filter

Swap = Callable[[Path, Path], bool]


def swap_folders(first: Path, second: Path) -> bool:
    """Exchange two folders atomically; False, with nothing changed, where the system cannot.

    Raises:
        OSError: the exchange failed.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(first))


def replace_folder(new: Path, target: Path, *, swap: Swap = swap_folders) -> None:
    """Move ``new``, a complete folder beside ``target``, to ``target``, and delete what was there.

    Raises:
        OSError: a rename failed; ``recover`` restores ``target``.
    """
    if not os.path.lexists(target):
        _rename(new, target)
    elif swap(new, target):
        sync_folder(target.parent)
        discard(new, owner=target)
    else:
        ready, replaced = _ready(target), _replaced(target)
        _rename(new, ready)
        _rename(target, replaced)
        _rename(ready, target)
        discard(replaced, owner=target)


def recover(target: Path) -> None:
    """Complete or roll back an exchange that was interrupted. Only the writer of ``target`` may call it.

    Folders of these names that are no bundles stay.

    Raises:
        OSError: a rename failed.
    """
    ready, replaced = _ready(target), _replaced(target)
    if not os.path.lexists(target):
        whole = next((folder for folder in (ready, replaced) if is_bundle(folder)), None)
        if whole is not None:
            _rename(whole, target)
    for folder in (ready, replaced):
        if is_bundle(folder):
            discard(folder, owner=target)


def temporary_beside(target: Path, purpose: str = "writing") -> Path:
    """A new name in the folder of ``target``, which ``sweep`` recognises."""
    return target.with_name(f".{target.name}.{purpose}.{secrets.token_hex(8)}")


def discard(folder: Path, *, owner: Path | None = None) -> None:
    """Delete a folder, or a link: renamed first, so that it is there as a whole or not at all. Errors are ignored.

    ``owner``: whose ``sweep`` deletes what a kill leaves, by default the folder's own.
    """
    discarded = temporary_beside(owner or folder, "discarded")
    with contextlib.suppress(OSError):
        _rename(folder, discarded)
        _delete(discarded)


def sweep(target: Path) -> None:
    """Delete temporaries of killed writers of ``target``. Only its writer may call it, after ``recover``."""
    ours = re.compile(rf"\.{re.escape(target.name)}\.(writing|discarded)\.[0-9a-f]{{16}}")
    for path in target.parent.iterdir():
        if ours.fullmatch(path.name):
            _delete(path)


def _ready(target: Path) -> Path:
    return target.with_name(f".{target.name}.ready")


def _replaced(target: Path) -> Path:
    return target.with_name(f".{target.name}.replaced")


def _rename(source: Path, target: Path) -> None:
    os.rename(source, target)
    sync_folder(target.parent)


def _delete(path: Path) -> None:
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
