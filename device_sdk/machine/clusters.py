"""Clusters of cores, little and big, where the system tells them, and numbers of threads worth a measurement."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from device_sdk.errors import MeasurementError
from device_sdk.machine import number, read_text

MOST_COUNTS = 5  # numbers of threads that are measured on one set of cores

_ROOT = Path("/")
_CORES = "sys/devices/system/cpu"
_CAPACITIES = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")  # the first that every core has
_SAME = 1.1  # cores of one cluster differ by less: favoured cores of one kind have slightly higher frequencies
_NAMES: Mapping[int, tuple[str, ...]] = {1: ("",), 2: ("little", "big"), 3: ("little", "mid", "big")}


@dataclass(frozen=True)
class Cluster:
    """Cores of one kind, in order. ``name``: ``little``, ``mid`` or ``big``; empty where all cores are alike.

    ``capacity``: of its fastest core, in the system's unit (1024 is the fastest core, or kHz).
    """

    name: str
    cores: tuple[int, ...]
    capacity: int


def allowed_cores() -> tuple[int, ...]:
    """The cores that the scheduler may give this process; none where the system does not tell."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def clusters(system: Path = _ROOT, *, cores: Collection[int] | None = None) -> tuple[Cluster, ...]:
    """The clusters of ``cores``, by default of those that this process may use; the slowest first.

    Empty where the system tells no capacity, or not of all. ``system``: below which its files are.
    """
    allowed = allowed_cores() if cores is None else tuple(sorted(cores))
    for name in _CAPACITIES:
        found = {core: _capacity(system / _CORES / f"cpu{core}" / name) for core in allowed}
        known = {core: capacity for core, capacity in found.items() if capacity}
        if known and len(known) == len(allowed):
            return grouped(known)
    return ()


def _capacity(path: Path) -> int | None:
    with contextlib.suppress(MeasurementError):
        return number(read_text(path), path)
    return None


def grouped(capacities: Mapping[int, int]) -> tuple[Cluster, ...]:
    """Clusters of cores by their ``capacities``, above 0: at most three; those nearest to each other are joined."""
    groups: list[list[int]] = []  # of cores; capacities ascend
    for core in sorted(capacities, key=lambda one: (capacities[one], one)):
        if groups and capacities[core] < _SAME * capacities[groups[-1][0]]:
            groups[-1].append(core)
        else:
            groups.append([core])
    while len(groups) > len(_NAMES):
        steps = [capacities[groups[at + 1][0]] / capacities[groups[at][-1]] for at in range(len(groups) - 1)]
        at = steps.index(min(steps))
        groups[at : at + 2] = [groups[at] + groups[at + 1]]
    return tuple(
        Cluster(name, tuple(sorted(cores)), max(capacities[core] for core in cores))
        for name, cores in zip(_NAMES.get(len(groups), ()), groups, strict=True)
    )


def thread_counts(cores: int) -> tuple[int, ...]:
    """Numbers of threads that are worth a measurement on so many cores: 1, 2, 4, 8, and all of them."""
    doubled = [count for count in (2**power for power in range(MOST_COUNTS - 1)) if count < cores]
    return (*doubled, max(cores, 1))
