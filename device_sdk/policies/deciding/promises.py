"""Thresholds and plans that keep a promised accuracy on new samples with a stated probability. Pure.

Source: Learn then Test (Angelopoulos et al. 2021): thresholds are tested in a fixed sequence, from the safest on, each
with an exact binomial test of "the accuracy lies below the promise"; the last one before the first test that fails is
taken. The probability that it breaks the promise is at most 1 − ``certainty``, over the draw of the samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError

Correct = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Promise:
    """Evidence for an accuracy: of a plan's answers to ``samples`` new samples, ``wrong`` were wrong."""

    certainty: float
    samples: int
    wrong: int

    @property
    def least_accuracy(self) -> float:
        """Lower bound of the accuracy at this certainty (Clopper and Pearson 1934), to 1e-9."""
        low, high = 0.0, 1.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (middle, high) if self.holds(middle) else (low, middle)
        return low

    def holds(self, accuracy: float) -> bool:
        """True if an accuracy below ``accuracy`` is ruled out with the certainty (exact binomial test)."""
        return self.doubt(accuracy) <= 1 - self.certainty

    def doubt(self, accuracy: float) -> float:
        """The greatest probability of so few wrong answers if the accuracy were below ``accuracy``, 0 to 1."""
        if accuracy <= 0:
            return 0.0
        return float(self.wrong == 0) if accuracy >= 1 else binomial_tail(self.wrong, self.samples, 1 - accuracy)


def fewest_asked(
    ease: npt.NDArray[np.float64], here: Correct, server: Correct, *, accuracy: float, certainty: float
) -> float | None:
    """The limit of ease below which samples have to be sent, so that the accuracy holds with the stated certainty.

    The samples must be new to the networks and to the decider. None: not even asking about all of them suffices.

    Args:
        ease: of each sample [count]; ``here``, ``server``: masks of right answers by the device and the server.
        accuracy: promised, between 0 and 1; ``certainty``: likewise.

    Raises:
        InputError: there are no samples, or their numbers differ.
        UsageError: a promise that is not between 0 and 1.
    """
    order, eases = _ordered(ease, here, server, accuracy, certainty)
    gained = np.append(0, np.cumsum(server[order].astype(int) - here[order].astype(int)))
    wrong = len(ease) - (int(here.sum()) + gained)  # of the system, by the number of hardest samples that are sent
    found: float | None = None
    for count in range(len(ease), -1, -1):
        if 0 < count < len(ease) and eases[count - 1] == eases[count]:
            continue  # no threshold divides samples of one ease
        if binomial_tail(int(wrong[count]), len(ease), 1 - accuracy) > 1 - certainty:
            break
        found = math.inf if count == len(ease) else float(eases[count])
    return found


def _ordered(
    ease: npt.NDArray[np.float64], here: Correct, server: Correct, accuracy: float, certainty: float
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64]]:
    """The samples, the hardest first, and their eases; raises on invalid inputs."""
    if not len(ease) or not len(ease) == len(here) == len(server):
        raise InputError(f"there are {len(ease)} eases, {len(here)} answers of the device, {len(server)} of the server")
    if not (0 < accuracy < 1 and 0 < certainty < 1):
        raise UsageError("accuracy and certainty of a promise lie between 0 and 1")
    order = np.argsort(ease, kind="stable")
    return order, ease[order]


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """P(X ≤ ``successes``) for X ~ Binomial(``trials``, ``probability``)."""
    counts, factorials = np.arange(successes + 1), _log_factorials(trials)
    chances = (
        factorials[trials]
        - factorials[counts]
        - factorials[trials - counts]
        + counts * math.log(probability)
        + (trials - counts) * math.log1p(-probability)
    )
    highest = chances.max()
    return min(1.0, float(math.exp(highest) * np.exp(chances - highest).sum()))


@lru_cache(maxsize=4)
def _log_factorials(most: int) -> npt.NDArray[np.float64]:
    """The logarithms of 0! to ``most``!."""
    return np.append(0.0, np.cumsum(np.log(np.arange(1, most + 1))))
