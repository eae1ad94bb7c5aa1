"""A file of lines that several processes append to, within a limit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows has no flock: only one process at a time is safe
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 1_000_000
KEPT_FILES = 3
_REOPENED_AT_MOST = 8  # retries when another process rotates the file while this one waits for the lock


def append_line(path: Path, line: bytes, *, max_bytes: int = MAX_BYTES, kept: int = KEPT_FILES) -> None:
    """Append ``line`` and a newline to the file at ``path``; rotate it first if it would exceed ``max_bytes``.

    An incomplete last line, left by a crash or a full disk, is removed first.

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
    raise OSError(f"{path} was rotated {_REOPENED_AT_MOST} times while it was opened")


def files_of(path: Path) -> list[Path]:
    """The existing files, oldest first; ``path`` itself is always the last."""
    numbered = []
    for candidate in path.parent.glob(f"{path.name}.*"):
        suffix = candidate.name[len(path.name) + 1 :]
        if suffix.isdecimal():
            numbered.append((int(suffix), candidate))
    return [*(older for _, older in sorted(numbered, reverse=True)), path]


@contextlib.contextmanager
def opened_files(path: Path) -> Iterator[list[tuple[Path, BinaryIO]]]:
    """All files of ``path``, opened, oldest first. A concurrent rotation neither skips nor repeats a file.

    Raises:
        OSError: ``path`` itself cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        opened: list[tuple[Path, BinaryIO]] = []  # newest first, the direction in which rotation moves files
        seen: set[tuple[int, int]] = set()
        names = [*reversed(files_of(path)), *reversed(files_of(path)[:-1])]  # twice: files rotate between
        for name in names:
            try:
                file = stack.enter_context(name.open("rb"))
            except OSError:
                if name == path:
                    raise
                continue
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if identity not in seen:
                seen.add(identity)
                opened.append((name, file))
        yield opened[::-1]


def _locked(file: BinaryIO, path: Path) -> bool:
    """Lock the file; False if another process rotated it first, so that it is no longer the one at ``path``."""
    if fcntl is None:
        return True
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX)
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _without_torn_line(file: BinaryIO) -> int:
    """Truncate an incomplete last line; returns the remaining size."""
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
    """Write all of ``data``, or truncate the file to ``back_to`` and raise."""
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
