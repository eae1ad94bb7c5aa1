"""Selection of hard samples by their logits, for exits, abstention and requests to a server. Pure, numpy only.

A new kind of decider is a type in ``supernet/plan.py`` and a line in ``_SCORES``; a new feature of ``Logistic`` is a
name there and a line in ``_FEATURES``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.execution.router import estimated_ease
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Decider, Entropy, ExitChoice, Logistic, LogitFeature, Margin, MaxConfidence, Router

Scores = npt.NDArray[np.float64]
_STEEPEST = 700.0  # of the logarithm of the odds: beyond it the exponential overflows


class _Seen:
    """Logits [batch, classes], and intermediate results that several features share, each computed on first use."""

    def __init__(self, logits: Array) -> None:
        self.wide = logits.astype(np.float64)

    @cached_property
    def highest(self) -> Scores:
        """[batch, 1]"""
        return np.asarray(np.maximum.reduce(self.wide, axis=1, keepdims=True))

    @cached_property
    def powers(self) -> Scores:
        """[batch, classes], at most 1."""
        return np.asarray(np.exp(self.wide - self.highest))

    @cached_property
    def total(self) -> Scores:
        """[batch]"""
        return np.asarray(np.add.reduce(self.powers, axis=1))

    @cached_property
    def probabilities(self) -> Scores:
        """[batch, classes]"""
        return np.asarray(self.powers / self.total[:, np.newaxis])

    @property
    def confidence(self) -> Scores:
        return np.asarray(1.0 / self.total)

    @property
    def margin(self) -> Scores:
        largest = np.maximum.reduce(self.probabilities, axis=1)
        return np.asarray(largest - _second(self.probabilities))

    @property
    def entropy(self) -> Scores:
        logs = np.log(np.where(self.probabilities > 0, self.probabilities, 1.0))
        return np.asarray(np.maximum(-np.add.reduce(self.probabilities * logs, axis=1), 0.0))

    @property
    def logit_margin(self) -> Scores:
        return np.asarray(self.highest[:, 0] - _second(self.wide))

    @property
    def log_sum_exp(self) -> Scores:
        return np.asarray(self.highest[:, 0] + np.log(self.total))


def confidence(logits: Array) -> Scores:
    """The largest softmax probability of each sample: logits [batch, classes] -> [batch], above 0 and at most 1.

    NaN where a logit is NaN or the largest is infinite.
    """
    wide = logits.astype(np.float64)  # every exit of every call comes here
    powers = np.exp(wide - np.maximum.reduce(wide, axis=1, keepdims=True))
    return np.asarray(1.0 / np.add.reduce(powers, axis=1))


def margin(logits: Array) -> Scores:
    """The difference of the two largest softmax probabilities: logits [batch, classes] -> [batch], 0 to 1."""
    return _Seen(logits).margin


def entropy(logits: Array) -> Scores:
    """The Shannon entropy of the softmax probabilities in nats: logits [batch, classes] -> [batch], at least 0."""
    return _Seen(logits).entropy


def feature(name: LogitFeature, logits: Array) -> Scores:
    """One feature of each sample's logits: [batch, classes] -> [batch]."""
    return _FEATURES[name](_Seen(logits))


def first_and_second(logits: Array) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The two most probable classes of each sample, the lower index first among equal ones: [batch] each."""
    order = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")
    return order[:, 0], order[:, min(1, logits.shape[1] - 1)]


def ease(decider: Decider, logits: Array) -> Scores:
    """Ease of each sample in the decider's own measure, larger for easier: logits [batch, classes] -> [batch].

    The entropy counts negative, so that every kind is ordered the same way. Logits that hold NaN, or whose largest is
    infinite, are no answer: their ease is minus infinity, so that they are hard for every decider.
    """
    with np.errstate(invalid="ignore"):
        found = _score(decider, logits)
    return np.where(np.isnan(found), -math.inf, found)


def _score(decider: Decider, logits: Array) -> Scores:
    if isinstance(decider, Logistic):
        return _estimated(decider, logits)
    if isinstance(decider, Router):
        return estimated_ease(decider, logits)
    return _SCORES[type(decider)](logits)


def hard(decider: Decider, logits: Array) -> npt.NDArray[np.bool_]:
    """Mask of hard samples: logits [batch, classes] -> [batch]."""
    return np.asarray(ease(decider, logits) < _limit(decider))


def leaving(choice: ExitChoice, logits: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the samples that an exit answers and that it sends to a server: logits [batch, classes] -> [batch] each.

    All others go on, as do samples whose logits hold NaN.
    """
    sure = confidence(logits)
    return sure >= choice.threshold, sure < choice.ask_below


def with_limit(decider: Decider, limit: float) -> Decider:
    """The decider that calls samples hard whose ``ease`` lies below ``limit``."""
    return msgspec.structs.replace(decider, threshold=-limit if isinstance(decider, Entropy) else limit)


def everything_is_hard(decider: Decider) -> Decider:
    """The decider with a threshold that no sample's ease reaches."""
    return with_limit(decider, math.nextafter(_EASIEST.get(type(decider), 1.0), math.inf))


def _limit(decider: Decider) -> float:
    return -decider.threshold if isinstance(decider, Entropy) else decider.threshold


def _estimated(decider: Logistic, logits: Array) -> Scores:
    seen = _Seen(logits)
    total = np.full(len(logits), decider.bias)
    for name, weight in zip(decider.features, decider.weights, strict=True):
        total += weight * _FEATURES[name](seen)
    if decider.by_answer:
        first, second = first_and_second(logits)
        total += np.array(decider.by_answer)[first] + np.array(decider.by_runner_up)[second]
    return np.asarray(1.0 / (1.0 + np.exp(-np.minimum(np.maximum(total, -_STEEPEST), _STEEPEST))))


def _second(values: Scores) -> Scores:
    """The second largest value of each row [batch, classes]; of one class 0."""
    if values.shape[1] < 2:
        return np.zeros(len(values))
    return np.asarray(np.partition(values, -2, axis=1)[:, -2])


_SCORES: dict[type, Callable[[Array], Scores]] = {
    MaxConfidence: confidence,
    Entropy: lambda logits: -entropy(logits),
    Margin: margin,
}
_EASIEST: dict[type, float] = {Entropy: 0.0}  # the largest ease of a kind, else 1

_FEATURES: dict[LogitFeature, Callable[[_Seen], Scores]] = {
    "top_1": lambda seen: seen.confidence,
    "top_2": lambda seen: _second(seen.probabilities),
    "entropy": lambda seen: seen.entropy,
    "logit_margin": lambda seen: seen.logit_margin,
    "log_sum_exp": lambda seen: seen.log_sum_exp,
}
