"""The folder of one job: its inputs and its worker's outputs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

import msgspec

from device_sdk.files.atomic import decode_json

_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nor a pipe that never ends
_MAX_REPORT_BYTES = 100_000


class ProgressReport(msgspec.Struct, frozen=True):
    """A worker's progress in its current task: ``share`` in [0, 1], and ``elapsed_s`` seconds."""

    task: str
    share: float
    note: str
    elapsed_s: float


class Workplace:
    """The folder ``folder`` of a job: paths in it, and access to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.weights = folder / "weights.safetensors"  # sent with the request, if any
        self.recipe = folder / "recipe.toml"  # for the packager
        self.out = folder / "out"  # the bundle until it is published, not signed
        self.work = folder / "out.work"  # what an interrupted worker has saved, to resume
        self.log = folder / "log"  # the output of the workers
        self.result = folder / "result.json"  # of the worker
        self.progress = folder / "progress.json"  # the worker's ProgressReport

    def open_to_read(self, path: Path) -> BinaryIO:
        """A file of the folder, never through a link: its worker may be another user (OSError otherwise)."""
        return os.fdopen(os.open(path, os.O_RDONLY | _NO_LINK), "rb")

    def open_to_append(self, path: Path) -> BinaryIO:
        """The same, to write at its end."""
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _NO_LINK, 0o600), "ab")

    def open_to_write(self, path: Path) -> BinaryIO:
        """A new file, instead of whatever was there."""
        path.unlink(missing_ok=True)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600), "wb")

    def read_progress(self) -> ProgressReport | None:
        """The latest report; None if there is none."""
        try:
            with self.open_to_read(self.progress) as file:
                return decode_json(file.read(_MAX_REPORT_BYTES), ProgressReport)
        except (OSError, ValueError):
            return None

    def read_log(self, *, max_bytes: int) -> str:
        """The end of the log, whole lines of at most ``max_bytes``; "" if there is none."""
        try:
            with self.open_to_read(self.log) as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - max_bytes))
                data = file.read(max_bytes)
        except OSError:
            return ""
        if size > max_bytes:
            data = data.partition(b"\n")[2]
        return data.decode(errors="replace")

    def clear(self, *, keep_bundle: bool = False) -> None:
        """Remove everything but the log, and with ``keep_bundle`` the finished bundle."""
        kept = (self.log, self.out) if keep_bundle else (self.log,)
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path not in kept:
                    remove_entry(path)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def remove_entry(path: Path) -> None:
    """Remove a file, a link, or a folder with all in it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
