"""The homes of a processor: numbers of threads on all of its cores, and on each of its clusters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from device_sdk.errors import UsageError
from device_sdk.machine import usable_cores
from device_sdk.machine.clusters import Cluster, clusters, thread_counts
from device_sdk.supernet.home import CPU, Home

_ROOT = Path("/")


def homes_of(*, cores: int, kinds: Sequence[Cluster] = ()) -> tuple[Home, ...]:
    """The homes that are worth a measurement on so many usable ``cores``; one thread on any core comes first.

    On any core 1, 2, 4 … threads, up to all. On each of several clusters (``kinds``), the fastest first, one thread and
    one on each of its cores, at most ``cores``.
    """
    anywhere = [Home(CPU, count) for count in thread_counts(cores)]
    if len(kinds) < 2:
        return tuple(anywhere)
    fastest_first = sorted(kinds, key=lambda one: -one.capacity)
    counts = [(one, sorted({1, min(len(one.cores), max(cores, 1))})) for one in fastest_first]
    return (*anywhere, *(Home(CPU, count, one.name) for one, some in counts for count in some))


def processor_homes(system: Path = _ROOT) -> tuple[Home, ...]:
    """``homes_of`` this machine, within this process's affinity and the quotas of its control groups."""
    return homes_of(cores=usable_cores(system), kinds=clusters(system))


def cores_of(cluster: str, system: Path = _ROOT) -> tuple[int, ...]:
    """The cores of the cluster of that name here, such as ``Home.cluster``; none if there is no such cluster."""
    return next((one.cores for one in clusters(system) if cluster and one.name == cluster), ())


def required_cores(home: Home, system: Path = _ROOT) -> tuple[int, ...]:
    """The cores of the cluster that ``home`` names; none where it names no cluster.

    Raises:
        UsageError: there is no such cluster here.
    """
    found = cores_of(home.cluster, system)
    if home.cluster and not found:
        here = ", ".join(one.name for one in clusters(system) if one.name)
        raise UsageError(
            f"{home} names a cluster that is not here", hint=f"clusters: {here or 'none that the system tells'}"
        )
    return found
