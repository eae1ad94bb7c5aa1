"""Where the limit of ``elastic`` is set: in a control group of this process, or as the model's cap."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from device_sdk.live.elastic import ElasticSettings
from device_sdk.memory_pressure import CgroupMemory
from device_sdk.profiling.memory import resident_bytes
from device_sdk.session.adaptive_model import AdaptiveModel

_GROUP = "pathweave-elastic"


class Limit(Protocol):
    """One way to limit the model's memory beyond the bare runtime, and to measure it."""

    name: str

    def begin(self, model: AdaptiveModel) -> None:
        """Take the memory as it is now as that of the bare runtime."""

    def set(self, model: AdaptiveModel, limit_bytes: int) -> None:
        """Limit it from now on."""

    def used_bytes(self) -> int:
        """What is taken now beyond the bare runtime."""


@dataclass
class CapLimit:
    """The cap of the model, and the resident memory of the process."""

    name = "the model's cap at run time; memory is the growth of the resident process"
    bare_bytes: int = 0

    def begin(self, model: AdaptiveModel) -> None:
        self.bare_bytes = resident_bytes() or 0

    def set(self, model: AdaptiveModel, limit_bytes: int) -> None:
        model.memory_cap_bytes = limit_bytes

    def used_bytes(self) -> int:
        return (resident_bytes() or 0) - self.bare_bytes


class GroupLimit:
    """``memory.high`` of a control group that holds this process alone; the model follows it by itself."""

    name = "memory.high of a control group; memory is its memory.current"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bare_bytes = 0

    def begin(self, model: AdaptiveModel) -> None:
        self._bare_bytes = self._current_bytes()
        model.watch_memory(CgroupMemory(), settings=ElasticSettings(reserve_bytes=0, interval_s=0.02))

    def set(self, model: AdaptiveModel, limit_bytes: int) -> None:
        (self._folder / "memory.high").write_text(str(self._bare_bytes + limit_bytes))

    def used_bytes(self) -> int:
        return self._current_bytes() - self._bare_bytes

    def _current_bytes(self) -> int:
        return int((self._folder / "memory.current").read_text())


def find_limit(root: Path = Path("/")) -> Limit:
    """A control group of version 2 below that of this process, if one that counts memory can be made; else the cap."""
    own = _own_group(root)
    if own is None:
        return CapLimit()
    folder = own / _GROUP
    try:
        folder.mkdir(exist_ok=True)
        if (folder / "memory.high").exists():
            (folder / "cgroup.procs").write_text(str(os.getpid()))
            return GroupLimit(folder)
    except OSError:
        pass
    with contextlib.suppress(OSError):
        folder.rmdir()
    return CapLimit()


def _own_group(root: Path) -> Path | None:
    """The control group of version 2 of this process, if that version counts memory here."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    folder = None if own is None else root / "sys/fs/cgroup" / own.lstrip("/")
    if folder is None or not (folder / "cgroup.controllers").exists():
        return None
    return folder if "memory" in (folder / "cgroup.subtree_control").read_text().split() else None
