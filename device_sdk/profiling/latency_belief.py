"""Latencies of subnets that were not measured: predictions, corrected by measurements of similar subnets.

The cost model was fitted on calls back to back. Called at the pace of an application, every call also waits for caches
and clocks, which weighs most on short calls, and differs between renditions. Subnets that share most of their blocks
share the rest of the error too. A Gaussian process over log(measured / predicted) learns all of that from a few
measurements.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.profiling.timing import Ratio
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Subnet

Floats = npt.NDArray[np.float64]

PRECISE = 0.006  # relative error of a ratio: sessions of one model differ by as much, however many rounds
_BIAS = 0.03  # prior deviation of what all subnets share
_PER_CALL = 0.03  # prior deviation of the time per call, over the full model's latency
_PER_CALL_OF_RENDITION = 0.03  # the same, of what a rendition adds
_OF_EDGES = 0.05  # prior deviation of what subnets of the same edges share
_PRIOR_WORTH = 3.0  # observations that these deviations count as


@dataclass(frozen=True)
class LatencyEstimate:
    """A subnet's latency over the full model's, as a log-normal distribution.

    ``error``: standard deviation of the logarithm. ``measured``: it was measured itself.
    """

    ratio: float
    error: float
    measured: bool

    def probability_below(self, limit: float) -> float:
        """Probability that the ratio is at most ``limit``."""
        return 0.5 * math.erfc((math.log(self.ratio) - math.log(limit)) / (self.error * math.sqrt(2)))


@dataclass(frozen=True)
class _Features:
    """``per_call``: 1 / predicted ratio - 1. Shares of the predicted latency by edge and by rendition add up to 1."""

    predicted: float
    per_call: float
    edges: Mapping[object, float]
    renditions: Mapping[object, float]


class LatencyBelief:
    """The latency ratio of any subnet to ``original``, the full model, whose own measurement is not evidence."""

    def __init__(self, original: Subnet, costs: CostModel) -> None:
        self._original, self._costs = original, costs
        self._original_ms = costs.latency_ms(original)
        self._measured: dict[Subnet, Ratio] = {}
        self._features: dict[Subnet, _Features] = {}
        self._fitted: tuple[Floats, Floats, float] | None = None  # inverse root, whitened logs, scale of variances

    def observe(self, subnet: Subnet, ratio: Ratio) -> None:
        """Add a measurement; a second one of ``subnet`` is joined with the first, weighted by precision."""
        known = self._measured.get(subnet)
        self._measured[subnet] = ratio if known is None else _joined(known, ratio)
        self._fitted = None

    def estimate(self, subnet: Subnet) -> LatencyEstimate:
        """The ratio of ``subnet``: as measured, or as predicted and corrected."""
        known = self._measured.get(subnet)
        if known is not None:
            return LatencyEstimate(known.value, known.relative_error, measured=True)
        at = self._features_of(subnet)
        inverse_root, whitened, scale = self._fit()
        reduced = inverse_root @ np.array([_kernel(at, self._features_of(one)) for one in self._evidence()])
        variance = max(_kernel(at, at) - float(reduced @ reduced), 0.0) + PRECISE**2
        bias = float(reduced @ whitened)
        return LatencyEstimate(at.predicted * math.exp(bias), math.sqrt(scale * variance), measured=False)

    def _fit(self) -> tuple[Floats, Floats, float]:
        if self._fitted is None:
            evidence = self._evidence()
            features = [self._features_of(one) for one in evidence]
            ratios = [self._measured[one] for one in evidence]
            covariance = np.array([[_kernel(one, other) for other in features] for one in features])
            noise = np.array([PRECISE**2 + one.relative_error**2 for one in ratios])
            logs = np.array([math.log(one.value / at.predicted) for one, at in zip(ratios, features, strict=True)])
            inverse_root = np.linalg.inv(np.linalg.cholesky(covariance.reshape(2 * [len(logs)]) + np.diag(noise)))
            whitened = inverse_root @ logs
            scale = (_PRIOR_WORTH + float(whitened @ whitened)) / (_PRIOR_WORTH + len(logs))
            self._fitted = inverse_root, whitened, scale
        return self._fitted

    def _evidence(self) -> list[Subnet]:
        return [one for one in self._measured if one != self._original]

    def _features_of(self, subnet: Subnet) -> _Features:
        if subnet not in self._features:
            predicted = self._costs.latency_ms(subnet) / self._original_ms
            by_edge: dict[object, float] = defaultdict(float)
            by_rendition: dict[object, float] = defaultdict(float)
            for edge in subnet.edges:
                latency_ms = self._costs.edge_latency_ms(edge)
                by_edge[edge] += latency_ms
                by_rendition[edge.rendition] += latency_ms
            total_ms = sum(by_edge.values()) or 1.0
            self._features[subnet] = _Features(
                predicted,
                1 / predicted - 1,
                {key: value / total_ms for key, value in by_edge.items()},
                {key: value / total_ms for key, value in by_rendition.items()},
            )
        return self._features[subnet]


def _kernel(one: _Features, other: _Features) -> float:
    """Prior covariance of log(measured / predicted) of two subnets."""
    per_call = _PER_CALL**2 + _PER_CALL_OF_RENDITION**2 * _shared(one.renditions, other.renditions)
    of_edges = _OF_EDGES**2 * _shared(one.edges, other.edges)
    return _BIAS**2 + per_call * one.per_call * other.per_call + of_edges


def _shared(one: Mapping[object, float], other: Mapping[object, float]) -> float:
    """The share that two distributions have in common, 0 to 1 (histogram intersection, a positive kernel)."""
    return sum(min(share, other[key]) for key, share in one.items() if key in other)


def _joined(first: Ratio, second: Ratio) -> Ratio:
    """Two measurements of one ratio, weighted by their precision."""
    weights = [one.relative_error**-2 for one in (first, second)]
    log = (weights[0] * math.log(first.value) + weights[1] * math.log(second.value)) / sum(weights)
    return Ratio(math.exp(log), max(sum(weights) ** -0.5, PRECISE))
