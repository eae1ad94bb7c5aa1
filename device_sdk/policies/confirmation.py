"""Confirming by measurements in pairs: the most accurate candidate of a search that keeps a budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from device_sdk.errors import BudgetError, InfeasibleBudgetError
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.latency_belief import PRECISE, LatencyBelief
from device_sdk.profiling.profile import measure_subnets
from device_sdk.profiling.stretches import Timing
from device_sdk.profiling.timing import Latency, Patience, Ratio
from device_sdk.search.port import Candidate, by_expected_accuracy
from device_sdk.supernet.cost import Budget, CostModel
from device_sdk.supernet.plan import Subnet

LIMIT_S = 12.0  # of measuring candidates; on a quiet device two seconds suffice
EQUAL_LATENCY = 1.02  # latencies within 2 % are equal: two sessions of one model differ by that
SURE, DOUBTFUL = 0.9, 0.02  # probabilities of keeping the budget: taken at once, ruled out
_LEAST_GAIN = 0.0005  # expected accuracy that makes a measurement worth its time
_ABOUT_AS_LIKELY = 0.1  # of the largest probability
_REPEATED = 2  # measurements of the full model, back to back and paced in turns
_AT_ONCE = 3  # candidates measured together, beside the full model
_MOST_TURNS = 8
_CLIFF = 0.02  # expected accuracy below the best candidate, at which a lower aim is worth its time
_MOST_SLOWDOWN = 4.0  # of a busy device; a profile that promises more than this is wrong
_LEAST_MS = 1e-6
_NORMAL_95 = 1.96
_MEDIAN = 50.0
_PACED_PATIENCE = Patience(rounds=16, precision=0.006, limit_s=1.2, least=10)
_TOGETHER_PATIENCE = Patience(rounds=60, precision=0.006, limit_s=0.4, least=10)
_TAIL_ROUNDS = 60  # of a percentile other than the median
DEFAULT_PAUSE_S = 0.02  # between calls, without a known pace: enough for caches and clocks to settle as between frames
_LONGEST_PAUSE_S = 0.1  # rarer calls are hardly slower

Measure = Callable[[Sequence[Subnet], bool], list[Latency]]
"""Times subnets in turns, the full model first, with ratios to it; paced as the application calls, or back to back."""


@dataclass(frozen=True)
class Confirmed:
    """A candidate, and the latency that it has when nothing else runs on the device.

    ``measured_ms``: at the budget's percentile, ``median_ms`` at the median; ``interval_ms``: 95 % of ``measured_ms``.
    ``probability``: that it keeps the budget; 1 without a latency budget.
    ``full_ms``: the full model's latency in quiet, called at the same pace. ``slowdown``: of the device while it was
    measured, over quiet.
    """

    candidate: Candidate
    measured_ms: float
    median_ms: float
    interval_ms: tuple[float, float]
    probability: float
    full_ms: float
    slowdown: float


class Confirmation:
    """Measures as few candidates as it takes to know the most accurate one that keeps ``budget``.

    ``original_ms``: the full model's latency in the profile, back to back. ``overhead_ms``: of a call, beyond the
    models that it runs. ``clock``: seconds, monotonic; ``best`` begins no measurement after ``limit_s``.
    """

    def __init__(
        self,
        original: Subnet,
        cost_model: CostModel,
        budget: Budget,
        measure: Measure,
        *,
        original_ms: float,
        overhead_ms: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._original, self._costs, self._measure = original, cost_model, measure
        self._overhead_ms, self._clock, self._limit_s = overhead_ms, clock, limit_s
        self._belief = LatencyBelief(original, cost_model)  # at the budget's percentile, to the full model's median
        self._spreads: dict[Subnet, float] = {}  # the latency at that percentile over the median
        pairs = [[self._measure([original], as_served)[0] for as_served in (False, True)] for _ in range(_REPEATED)]
        tight_ms = _mean([tight.median_ms for tight, _ in pairs])
        quiet_ms = min(original_ms, tight_ms)
        contention = min(tight_ms / quiet_ms, _MOST_SLOWDOWN)  # of caches and clocks; waiting is not in the medians
        self.slowdown = max(_mean([tight.elapsed_ms or tight.median_ms for tight, _ in pairs]) / quiet_ms, contention)
        self.full_ms = _mean([paced.median_ms for _, paced in pairs]) / contention + overhead_ms
        self._spreads[original] = _mean([paced.at_percentile_ms / paced.median_ms for _, paced in pairs])
        self._belief.observe(original, Ratio(self._spreads[original], PRECISE))
        self.budget = budget.resolved(self.full_ms)
        limit_ms = math.inf if self.budget.latency_ms is None else self.budget.latency_ms
        self._limit = max(EQUAL_LATENCY * limit_ms - overhead_ms, _LEAST_MS) / (self.full_ms - overhead_ms)

    def aim(self, rungs: Sequence[Subnet], largest_first: Sequence[Subnet]) -> Budget:
        """The budget in terms of predictions: corrected by how some ``rungs`` near it measure against theirs.

        The search then proposes subnets that really fit. The error of a prediction depends on the rendition; the first
        of ``largest_first`` that fits stands for what the search will propose, as the rung of the largest input is the
        most accurate. Without a latency budget, the budget itself.
        """
        if self.budget.latency_ms is None or math.isinf(self.budget.latency_ms):
            return self.budget
        self._take_times(rungs[:_AT_ONCE])
        fitting = (one for one in largest_first if self._belief.estimate(one).ratio <= self._limit)
        return self._aimed_by(next(fitting, [self._original, *largest_first][-1]))

    def aim_lower(self, pool: Sequence[Candidate], aimed: Budget) -> Budget | None:
        """A lower aim than ``aimed``, by which ``pool`` was found; None if that was near enough.

        Too high: what is confirmed is worse by more than ``_CLIFF`` than the most accurate candidate that was predicted
        to fit. Predictions are too low then for what the search proposes, and it should propose something smaller.
        """
        if aimed.latency_ms is None or math.isinf(self._limit):
            return None
        best = min((one for one in pool if aimed.fits(one.cost)), key=by_expected_accuracy, default=None)
        if best is None or self._confirmed_accuracy(pool) >= best.expected_accuracy - _CLIFF:
            return None
        if not self._belief.estimate(best.subnet).measured:
            self._take_times([best.subnet])
        lower = self._aimed_by(best.subnet)
        return lower if lower.latency_ms is not None and lower.latency_ms < aimed.latency_ms else None

    def _confirmed_accuracy(self, pool: Sequence[Candidate]) -> float:
        try:
            return self.best(pool).candidate.expected_accuracy
        except InfeasibleBudgetError:
            return 0.0

    def _aimed_by(self, reference: Subnet) -> Budget:
        """The budget in terms of predictions, if all are off as far as that of ``reference``."""
        predicted_ms, measured = self._costs.latency_ms(reference), self._belief.estimate(reference)
        aimed_ms = self._limit / EQUAL_LATENCY * predicted_ms / measured.ratio
        return msgspec.structs.replace(self.budget, latency_ms=aimed_ms)

    def require_chance(self, subnet: Subnet, peak_bytes: int) -> None:
        """Measure ``subnet``.

        Raises:
            InfeasibleBudgetError: it has no chance to keep the budget.
        """
        self._take_times([subnet])
        if self._belief.estimate(subnet).probability_below(self._limit) < DOUBTFUL:
            raise self._infeasible(subnet, peak_bytes)

    def best(self, pool: Iterable[Candidate]) -> Confirmed:
        """The most accurate candidate of ``pool`` that keeps the budget, by expected accuracy.

        1. estimate all; 2. measure the most accurate one that surely keeps it, and those whose measurement may gain
        most; again, until one that surely does has no rival left that is worth measuring; 3. if that does not happen
        in time, take the most accurate of those that most probably keep it.

        Raises:
            InfeasibleBudgetError: nothing has a chance; names the nearest.
            BudgetError: there are no candidates.
        """
        ranked = sorted((one for one in pool if self.budget.fits_memory(one.cost.peak_bytes)), key=by_expected_accuracy)
        if not ranked:
            raise BudgetError("the search was stopped before it had looked at a subnet within the budget")
        deadline_s = self._clock() + self._limit_s
        for _ in range(_MOST_TURNS):
            unclear = self._worth_measuring(ranked)
            if not unclear or self._clock() >= deadline_s:
                break
            self._take_times([one.subnet for one in unclear[:_AT_ONCE]])
        return self._chosen(ranked)

    def fastest(self, confirmed: Confirmed, others: Sequence[Candidate]) -> Confirmed:
        """``confirmed``, or one of ``others`` with the same answers where it measures faster, in turns with it."""
        if not others:
            return confirmed
        both = [confirmed.candidate, *others]
        self._take_times([one.subnet for one in both])
        ratios = [self._belief.estimate(one.subnet).ratio for one in both]
        quickest = both[ratios.index(min(ratios))]
        return confirmed if quickest is confirmed.candidate else self._chosen([quickest])

    def _worth_measuring(self, ranked: Sequence[Candidate]) -> list[Candidate]:
        """Candidates to measure, first the most accurate one that surely keeps the budget, unless it was measured.

        Then those more accurate than it whose measurement may gain accuracy, the largest expected gain first: the
        probability of keeping the budget times the difference in expected accuracy.
        """
        estimates = [self._belief.estimate(one.subnet) for one in ranked]
        chances = [one.probability_below(self._limit) for one in estimates]
        sure = next((place for place, chance in enumerate(chances) if chance >= SURE), len(ranked))
        least = ranked[sure].expected_accuracy if sure < len(ranked) else 0.0
        gains = []
        for one, estimate, chance in zip(ranked[:sure], estimates, chances, strict=False):
            gain = chance * (one.expected_accuracy - least)
            clear = estimate.measured and estimate.error <= 2 * PRECISE
            if chance >= DOUBTFUL and gain >= _LEAST_GAIN and not clear:
                gains.append((gain, one))
        rivals = [one for _, one in sorted(gains, key=lambda entry: -entry[0])]
        return rivals if sure == len(ranked) or estimates[sure].measured else [ranked[sure], *rivals]

    def _chosen(self, ranked: Sequence[Candidate]) -> Confirmed:
        chances = {one.subnet: self._belief.estimate(one.subnet).probability_below(self._limit) for one in ranked}
        best = max(chances.values())
        if best < DOUBTFUL:
            nearest = min(ranked, key=lambda one: self._belief.estimate(one.subnet).ratio)
            raise self._infeasible(nearest.subnet, nearest.cost.peak_bytes)
        enough = min(SURE, best - _ABOUT_AS_LIKELY)
        chosen = next(one for one in ranked if chances[one.subnet] >= enough)
        estimate = self._belief.estimate(chosen.subnet)
        scale_ms = self.full_ms - self._overhead_ms
        low, high = (estimate.ratio * math.exp(sign * _NORMAL_95 * estimate.error) for sign in (-1, 1))
        return Confirmed(
            chosen,
            measured_ms=scale_ms * estimate.ratio + self._overhead_ms,
            median_ms=scale_ms * estimate.ratio / self._spreads.get(chosen.subnet, 1.0) + self._overhead_ms,
            interval_ms=(scale_ms * low + self._overhead_ms, scale_ms * high + self._overhead_ms),
            probability=chances[chosen.subnet],
            full_ms=self.full_ms,
            slowdown=self.slowdown,
        )

    def _take_times(self, subnets: Sequence[Subnet]) -> None:
        """Measure ``subnets`` in turns with the full model; a second measurement of one is joined with the first."""
        wanted = [one for one in dict.fromkeys(subnets) if one != self._original]
        if not wanted:
            return
        full, *others = self._measure([self._original, *wanted], True)
        for subnet, latency in zip(wanted, others, strict=True):
            ratio = latency.ratio or Ratio(latency.median_ms / full.median_ms, 2 * PRECISE)
            self._spreads[subnet] = spread = latency.at_percentile_ms / latency.median_ms
            self._belief.observe(subnet, Ratio(ratio.value * spread, min(max(ratio.relative_error, PRECISE), 1.0)))

    def _infeasible(self, nearest: Subnet, peak_bytes: int) -> InfeasibleBudgetError:
        took_ms = self._belief.estimate(nearest).ratio * (self.full_ms - self._overhead_ms) + self._overhead_ms
        return InfeasibleBudgetError(
            f"no subnet ran in {self.budget.latency_ms:.3g} ms; the fastest candidate took {took_ms:.3g} ms",
            nearest=nearest.block_ids,
            nearest_latency_ms=took_ms,
            nearest_peak_bytes=peak_bytes,
            hint=f"allow at least {took_ms * 1.05:.3g} ms",
        )


def paced_measure(workspace: Workspace, budget: Budget) -> Measure:
    """Measurement on this device, at the pace and the percentile of ``budget``."""
    tail = budget.percentile != _MEDIAN
    paced = Timing(
        rounds=_TAIL_ROUNDS if tail else _PACED_PATIENCE.rounds,
        pause_s=_pause_s(budget),
        percentile=budget.percentile if tail else None,
        patience=None if tail else _PACED_PATIENCE,
    )
    together = Timing(rounds=_TOGETHER_PATIENCE.rounds, patience=_TOGETHER_PATIENCE)

    def measure(subnets: Sequence[Subnet], as_served: bool) -> list[Latency]:
        return measure_subnets(workspace, subnets, paced if as_served else together)

    return measure


def _pause_s(budget: Budget) -> float:
    """Seconds that an application at the pace of ``budget`` waits between two calls."""
    if budget.calls_per_second is None:
        return DEFAULT_PAUSE_S
    busy_s = 0.0 if budget.latency_ms is None else budget.latency_ms / 1e3
    return min(max(1.0 / budget.calls_per_second - busy_s, 0.0), _LONGEST_PAUSE_S)


def _mean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))
