"""Writes a bundle once per system call that changes the disk; the n-th writer is killed at its n-th such call.

Run as ``crash_points.py SEED FOLDER WAY``: each writer gets a copy of ``SEED``, ``FOLDER/n``. WAY: ``swap`` exchanges
atomically, ``renames`` as where the system cannot, ``claim`` only claims the output, which recovers. Prints the number
of writers that were killed; the last one was not.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from packager.output.bundle_folder import BundleWriter
from packager.output.folder_exchange import swap_folders
from packager.output.output_claim import OutputClaim
from tests.packager.output.small_bundle import manifest_of

CALLS = ("rename", "replace", "mkdir", "unlink", "rmdir", "fsync", "ftruncate", "pwrite")


class CrashPoint:
    """Kills this process at its ``number``-th call, before it; a write is cut in half."""

    def __init__(self, number: int) -> None:
        self._left = number

    def reached(self) -> bool:
        self._left -= 1
        return self._left == 0

    def guard(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            if self.reached():
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return guarded

    def opened(self, handle: int, mode: str) -> io.FileIO:
        point = self

        class File(io.FileIO):
            def write(self, data: Any) -> int:
                if point.reached():
                    super().write(data[: len(data) // 2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().write(data)

        return File(handle, mode)


def write(out: Path, way: str, point: CrashPoint) -> None:
    swap = point.guard(swap_folders) if way == "swap" else lambda *_: False
    with OutputClaim(out) as claim:
        if way == "claim":
            return
        with BundleWriter(claim, swap=swap) as writer:
            blob = b"new" * 1000
            writer.finish(manifest_of(writer.add_blob(blob), size=len(blob), version=2), private_key=None)


def is_killed(out: Path, way: str, number: int) -> bool:
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    point = CrashPoint(number)
    for name in CALLS:
        setattr(os, name, point.guard(getattr(os, name)))
    os.fdopen = point.opened  # type: ignore[assignment]
    try:
        write(out, way, point)
    finally:
        os._exit(0)


def main(seed: Path, folder: Path, way: str) -> None:
    number = 0
    killed = True
    while killed:
        number += 1
        shutil.copytree(seed, folder / str(number))
        killed = is_killed(folder / str(number) / "out", way, number)
    print(number - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
