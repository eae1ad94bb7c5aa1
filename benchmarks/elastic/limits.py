"""Memory limits for ``elastic``: set in a control group of this process, or as the model's cap."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from device_sdk.live.elastic import ElasticSettings
from device_sdk.machine import resident_bytes, unified_groups
from device_sdk.memory_pressure import CgroupMemory
from device_sdk.session.adaptive_model import AdaptiveModel

_GROUP = "pathweave-elastic"
_MEMBERS, _DIVIDED = "cgroup.procs", "cgroup.subtree_control"


class Limit(Protocol):
    """One way to limit the model's memory beyond the bare runtime, and to measure it."""

    @property
    def name(self) -> str:
        """Description of the limit and of the measurement."""

    def begin(self, model: AdaptiveModel) -> None:
        """Take the memory as it is now as that of the bare runtime."""

    def set(self, model: AdaptiveModel, limit_bytes: int) -> None:
        """Limit it from now on."""

    def used_bytes(self) -> int:
        """Bytes that are in use now beyond the bare runtime."""


@dataclass
class CapLimit:
    """The cap of the model, and the resident memory of the process."""

    reason: str = ""  # why there is no control group
    bare_bytes: int = 0

    @property
    def name(self) -> str:
        return f"the model's cap at run time; memory is the growth of the resident process ({self.reason})"

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
        self.folder = folder
        self._bare_bytes = 0

    def begin(self, model: AdaptiveModel) -> None:
        self._bare_bytes = self._current_bytes()
        settings = ElasticSettings(reserve_bytes=0, interval_s=0.02)
        model.live.start("memory", elastic=settings, pressure=CgroupMemory())

    def set(self, model: AdaptiveModel, limit_bytes: int) -> None:
        (self.folder / "memory.high").write_text(str(self._bare_bytes + limit_bytes))

    def used_bytes(self) -> int:
        return self._current_bytes() - self._bare_bytes

    def _current_bytes(self) -> int:
        return int((self.folder / "memory.current").read_text())


def find_limit(root: Path = Path("/")) -> Limit:
    """A control group of version 2 below that of this process, if one that counts memory can be made; else the cap.

    Where the process's own group does not divide memory among groups below it yet, it is made to, after this process
    has moved into the one below: the kernel wants it empty. That takes a group that was delegated to this process
    alone, for example ``systemd-run --user --scope --property=Delegate=yes``.
    """
    own = _own_group(root)
    if own is None:
        return CapLimit(reason="this process is in no group of version 2 that has a memory controller")
    folder = own / _GROUP
    try:
        folder.mkdir(exist_ok=True)
        counts = "memory" in (own / _DIVIDED).read_text().split()
        if counts and not (folder / "memory.high").exists():
            raise OSError("the group below does not count memory")
        (folder / _MEMBERS).write_text(str(os.getpid()))
        if not counts:
            (own / _DIVIDED).write_text("+memory")
        (folder / "memory.high").read_text()
        return GroupLimit(folder)
    except OSError as error:
        reason = str(error)
    with contextlib.suppress(OSError):  # back, so that nothing is left
        if str(os.getpid()) in (folder / _MEMBERS).read_text().split():
            (own / _MEMBERS).write_text(str(os.getpid()))
    with contextlib.suppress(OSError):
        folder.rmdir()
    return CapLimit(reason=reason)


def _own_group(root: Path) -> Path | None:
    """The control group of version 2 of this process, if that version has the memory controller here."""
    found = unified_groups("cgroup.controllers", root=root)
    return found[0] if found and "memory" in (found[0] / "cgroup.controllers").read_text().split() else None
