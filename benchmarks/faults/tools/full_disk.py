"""Disks without room: a real small one where tmpfs can be mounted, else a limit on file sizes in a forked child."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults.tools.forked import Forked

PATIENCE_S = 120.0


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[bool]:
    """Mount a tmpfs of ``size_bytes`` at ``folder`` (Linux, as root); whether that was possible."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all room of the disk of ``folder``; returns the file that has it."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path


def without_room(operation: Callable[[], object]) -> None:
    """Run the operation in a forked child in which no file can be written to: files are made, but stay empty.

    Raises:
        AssertionError: the operation raised.
    """

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        operation()

    assert Forked(limited).join(PATIENCE_S) == 0, "the operation raised: see its traceback"
