"""The port of deciders, and those whose score is a number of the class probabilities. Pure, numpy only."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from device_sdk.supernet.plan import ExitChoice

Array = npt.NDArray[Any]
Scores = npt.NDArray[np.float64]
Kind = TypeVar("Kind", bound="Thresholded")


class Thresholded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """A decider: hard is a sample whose score lies below ``limit``.

    ``easiest``: the largest score there is. ``sign``: of the threshold as stored, −1 where it bounds from above.
    """

    threshold: float
    easiest: ClassVar[float] = 1.0
    sign: ClassVar[int] = 1

    def score(self, logits: Array) -> Scores:
        """Ease of each sample, larger for easier, NaN where there is none: [batch, classes] -> [batch]."""
        raise NotImplementedError

    @property
    def limit(self) -> float:
        """The score below which samples are hard."""
        return self.sign * self.threshold

    @property
    def made_for(self) -> int:
        """Number of classes that it was made for; 0: for any."""
        return 0

    @classmethod
    def largest(cls, classes: int) -> Self:
        """A decider of this kind with all that it may have, to measure its time."""
        return cls(0.0)


def ease(decider: Thresholded, logits: Array) -> Scores:
    """Ease of each sample in the decider's own measure, larger for easier: logits [batch, classes] -> [batch].

    Logits that hold NaN, or whose largest is infinite, are no answer: their ease is minus infinity, so that they are
    hard for every decider.
    """
    with np.errstate(invalid="ignore"):
        found = decider.score(logits)
    return np.where(np.isnan(found), -math.inf, found)


def hard(decider: Thresholded, logits: Array) -> npt.NDArray[np.bool_]:
    """Mask of hard samples: logits [batch, classes] -> [batch]."""
    return np.asarray(ease(decider, logits) < decider.limit)


def leaving(choice: ExitChoice, logits: Array) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Masks of the samples that an exit answers and that it sends to a server: logits [batch, classes] -> [batch] each.

    All others go on, as do samples whose logits hold NaN.
    """
    sure = confidence(logits)
    return sure >= choice.threshold, sure < choice.ask_below


def with_limit(decider: Kind, limit: float) -> Kind:
    """The decider that calls samples hard whose ``ease`` lies below ``limit``."""
    return msgspec.structs.replace(decider, threshold=decider.sign * limit)


def everything_is_hard(decider: Kind) -> Kind:
    """The decider with a threshold that no sample's ease reaches."""
    return with_limit(decider, math.nextafter(decider.easiest, math.inf))


class MaxConfidence(Thresholded, frozen=True, tag="max_confidence"):
    """Hard is a sample whose largest class probability lies below ``threshold``."""

    def score(self, logits: Array) -> Scores:
        """See the port."""
        return confidence(logits)


class Entropy(Thresholded, frozen=True, tag="entropy"):
    """Hard is a sample whose class probabilities have more entropy than ``threshold``, in nats."""

    easiest: ClassVar[float] = 0.0
    sign: ClassVar[int] = -1

    def score(self, logits: Array) -> Scores:
        """See the port."""
        return -Seen(logits).entropy


class Margin(Thresholded, frozen=True, tag="margin"):
    """Hard is a sample whose two largest class probabilities differ by less than ``threshold``."""

    def score(self, logits: Array) -> Scores:
        """See the port."""
        return Seen(logits).margin


class Seen:
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
        """The largest softmax probability [batch]."""
        return np.asarray(1.0 / self.total)

    @property
    def margin(self) -> Scores:
        """The difference of the two largest softmax probabilities [batch]."""
        largest = np.maximum.reduce(self.probabilities, axis=1)
        return np.asarray(largest - second(self.probabilities))

    @property
    def entropy(self) -> Scores:
        """The Shannon entropy of the softmax probabilities in nats [batch]."""
        logs = np.log(np.where(self.probabilities > 0, self.probabilities, 1.0))
        return np.asarray(np.maximum(-np.add.reduce(self.probabilities * logs, axis=1), 0.0))

    @property
    def logit_margin(self) -> Scores:
        return np.asarray(self.highest[:, 0] - second(self.wide))

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


def second(values: Scores) -> Scores:
    """The second largest value of each row [batch, classes]; of one class 0."""
    if values.shape[1] < 2:
        return np.zeros(len(values))
    return np.asarray(np.partition(values, -2, axis=1)[:, -2])
