"""Logistic regression on features of the logits (HI §3.3). A new feature: a name, and a line in ``_FEATURES``."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, Self, get_args

import numpy as np
import numpy.typing as npt

from device_sdk.supernet.deciders.port import Array, Scores, Seen, Thresholded, second

_STEEPEST = 700.0  # of the logarithm of the odds: beyond it the exponential overflows

LogitFeature = Literal["top_1", "top_2", "entropy", "logit_margin", "log_sum_exp"]
"""A number of one sample's logits: the two largest class probabilities, their entropy in nats, the difference of the
two largest logits, and the logarithm of the sum of the logits' exponentials."""


class Logistic(Thresholded, frozen=True, tag="logistic"):
    """Hard is a sample whose estimated probability that the answer is right lies below ``threshold``.

    The estimate is ``sigmoid(bias + Σ weights · features + by_answer[first] + by_runner_up[second])``, where first and
    second are the two most probable classes; of equal ones the lower index comes first. The last two lists have a
    number per class, or none. With ``top_1`` and ``top_2`` alone it is HI's binary logistic regression (§3.3).

    Raises:
        ValueError: there is not one weight per feature, the lists differ in length, or a number is not finite.
    """

    features: tuple[LogitFeature, ...]
    weights: tuple[float, ...]
    bias: float
    by_answer: tuple[float, ...] = ()
    by_runner_up: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.features or len(self.features) != len(self.weights):
            raise ValueError(f"a logistic decider has {len(self.features)} features and {len(self.weights)} weights")
        if len(self.by_answer) != len(self.by_runner_up):
            raise ValueError("a logistic decider has weights for two numbers of classes")
        if not all(map(math.isfinite, (*self.weights, self.bias, *self.by_answer, *self.by_runner_up))):
            raise ValueError("a logistic decider has a weight that is not finite")

    @property
    def made_for(self) -> int:
        """See the port."""
        return len(self.by_answer)

    @classmethod
    def largest(cls, classes: int) -> Self:
        """See the port."""
        features: tuple[LogitFeature, ...] = get_args(LogitFeature)
        return cls(0.0, features, (0.0,) * len(features), 0.0, (0.0,) * classes, (0.0,) * classes)

    def score(self, logits: Array) -> Scores:
        """See the port."""

        seen = Seen(logits)
        total = np.full(len(logits), self.bias)
        for name, weight in zip(self.features, self.weights, strict=True):
            total += weight * _FEATURES[name](seen)
        if self.by_answer:
            first, second = first_and_second(logits)
            total += np.array(self.by_answer)[first] + np.array(self.by_runner_up)[second]
        return np.asarray(1.0 / (1.0 + np.exp(-np.minimum(np.maximum(total, -_STEEPEST), _STEEPEST))))


def feature(name: LogitFeature, logits: Array) -> Scores:
    """One feature of each sample's logits: [batch, classes] -> [batch]."""
    return _FEATURES[name](Seen(logits))


def first_and_second(logits: Array) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The two most probable classes of each sample, the lower index first among equal ones: [batch] each."""
    order = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")
    return order[:, 0], order[:, min(1, logits.shape[1] - 1)]


_FEATURES: dict[LogitFeature, Callable[[Seen], Scores]] = {
    "top_1": lambda seen: seen.confidence,
    "top_2": lambda seen: second(seen.probabilities),
    "entropy": lambda seen: seen.entropy,
    "logit_margin": lambda seen: seen.logit_margin,
    "log_sum_exp": lambda seen: seen.log_sum_exp,
}
