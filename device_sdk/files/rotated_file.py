"""Lines in a file that starts anew when it has grown large; a few old files stay beside it.

``NAME`` is the newest file, ``NAME.1`` the one before it, and so on. Several processes may append to one file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows: one process at a time, please
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 1_000_000
KEPT_FILES = 3
_REOPENED_AT_MOST = 8  # a file that others rotate again and again while we wait for it


def append_line(path: Path, line: bytes, *, max_bytes: int = MAX_BYTES, kept: int = KEPT_FILES) -> None:
    """Append ``line`` and a newline to the file at ``path``, which starts anew once it is over ``max_bytes``.

    A last line that a crash or a full disk cut short is removed first, so that it does not spoil the next one.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for _ in range(_REOPENED_AT_MOST):
        with path.open("ab+", buffering=0) as file:
            if not _locked(file, path):
                continue
            size = _without_torn_line(file)
            if size and size + len(line) + 1 > max_bytes:
                _rotate(path, kept)
                continue
            _write(file, line + b"\n", back_to=size)
            return
    raise OSError(f"{path} is rotated all the time")


def files_of(path: Path) -> list[Path]:
    """The files that there are, the oldest first; ``path`` itself always is the last."""
    numbered = []
    for found in path.parent.glob(f"{path.name}.*"):
        suffix = found.name[len(path.name) + 1 :]
        if suffix.isdecimal():
            numbered.append((int(suffix), found))
    return [*(found for _, found in sorted(numbered, reverse=True)), path]


@contextlib.contextmanager
def opened_files(path: Path) -> Iterator[list[tuple[Path, BinaryIO]]]:
    """All files of ``path``, opened, the oldest first: what is rotated meanwhile is neither missed nor seen twice.

    Raises:
        OSError: ``path`` itself cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        opened: list[tuple[Path, BinaryIO]] = []  # the newest first: files only ever grow older
        seen: set[tuple[int, int]] = set()
        for one in [*reversed(files_of(path)), *reversed(files_of(path)[:-1])]:  # twice, for what moved on meanwhile
            try:
                file = stack.enter_context(one.open("rb"))
            except OSError:
                if one == path:
                    raise
                continue
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity not in seen:
                seen.add(identity)
                opened.append((one, file))
        yield opened[::-1]


def _locked(file: BinaryIO, path: Path) -> bool:
    """Lock the file; False if it is no longer the one at ``path``: somebody rotated it while we waited."""
    if fcntl is None:
        return True
    with contextlib.suppress(OSError):  # a file system or a device without locks
        fcntl.flock(file, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _without_torn_line(file: BinaryIO) -> int:
    """Cut off a last line without its end; the size of the rest."""
    if not file.seekable():
        return 0
    size = file.seek(0, os.SEEK_END)
    if not size:
        return 0
    file.seek(size - 1)
    if file.read(1) in (b"\n", b""):
        return size
    file.seek(0)
    whole = file.read(size).rfind(b"\n") + 1
    file.truncate(whole)
    return whole


def _write(file: BinaryIO, data: bytes, *, back_to: int) -> None:
    """All of ``data`` or nothing of it."""
    written = 0
    try:
        while written < len(data):
            written += file.write(data[written:]) or 0
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(back_to)
        raise


def _rotate(path: Path, kept: int) -> None:
    for number in range(kept, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        newer = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(newer, older)
    if kept < 1:
        path.unlink(missing_ok=True)
