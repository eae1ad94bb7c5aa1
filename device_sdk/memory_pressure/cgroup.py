"""Memory limits of control groups, version 2: of this process's group and those above it."""

from __future__ import annotations

from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.memory_pressure.port import MemoryReading, number, read_text, stalled_share

_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")  # the second where version 1 is mounted beside it
_UNLIMITED = "max"
_DROPPABLE = "inactive_file"  # the page cache that the kernel drops first


class CgroupMemory:
    """See the port. The tightest of the limits counts; limits may be set and lifted meanwhile, none is no reading.

    Raises:
        MeasurementError: no control group of this process counts memory.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._folders = _folders(root)
        if not self._folders:
            raise MeasurementError("this process is in no control group of version 2 that counts memory")
        self.name = str(self._folders[0])

    def read(self) -> MemoryReading:
        """See the port."""
        rooms = [room for room in map(_room_bytes, self._folders) if room is not None]
        if not rooms:
            raise MeasurementError("no control group of this process limits memory")
        return MemoryReading(min(rooms), stalled_share(self._folders[0] / "memory.pressure"))


def _folders(root: Path) -> list[Path]:
    """The groups of this process that count memory, the innermost first."""
    lines = read_text(root / "proc/self/cgroup").splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if own is None:
        return []
    for mount in (root / one for one in _MOUNTS):
        inner = mount / own.strip().lstrip("/")
        if ".." in inner.parts or not inner.is_dir():
            continue
        found = [folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount)]
        found = [folder for folder in found if (folder / "memory.max").exists()]
        if found:
            return found
    return []


def _room_bytes(folder: Path) -> int | None:
    """What may be taken in this group before the kernel throttles or ends it; None without a limit."""
    paths = [path for path in (folder / "memory.max", folder / "memory.high") if path.exists()]
    texts = [(path, read_text(path).strip()) for path in paths]
    limits = [number(text, path) for path, text in texts if text != _UNLIMITED]
    if not limits:
        return None
    used = number(read_text(folder / "memory.current"), folder / "memory.current")
    return max(0, min(limits) - used + _droppable_bytes(folder))


def _droppable_bytes(folder: Path) -> int:
    stat = folder / "memory.stat"
    if not stat.exists():
        return 0
    for line in read_text(stat).splitlines():
        field, _, value = line.partition(" ")
        if field == _DROPPABLE:
            return number(value, stat)
    return 0
