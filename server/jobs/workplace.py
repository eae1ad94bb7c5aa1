"""The folder of one job: its inputs and its worker's outputs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sdk.files.untrusted_json import decode_json


class ProgressReport(msgspec.Struct, frozen=True):
    """A worker's progress in its current task: ``share`` in [0, 1], and ``elapsed_s`` seconds."""

    task: str
    share: float
    note: str
    elapsed_s: float


@dataclass(frozen=True)
class Workplace:
    """The folder ``folder`` of a job. The bundle is written to ``out``, unfinished work beside it."""

    folder: Path

    @property
    def weights(self) -> Path:
        """The weights sent with the request, if any."""
        return self.folder / "weights.safetensors"

    @property
    def recipe(self) -> Path:
        """The recipe in TOML for the packager."""
        return self.folder / "recipe.toml"

    @property
    def out(self) -> Path:
        """The finished bundle, until it is published. It is not signed and no catalogue serves it."""
        return self.folder / "out"

    @property
    def log(self) -> Path:
        """The output of the workers."""
        return self.folder / "log"

    @property
    def result(self) -> Path:
        """The worker's result in JSON."""
        return self.folder / "result.json"

    @property
    def progress(self) -> Path:
        """The worker's progress report."""
        return self.folder / "progress.json"

    def read_progress(self) -> ProgressReport | None:
        """The latest report; None if there is none."""
        try:
            return decode_json(self.progress.read_bytes(), ProgressReport)
        except (OSError, ValueError):
            return None

    def read_log(self, *, max_bytes: int) -> str:
        """The end of the log, whole lines of at most ``max_bytes``; "" if there is none."""
        try:
            with self.log.open("rb") as file:
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
                if path in kept:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
