"""The mix of classes of the answers that a model gives: counts that fade, and when a prior of them is worth taking.

Expectation maximisation, one answer at a time (Cappé and Moulines 2009): each answer adds its probabilities under the
mix estimated so far. A prior is taken when answers became likelier under the estimate that was made before them than
under the prior in use, by three standard errors, and the mix has moved far enough. Pure, numpy only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.policies.class_mix import LEAST_SAMPLES, PSEUDO_SAMPLES, probabilities
from device_sdk.supernet.plan import Prior

Floats = npt.NDArray[np.float64]

_CERTAINTY = 3.0  # standard errors: more than for one decision, since this one is made again and again


@dataclass(frozen=True)
class MixSettings:
    """``window``: answers after which one counts 1/e of a new one. ``least_answers``: between two priors.

    ``least_move``: share of the answers (0 to 1) that have another class under a new prior than under the old one.
    """

    window: int = 500
    least_answers: int = 100
    least_move: float = 0.1


class RunningMix:
    """The estimated mix, and the gain that a prior made of it would have had over the ``prior`` in use.

    Holds one count per class and three sums, no answers.
    """

    def __init__(self, classes: int, prior: Prior | None, settings: MixSettings) -> None:
        self.prior, self._settings = prior, settings
        self.answers = 0  # since this prior is in use
        self._temperature = 1.0 if prior is None else prior.temperature
        self._ratios_in_use = np.ones(classes) if prior is None else np.exp(prior.log_ratios)
        self._fading = math.exp(-1 / settings.window)
        self._counts: Floats = LEAST_SAMPLES * self._ratios_in_use / self._ratios_in_use.sum()
        self._weight = self._gain = self._squared_gain = 0.0  # sums over the answers, which fade

    @property
    def shares(self) -> Floats:
        """The estimated share of each class: [classes], summing to 1."""
        classes = len(self._counts)
        shares: Floats = (self._counts + PSEUDO_SAMPLES / classes) / (self._counts.sum() + PSEUDO_SAMPLES)
        return shares

    def take(self, logits: npt.NDArray[np.floating]) -> None:
        """Count answers: ``logits`` [count, classes] as the prior in use has corrected them. Others are left out."""
        wide = logits[np.isfinite(logits).all(axis=1)].astype(np.float64) / self._temperature
        for posterior in probabilities(wide):
            likely = posterior / self._ratios_in_use
            likely /= likely.sum()
            self._take(likely)

    def due(self) -> Prior | None:
        """The prior to take now, None while the one in use does."""
        if self.answers < self._settings.least_answers:
            return None
        mean = self._gain / self._weight
        deviation = math.sqrt(max(self._squared_gain / self._weight - mean * mean, 0.0))
        if mean <= _CERTAINTY * deviation / math.sqrt(self._weight):
            return None
        log_ratios = np.log(self.shares * len(self._counts))
        prior = Prior(tuple(log_ratios.tolist()), self._temperature)
        return prior if self.moved_to(prior) >= self._settings.least_move else None

    def moved_to(self, prior: Prior) -> float:
        """The share of answers that have another class under the mix of ``prior``: 0 to 1 (total variation)."""
        before, after = self._ratios_in_use / self._ratios_in_use.sum(), np.exp(prior.log_ratios)
        return float(np.abs(after / after.sum() - before).sum() / 2)

    def _take(self, likely: Floats) -> None:
        """``likely`` [classes]: probabilities of one answer under the mix of the training data."""
        shares = self.shares
        gain = math.log(likely @ shares * len(shares)) - math.log(likely @ self._ratios_in_use)
        self._weight = self._fading * self._weight + 1.0
        self._gain = self._fading * self._gain + gain
        self._squared_gain = self._fading * self._squared_gain + gain * gain
        responsible = likely * shares
        self._counts = self._fading * self._counts + responsible / responsible.sum()
        self.answers += 1
