"""Families of plans that differ in one threshold or one split, and all of them in order of a requirement. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.threshold_sweep import Costs
from device_sdk.supernet.plan import Plan
from device_sdk.supernet.requirement import Requirement


@dataclass(frozen=True)
class Family:
    """Plans of one kind that differ in one threshold or in their split, or a single plan."""

    kind: str
    costs: Costs
    plan: Callable[[int], Plan]


class Judged:
    """All plans of all families in columns, by how well they keep a requirement."""

    def __init__(self, families: Sequence[Family], requirement: Requirement) -> None:
        self._families = families
        sizes = [len(family.costs.accuracy) for family in families]
        self._starts = np.append(0, np.cumsum(sizes))
        self._names = sorted({family.kind for family in families})
        self._kinds = np.repeat([self._names.index(family.kind) for family in families], sizes)
        excess = np.zeros(self.count)
        for name, limit, is_least in requirement.limits:
            values = self._column(name)
            broken = ~(values >= limit if is_least else values <= limit)
            distance = np.abs(values - limit) / limit if limit else values
            excess += np.where(broken, np.where(np.isnan(distance), math.inf, distance), 0.0)
        value = self._column(requirement.optimise)
        value = value if requirement.optimise == "accuracy" else -value
        latency_ms = self._column("latency_ms")
        keys = (np.nan_to_num(latency_ms, nan=math.inf), -np.nan_to_num(value, nan=-math.inf), excess)
        self._order = np.lexsort(keys)

    @property
    def count(self) -> int:
        """The number of plans."""
        return int(self._starts[-1])

    def best(self, kind: str | None = None) -> Plan:
        """The first of all plans, or of one kind: none is nearer to keeping the limits, none of these is better."""
        order = self._order if kind is None else self._order[self._kinds[self._order] == self._names.index(kind)]
        place = int(order[0])
        number = int(np.searchsorted(self._starts, place, side="right")) - 1
        return self._families[number].plan(place - int(self._starts[number]))

    def _column(self, name: str) -> npt.NDArray[np.float64]:
        return np.concatenate([getattr(family.costs, name) for family in self._families])
