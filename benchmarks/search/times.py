"""Seconds until a search is near the best known subnet, compared between strategies with intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.search.runs import SearchTrace

OURS = "pathweave"
_RESAMPLES, _BOUND = 2000, 97.5


@dataclass(frozen=True)
class Times:
    """One strategy's runs: ``found_s`` has None for a run that did not get there within ``limit_s``."""

    found_s: tuple[float | None, ...]
    limit_s: float

    @classmethod
    def of(cls, runs: Sequence[SearchTrace], accuracy: float, limit_s: float) -> Times:
        """When each run first had a subnet of at least ``accuracy``."""
        hits = [run.first(accuracy) for run in runs]
        return cls(tuple(None if hit is None else hit.seconds for hit in hits), limit_s)

    @property
    def reached(self) -> int:
        """Runs that got there."""
        return sum(one is not None for one in self.found_s)

    @property
    def seconds(self) -> list[float]:
        """The limit for runs that did not get there: less than they need."""
        return [self.limit_s if one is None else one for one in self.found_s]

    @property
    def seconds_or_never(self) -> list[float]:
        """Infinity for runs that did not get there."""
        return [math.inf if one is None else one for one in self.found_s]


def time_ratios(times: Mapping[str, Times]) -> dict[str, float]:
    """Our seconds over those of AdaptiveNet's search, and of the rival nearest to us: medians and upper bounds."""
    rivals = [name for name in times if name != OURS]
    ratios = {name: ratio(times[OURS], times[name]) for name in rivals}
    highs = {name: ratio_high(times[OURS], times[name]) for name in rivals}
    return {
        "time_vs_adaptivenet": ratios["adaptivenet"],
        "time_vs_adaptivenet_high": highs["adaptivenet"],
        "time_vs_best_rival": max(ratios.values()),
        "time_vs_best_rival_high": max(highs.values()),
    }


def ratio(ours: Times, theirs: Times) -> float:
    """The ratio of the medians."""
    return float(np.median(ours.seconds_or_never) / np.median(theirs.seconds))


def ratio_high(ours: Times, theirs: Times) -> float:
    """The upper end of the 95 % bootstrap interval of ``ratio`` over seeds; infinite if a run of ours counts there."""
    random = np.random.default_rng(0)
    drawn = []
    for runs in (ours.seconds_or_never, theirs.seconds):
        places = random.integers(0, len(runs), (_RESAMPLES, len(runs)))
        drawn.append(np.median(np.array(runs)[places], axis=1))
    return float(np.percentile(drawn[0] / drawn[1], _BOUND, method="higher"))
