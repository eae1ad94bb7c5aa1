"""Usable cores and memory of this process: affinity, control groups of both versions, the whole system."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from device_sdk.errors import MeasurementError

_MOST_BYTES = 64 * 1024  # of one of the system's files


def read_text(path: Path) -> str:
    """The beginning of one of the system's files.

    Raises:
        MeasurementError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise MeasurementError(f"{path} cannot be read: {error.strerror}") from error


def number(text: str, path: Path) -> int:
    """A number of bytes or microseconds, not negative. ``path``: named in the error.

    Raises:
        MeasurementError: the text is none.
    """
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise MeasurementError(f"{path} says {digits[:40]!r}, which is no number")
    return int(digits)


def field(path: Path, name: str) -> int | None:
    """The number behind ``name`` in a file of lines ``name value`` or ``name: value kB``, in bytes; None without it.

    Raises:
        MeasurementError: the file cannot be read, or the value is no number.
    """
    for line in read_text(path).splitlines():
        found, *values = line.split() or [""]
        if found.rstrip(":") == name:
            unit = 1024 if values[1:] == ["kB"] else 1
            return unit * number(values[0] if values else "", path)
    return None


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


_UNLIMITED = ("max", "-1")


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that the scheduler gives this process: by its affinity, and by the quotas of its control groups.

    At least 1. A quota of one and a half cores counts as two, as the JVM counts it. ``root``: below which the files of
    control groups are.
    """
    scheduled = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(scheduled, *_quotas(root))))


def _quotas(root: Path) -> Iterator[float]:
    """Quotas in cores; a file that says something else limits nothing."""
    yield math.inf
    for folder in unified_groups("cpu.max", root=root):
        with contextlib.suppress(MeasurementError, ValueError):
            quota, period = read_text(folder / "cpu.max").split()
            yield from _quota(quota, period, folder)
    for folder in legacy_groups("cpu", "cpu.cfs_quota_us", root=root):
        with contextlib.suppress(MeasurementError):
            yield from _quota(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us"), folder)


def _quota(quota: str, period: str, folder: Path) -> Iterator[float]:
    if quota.strip() not in _UNLIMITED and (period_us := number(period, folder)):
        yield number(quota, folder) / period_us


_ROOT = Path("/")
_MEMORY_UNLIMITED = "max"
_LEGACY_UNLIMITED_BYTES = 2**62  # version 1 states no limit as the largest multiple of a page, just below 2**63


@dataclass(frozen=True)
class MemoryGroup:
    """A control group that counts memory. ``limits``: names of the files with its limits, in bytes; ``usage``: of the
    file with its use; ``droppable``: of the field of ``memory.stat`` with the page cache that the kernel drops first.
    """

    folder: Path
    limits: tuple[str, ...]
    usage: str
    droppable: str

    def limit_bytes(self) -> int | None:
        """The memory at which the kernel begins to throttle or ends processes of this group; None without a limit.

        Raises:
            MeasurementError: a file says something else, or is gone.
        """
        paths = [path for path in (self.folder / name for name in self.limits) if path.exists()]
        texts = [(path, read_text(path).strip()) for path in paths]
        limits = [number(text, path) for path, text in texts if text != _MEMORY_UNLIMITED]
        return min((limit for limit in limits if limit < _LEGACY_UNLIMITED_BYTES), default=None)

    def used_bytes(self) -> int:
        """The memory in use in this group and those below it, without the page cache that can be dropped.

        Raises:
            MeasurementError: as above.
        """
        used = number(read_text(self.folder / self.usage), self.folder / self.usage)
        stat = self.folder / "memory.stat"
        return used - ((field(stat, self.droppable) or 0) if stat.exists() else 0)


def memory_groups(root: Path = _ROOT) -> list[MemoryGroup]:
    """The control groups of this process that count memory, the innermost first: version 2's, else version 1's."""
    unified = unified_groups("memory.max", root=root)
    if unified:
        limits = ("memory.max", "memory.high")
        return [MemoryGroup(folder, limits, "memory.current", "inactive_file") for folder in unified]
    name = "memory.limit_in_bytes"
    legacy = legacy_groups("memory", name, root=root)
    return [MemoryGroup(folder, (name,), "memory.usage_in_bytes", "total_inactive_file") for folder in legacy]


def memory_bytes(root: Path = _ROOT) -> int | None:
    """The memory that this process may have at most: the machine's, or a smaller limit of its control groups.

    None where the system states neither.
    """
    known = [machine_bytes(root)]
    for group in memory_groups(root):
        with contextlib.suppress(MeasurementError):
            known.append(group.limit_bytes())
    return min((one for one in known if one), default=None)


def machine_bytes(root: Path = _ROOT) -> int | None:
    """The memory of the whole machine; None where the system does not state it."""
    with contextlib.suppress(MeasurementError):
        return field(root / "proc/meminfo", "MemTotal")
    if sys.platform == "win32":
        return _windows_bytes()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # macOS states it here
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def resident_bytes(pid: int | None = None) -> int | None:
    """Resident memory of a process, by default this one; None where the system does not state it."""
    return _own_field("VmRSS", pid)


def mapped_bytes() -> int | None:
    """Address space that this process has taken; None where the system does not state it."""
    return _own_field("VmSize", None)


def peak_resident_bytes() -> int | None:
    """Peak resident memory of this process; None where the system does not state it.

    ``getrusage``, used where nothing else is there, counts what the parent had when it forked as well.
    """
    found = _own_field("VmHWM", None)
    if found is not None:
        return found
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # bytes
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _own_field(name: str, pid: int | None) -> int | None:
    with contextlib.suppress(MeasurementError):
        return field(Path("/proc") / str(pid or "self") / "status", name)
    return None


def _windows_bytes() -> int | None:
    """``ullTotalPhys`` of the system's MEMORYSTATUSEX: the second of its 64-bit fields, behind two 32-bit ones."""
    import ctypes

    status = (ctypes.c_uint64 * 8)(64)  # its first 32 bits are the size of the structure
    kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009
    return int(status[1]) if kernel32.GlobalMemoryStatusEx(ctypes.byref(status)) else None


__all__ = ["mapped_bytes", "memory_bytes", "peak_resident_bytes", "resident_bytes", "usable_cores"]
