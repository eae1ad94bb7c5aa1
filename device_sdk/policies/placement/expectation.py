"""Value of a placement: the expected accuracy of the best answer at the moment of an interruption."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.errors import UsageError
from device_sdk.policies.placement.candidates import ExitCandidate

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StopTimes:
    """Distribution of interruptions of inference: a piecewise-constant density over shares of the full model's time.

    ``until``: end of each piece, ascending, the last at 1; ``weight``: the probability of each piece, relative to
    the others. MEEdge §3.3.2 calls the result a weighted acc-time integral.

    Raises:
        UsageError: the pieces do not ascend to 1, or the weights are negative, all zero or of another number.
    """

    until: tuple[float, ...] = (1.0,)
    weight: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        edges = (0.0, *self.until)
        if edges[-1] != 1.0 or len(edges) < 2 or not all(low < high for low, high in pairwise(edges)):
            raise UsageError(f"stop times end at {self.until}", hint="ascending shares of the full time, the last 1")
        finite = all(0 <= one < float("inf") for one in self.weight)
        if len(self.weight) != len(self.until) or not finite or not 0 < sum(self.weight) < float("inf"):
            raise UsageError(f"stop times have the weights {self.weight}", hint="one for each piece, not all zero")

    def survival(self, full_time: float) -> Survival:
        """The probability that inference still runs, by the time since its start."""
        total = sum(self.weight)
        left = [(total - past) / total for past in accumulate(self.weight)]
        return Survival((0.0, *(share * full_time for share in self.until)), (1.0, *left[:-1], 0.0))


UNIFORM = StopTimes()


class Survival:
    """A falling, piecewise linear function of time: 1 at zero, 0 from the full model's time on."""

    def __init__(self, times: Sequence[float], chances: Sequence[float]) -> None:
        self._times, self._chances = tuple(times), tuple(chances)
        pieces = zip(pairwise(times), pairwise(chances), strict=True)
        self._slopes = tuple((high - low) / (end - start) for (start, end), (low, high) in pieces)

    @property
    def full_time(self) -> float:
        """Time at which the function becomes 0."""
        return self._times[-1]

    def __call__(self, time: float) -> float:
        if time >= self._times[-1]:
            return 0.0
        piece = bisect_right(self._times, time) - 1
        return self._slopes[piece] * (time - self._times[piece]) + self._chances[piece]

    def at(self, times: Floats) -> Floats:
        """The same for an array of any shape."""
        return np.asarray(np.interp(times, self._times, self._chances))


def expectation(exits: Iterable[ExitCandidate], *, full_time: float, stop_times: StopTimes = UNIFORM) -> float:
    """The mean accuracy of the best answer that is there when inference is interrupted before ``full_time``.

    An exit answers once the path has reached it, every branch before it and its own was tried, and no earlier than the
    exit before it. One that is less accurate than an earlier one changes nothing: the earlier answer stays. With
    uniform stop times this is mAE (MEEdge §4.1).
    """
    return accuracy_until_stopped(exits, stop_times.survival(full_time))


def accuracy_until_stopped(exits: Iterable[ExitCandidate], survival: Survival) -> float:
    """``expectation`` with the stop times as ``survival``.

    The sum over answers of what each adds to the accuracy, times the probability that inference still runs by then.
    """
    total = accuracy = tried = answered = 0.0
    for exit_ in sorted(exits, key=lambda candidate: candidate.position):
        tried += exit_.branch_time
        answered = max(answered, exit_.reach_time + tried)
        if exit_.accuracy > accuracy:
            total += (exit_.accuracy - accuracy) * survival(answered)
            accuracy = exit_.accuracy
    return total
