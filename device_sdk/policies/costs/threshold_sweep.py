"""Costs of a plan at every threshold of its decider at once, as ``expected_cost`` gives, in closed form. Pure.

Samples are ordered by ease. The threshold that calls the k hardest ones hard changes only k, so all costs are
cumulative sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.execution.deciders import ease, everything_is_hard, with_limit
from device_sdk.policies.costs.route import NO_CALL, Asking, Route
from device_sdk.supernet.cost import PlanCost, Power
from device_sdk.supernet.plan import Decider

Column = npt.NDArray[np.float64]
_PERCENTILE = 0.95


@dataclass(frozen=True)
class Costs:
    """The costs of several plans: a column per field of ``PlanCost``, NaN where it is unknown."""

    accuracy: Column
    latency_ms: Column
    p95_latency_ms: Column
    energy_mj: Column
    bytes_sent: Column
    peak_bytes: Column
    coverage: Column
    share_asked: Column

    @classmethod
    def of(cls, cost: PlanCost) -> Costs:
        """The columns of one plan."""
        values = {name: getattr(cost, name) for name in cls.__dataclass_fields__}
        return cls(**{name: np.array([math.nan if one is None else float(one)]) for name, one in values.items()})


@dataclass(frozen=True)
class Ranking:
    """Samples that reach a plan's end, hardest first, so that all thresholds of a decider are judged at once.

    ``samples``: their numbers; ``eases``: in that order; ``hardest``: the count that each threshold calls hard
    [thresholds].
    """

    route: Route
    kind: Decider
    samples: npt.NDArray[np.int64]
    eases: Column
    hardest: npt.NDArray[np.int64]

    @classmethod
    def of(cls, route: Route, decider: Decider) -> Ranking | None:
        """All thresholds of ``decider`` behind ``route``, which has reached its end. None if no sample gets there."""
        open_ = np.flatnonzero(route.open)
        if not len(open_):
            return None
        eases = ease(decider, route.logits[open_])
        order = np.argsort(eases, kind="stable")
        ordered = eases[order]
        hardest = np.append(1 + np.flatnonzero(ordered[:-1] < ordered[1:]), len(open_))
        return cls(route, decider, open_[order], ordered, hardest)

    def by_sample(self) -> Column:
        """The eases in the order of the samples that reach the end."""
        return self.eases[np.argsort(self.samples)]

    def decider(self, number: int) -> Decider:
        """The decider with the threshold of this number."""
        count = int(self.hardest[number])
        if count == len(self.eases):
            return everything_is_hard(self.kind)
        below, above = float(self.eases[count - 1]), float(self.eases[count])
        middle = (below + above) / 2
        return with_limit(self.kind, middle if below < middle else above)


class Sweep:
    """All thresholds of several deciders behind one route, one after the other."""

    def __init__(self, rankings: Sequence[Ranking], route: Route | None = None) -> None:
        """``route``: another one to the same end, through the same exits."""
        self.rankings, self._route = rankings, route or rankings[0].route
        self._starts = np.cumsum([0, *(len(one.hardest) for one in rankings)])
        self._hardest = np.concatenate([one.hardest for one in rankings])

    def ranking(self, number: int) -> tuple[Ranking, int]:
        """The ranking that the threshold of this number is one of, and its number there."""
        place = int(np.searchsorted(self._starts, number, side="right")) - 1
        return self.rankings[place], number - int(self._starts[place])

    def decider(self, number: int) -> Decider:
        """The decider with the threshold of this number."""
        ranking, own = self.ranking(number)
        return ranking.decider(own)

    def costs(self, asking: Asking | None, power: Power | None) -> Costs:
        """The costs at all thresholds. ``asking``: effect of a server on hard samples; None: they get no answer."""
        route, hardest, count = self._route, self._hardest, len(self._route.open)
        call = NO_CALL if asking is None else asking.call
        right = route.correct.sum() - self._of_hardest(route.correct)
        answered = count if asking is not None else count - hardest
        if asking is not None:
            won = np.full(count, math.nan) if asking.correct is None else asking.correct
            right = right + self._of_hardest(won)
        with np.errstate(divide="ignore", invalid="ignore"):
            accuracy = np.where(answered > 0, right / answered, math.nan)
        transfer_ms = math.nan if call.transfer_ms is None else call.transfer_ms
        server_ms = math.nan if call.server_ms is None else call.server_ms
        added_ms = call.packing_ms + transfer_ms + server_ms
        known = route.latency_known
        share = hardest / count
        decided = [route.decided(one.kind) for one in self.rankings]
        energy_mj = _unknown(hardest)
        if power is not None and known:
            added_mj = power.active_w * call.packing_ms + power.radio_w * transfer_ms + power.waiting_w * server_ms
            energy_mj = self._of_each([one.energy_mj(power).mean() for one in decided]) + share * added_mj
        return Costs(
            accuracy=accuracy,
            latency_ms=self._of_each([one.latency_ms.mean() for one in decided]) + share * added_ms
            if known
            else _unknown(hardest),
            p95_latency_ms=self._p95_ms(decided, added_ms) if known else _unknown(hardest),
            energy_mj=energy_mj,
            bytes_sent=route.bytes_sent.mean() + share * call.size_bytes,
            peak_bytes=np.full(len(hardest), float(route.peak_bytes)),
            coverage=np.ones(len(hardest)) if asking is not None else 1 - share,
            share_asked=np.zeros(len(hardest)) if asking is None else share,
        )

    def _of_each(self, values: Sequence[float]) -> Column:
        """``values``, one per decider, repeated for each of its thresholds."""
        return np.repeat(np.asarray(values, dtype=np.float64), [len(one.hardest) for one in self.rankings])

    def _p95_ms(self, decided: Sequence[Route], added_ms: float) -> Column:
        pairs = zip(decided, self.rankings, strict=True)
        return np.concatenate([_percentiles(route.latency_ms, one.hardest, added_ms) for route, one in pairs])

    def _of_hardest(self, values: npt.NDArray[np.bool_] | Column) -> Column:
        """The sum of ``values`` [count] over the samples that each threshold calls hard."""
        sums = [np.append(0, np.cumsum(values[one.samples]))[one.hardest] for one in self.rankings]
        return np.concatenate(sums).astype(float)


def _percentiles(own_ms: Column, hardest: npt.NDArray[np.int64], added_ms: float) -> Column:
    """The 95th percentile of latencies; all samples that reach the end take equally long, and longest."""
    if math.isnan(added_ms):
        return _unknown(hardest)
    count = len(own_ms)
    place = _PERCENTILE * (count - 1)
    low = math.floor(place)
    ordered = np.partition(own_ms, sorted({low, min(low + 1, count - 1)}))

    def at(rank: int) -> Column:
        rank = min(rank, count - 1)
        return ordered[rank] + np.where(rank < count - hardest, 0.0, added_ms)

    below, above = at(low), at(low + 1)
    return np.asarray(below + (above - below) * (place - low))


def _unknown(like: npt.NDArray[np.int64]) -> Column:
    return np.full(len(like), math.nan)
