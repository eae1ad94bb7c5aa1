"""Memory: what this process may have at most, and what it has."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.machine.control_groups import legacy_groups, unified_groups
from device_sdk.machine.system_files import field, number, read_text

_ROOT = Path("/")
_UNLIMITED = "max"
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
        limits = [number(text, path) for path, text in texts if text != _UNLIMITED]
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
