"""The folder of one job: what it is given and what its worker makes there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_sdk.files.untrusted_json import decode_json


class ProgressReport(msgspec.Struct, frozen=True):
    """How far a worker is in what it does now. ``share`` of it in [0, 1]; ``elapsed_s`` seconds of it."""

    task: str
    share: float
    note: str
    elapsed_s: float


@dataclass(frozen=True)
class Workplace:
    """The folder ``folder`` of a job. The bundle comes to be in ``out``, unfinished work lies beside that."""

    folder: Path

    @property
    def weights(self) -> Path:
        """The weights that came with the request, if any did."""
        return self.folder / "weights.safetensors"

    @property
    def recipe(self) -> Path:
        """The recipe as the packager reads it."""
        return self.folder / "recipe.toml"

    @property
    def out(self) -> Path:
        """The finished bundle, until it is published."""
        return self.folder / "out"

    @property
    def log(self) -> Path:
        """What the workers printed."""
        return self.folder / "log"

    @property
    def result(self) -> Path:
        """What the worker told at its end, in JSON."""
        return self.folder / "result.json"

    @property
    def progress(self) -> Path:
        """How far the worker is."""
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

    def clear(self) -> None:
        """Remove everything but the log."""
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path == self.log:
                    continue
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
