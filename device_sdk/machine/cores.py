"""The number of cores that this process may use."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.machine.control_groups import legacy_groups, unified_groups
from device_sdk.machine.system_files import number, read_text

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
