"""Control groups of this process, of version 2 or 1 (cgroups(7)): where their limits stand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.machine.system_files import read_text

_MOUNT = "sys/fs/cgroup"
_UNIFIED = (_MOUNT, f"{_MOUNT}/unified")  # the second where version 1 is mounted beside version 2


def unified_groups(file: str, *, root: Path = Path("/")) -> list[Path]:
    """Groups of version 2 that have ``file`` (such as ``memory.max``), the innermost first; none: an empty list."""
    for controllers, path in _memberships(root):
        if not controllers:
            return _groups((root / mount for mount in _UNIFIED), path, file)
    return []


def legacy_groups(controller: str, file: str, *, root: Path = Path("/")) -> list[Path]:
    """Groups of version 1 below ``controller`` (such as ``cpu``) that have ``file``, the innermost first."""
    for controllers, path in _memberships(root):
        if controller in controllers.split(","):
            return _groups((root / _MOUNT / name for name in (controllers, controller)), path, file)
    return []


def _memberships(root: Path) -> list[tuple[str, str]]:
    """Controllers, empty for version 2, and path of each group, from lines ``number:controllers:path``."""
    try:
        lines = read_text(root / "proc/self/cgroup").splitlines()
    except MeasurementError:  # not Linux
        return []
    fields = [line.split(":", 2) for line in lines]
    return [(one[1], one[2].strip()) for one in fields if len(one) == 3]


def _groups(mounts: Iterable[Path], path: str, file: str) -> list[Path]:
    """The group at ``path`` and those above it. Inside a container the mount itself can be the group."""
    for mount in mounts:
        inner = mount / path.lstrip("/")
        if ".." in inner.parts:  # outside the part of the tree that is visible here
            continue
        inner = inner if inner.is_dir() else mount
        above = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount)]
        found = [folder for folder in above if (folder / file).exists()]
        if found:
            return found
    return []
