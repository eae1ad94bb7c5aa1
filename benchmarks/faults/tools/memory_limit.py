"""A limit on this process's memory: a cgroup (version 2) where one can be made, else its address space."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from device_sdk.machine import mapped_bytes, resident_bytes

ROOT = Path("/sys/fs/cgroup")


def limit_memory(more_bytes: int) -> str:
    """Let this process take ``more_bytes`` beyond what it has; returns by what: "cgroup v2" or "RLIMIT_AS"."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _in_cgroup(more_bytes)
        return "cgroup v2"
    limit = (mapped_bytes() or 0) + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return "RLIMIT_AS"


def _in_cgroup(more_bytes: int) -> None:
    if "memory" not in (ROOT / "cgroup.controllers").read_text().split():
        raise ValueError("version 2 does not control memory here")
    own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    folder = ROOT / own.split("::", 1)[1].lstrip("/") / f"limited-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "memory.max").write_text(str((resident_bytes() or 0) + more_bytes))
        (folder / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        folder.rmdir()
        raise
