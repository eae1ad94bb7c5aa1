"""The cascade that a user makes by hand: two whole networks, and a confidence that keeps the mean latency."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.sure.networks import Samples
from device_sdk.search.ladder import ladder
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Cascade, MaxConfidence, Plan, Subnet
from pathweave import AdaptiveModel

_OF_BUDGET = 0.6  # of the mean latency, for the first network


class ByHand:
    """Cascades of the rungs of ``model`` for any budget, by their answers to ``samples``."""

    def __init__(self, model: AdaptiveModel, samples: Samples) -> None:
        self._model, self._samples = model, samples
        self._costs = model.profile().cost_model()
        self._by_latency = sorted(rungs_of(model), key=self._costs.latency_ms)
        self._known: dict[Subnet, npt.NDArray[np.float32]] = {}

    def within(self, ratio: float) -> Plan:
        """The slowest rung within 60 % of the budget, and an accurate one for as many samples as the rest allows.

        The accurate one is the most accurate rung at the members' own input sizes, of equals the quicker one. The
        largest softmax probability decides.
        """
        costs = self._costs
        budget_ms = ratio * costs.latency_ms(self._model.bundle.supernet.original)
        fitting = [one for one in self._by_latency if costs.latency_ms(one) <= _OF_BUDGET * budget_ms]
        first = [self._by_latency[0], *fitting][-1]
        slower = [
            one for one in self._by_latency if costs.latency_ms(one) > costs.latency_ms(first) and not one.input_size
        ]
        second = max(slower, key=lambda one: (self._accuracy(one), -costs.latency_ms(one)))
        share = (budget_ms - costs.latency_ms(first)) / costs.latency_ms(second)
        eases = ease(MaxConfidence(0.0), self._logits(first))
        threshold = UNREACHABLE_CONFIDENCE if share >= 1 else float(np.quantile(eases, max(share, 0.0)))
        return Plan(first, hard=Cascade(MaxConfidence(threshold), second))

    def _accuracy(self, subnet: Subnet) -> float:
        return float((self._logits(subnet).argmax(axis=1) == self._samples.labels).mean())

    def _logits(self, subnet: Subnet) -> npt.NDArray[np.float32]:
        if subnet not in self._known:
            self._model.use(Plan(subnet))
            self._known[subnet] = np.concatenate([self._model(image).output for image in self._samples.images])
        return self._known[subnet]


def rungs_of(model: AdaptiveModel) -> list[Subnet]:
    """All rungs of the ladder."""
    return [rung for column in ladder(model.bundle.supernet) for rung in column]
