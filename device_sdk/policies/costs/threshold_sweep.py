"""Costs of many plans at once, in closed form: all thresholds of a decider, all splits of a path."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.offload.packing import BITS
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.costs.route import NO_CALL, Asking, Correct, Route
from device_sdk.policies.deciding.promises import most_shares
from device_sdk.supernet.cost import PlanCost, Power
from device_sdk.supernet.deciders.port import ease, everything_is_hard, with_limit
from device_sdk.supernet.plan import Decider, Split

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

    def costs(self, asking: Asking | None, power: Power | None, certainty: float | None = None) -> Costs:
        """The costs at all thresholds.

        ``asking``: what hard samples are handed on to; None: they get no answer. ``certainty``: times and energies are
        those of the largest share of hard samples that it leaves possible among new ones; None: of the share seen.
        """
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
        here_ms = call.packing_ms + (0.0 if asking is None else asking.here_ms)
        apart_ms = 0.0 if asking is None else asking.apart_ms
        added_ms = here_ms + transfer_ms + server_ms
        known = route.latency_known
        peak_bytes = route.peak_bytes if asking is None or asking.peak_bytes is None else asking.peak_bytes
        share = hardest / count
        at_most = share if certainty is None else most_shares(count, certainty)[hardest]
        decided = [route.decided(one.kind, apart_ms) for one in self.rankings]
        energy_mj = _unknown(hardest)
        if power is not None and known:
            added_mj = power.active_w * here_ms + power.radio_w * transfer_ms + power.waiting_w * server_ms
            energy_mj = self._of_each([one.energy_mj(power).mean() for one in decided]) + at_most * added_mj
        return Costs(
            accuracy=accuracy,
            latency_ms=self._of_each([one.latency_ms.mean() for one in decided]) + at_most * added_ms
            if known
            else _unknown(hardest),
            p95_latency_ms=self._p95_ms(decided, at_most * count, added_ms) if known else _unknown(hardest),
            energy_mj=energy_mj,
            bytes_sent=route.bytes_sent.mean() + share * call.size_bytes,
            peak_bytes=np.full(len(hardest), float(peak_bytes)),
            coverage=np.ones(len(hardest)) if asking is not None else 1 - share,
            share_asked=share if asking is not None and asking.at_server else np.full(len(hardest), route.share_asked),
        )

    def _of_each(self, values: Sequence[float]) -> Column:
        """``values``, one per decider, repeated for each of its thresholds."""
        return np.repeat(np.asarray(values, dtype=np.float64), [len(one.hardest) for one in self.rankings])

    def _p95_ms(self, decided: Sequence[Route], hard: Column, added_ms: float) -> Column:
        pairs = zip(decided, np.split(hard, self._starts[1:-1]), strict=True)
        return np.concatenate([_percentiles(route.latency_ms, own, added_ms) for route, own in pairs])

    def _of_hardest(self, values: npt.NDArray[np.bool_] | Column) -> Column:
        """The sum of ``values`` [count] over the samples that each threshold calls hard."""
        sums = [np.append(0, np.cumsum(values[one.samples]))[one.hardest] for one in self.rankings]
        return np.concatenate(sums).astype(float)


def _percentiles(own_ms: Column, hardest: Column, added_ms: float) -> Column:
    """The 95th percentile of latencies, by the number of hard samples.

    All samples that reach the end take equally long, and longest.
    """
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


def _unknown(like: npt.NDArray[np.int64] | Column) -> Column:
    return np.full(len(like), math.nan)


Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Crossings:
    """Splits of one plan whose tails are the rest of its own subnet, and their costs in columns."""

    splits: Sequence[Split]
    costs: Costs

    def extremes(self) -> list[Split]:
        """Of the splits without quantisation loss, those of least mean latency, least energy and least bytes."""
        whole = np.array([min(split.bits) >= BITS for split in self.splits])
        columns = (self.costs.latency_ms, self.costs.energy_mj, self.costs.bytes_sent)
        places = {int(np.argmin(np.where(whole, np.nan_to_num(values, nan=math.inf), math.inf))) for values in columns}
        return [self.splits[place] for place in sorted(places) if whole[place]]


@dataclass(frozen=True)
class Crossing:
    """A split of a subnet: ``head_ms`` before it, without ``Route.tried_ms``, and the call. Times: NaN if unknown.

    ``right``: mask of the samples that the tail answers correctly [count]; None: the same as the whole subnet here.
    """

    split: Split
    head_ms: float
    transfer_ms: float
    server_ms: float
    size_bytes: int
    right: Correct | None = None

    @classmethod
    def of(cls, route: Route, split: Split, network: Network | None, right: Correct | None = None) -> Crossing:
        """The crossing of ``route``'s subnet at ``split``."""
        head_ms, call = route.crossing(split, network)
        unknown = call.transfer_ms is None or call.server_ms is None
        times = (math.nan, math.nan) if unknown else (call.transfer_ms or 0.0, call.server_ms or 0.0)
        return cls(split, head_ms, *times, call.size_bytes, right)


def sweep_splits(route: Route, crossings: Sequence[Crossing], power: Power | None) -> Crossings:
    """The costs of ``crossings``; ``route`` has reached the end of the same subnet here, through exits before all."""
    columns = [(one.head_ms, one.transfer_ms, one.server_ms, one.size_bytes) for one in crossings]
    head_ms, transfer_ms, server_ms, size_bytes = np.array(columns, dtype=np.float64).reshape(-1, 4).T
    own_ms = head_ms + route.tried_ms
    open_, count = route.open, len(route.open)
    left = int(np.count_nonzero(open_))
    early_ms = np.sort(route.device_ms[~open_])
    here_ms = float(early_ms.sum())
    each_ms = own_ms + transfer_ms + server_ms
    energy_mj: npt.NDArray[np.float64] = np.full(len(crossings), math.nan)
    if power is not None:
        device_mj = power.active_w * (here_ms + left * own_ms)
        energy_mj = (device_mj + left * (power.radio_w * transfer_ms + power.waiting_w * server_ms)) / count
    same = np.ones(len(crossings))
    costs = Costs(
        accuracy=np.array([_accuracy(route, one) for one in crossings]),
        latency_ms=(here_ms + left * each_ms) / count,
        p95_latency_ms=_crossing_percentiles(early_ms, each_ms, count),
        energy_mj=energy_mj,
        bytes_sent=size_bytes * left / count,
        peak_bytes=same * route.peak_bytes,
        coverage=same,
        share_asked=np.array([one.split.is_whole for one in crossings]) * left / count,
    )
    return Crossings([one.split for one in crossings], costs)


def _accuracy(route: Route, crossing: Crossing) -> float:
    right = route.correct if crossing.right is None else np.where(route.open, crossing.right, route.correct)
    return float(right.mean())


def _crossing_percentiles(early_ms: npt.NDArray[np.float64], each_ms: npt.NDArray[np.float64], count: int) -> Times:
    """95th latency percentile per crossing. Exits lie before it, so none of their samples waits longer than others."""
    place = _PERCENTILE * (count - 1)
    low = math.floor(place)

    def at(rank: int) -> Times:
        rank = min(rank, count - 1)
        return np.full(len(each_ms), early_ms[rank]) if rank < len(early_ms) else each_ms

    return np.asarray(at(low) + (at(low + 1) - at(low)) * (place - low))
