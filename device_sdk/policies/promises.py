"""Thresholds that keep a promised accuracy on new samples with a stated probability. Pure.

Source: Learn then Test (Angelopoulos et al. 2021): thresholds are tested in a fixed sequence, from the safest on, each
with an exact binomial test of "the accuracy lies below the promise"; the last one before the first test that fails is
taken. The probability that it breaks the promise is at most 1 − ``certainty``, over the draw of the samples.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError

Correct = npt.NDArray[np.bool_]


def fewest_asked(
    ease: npt.NDArray[np.float64], here: Correct, server: Correct, *, accuracy: float, certainty: float
) -> float | None:
    """The limit of ease below which samples have to be sent, so that the accuracy holds with the stated certainty.

    The samples must be new to the networks and to the decider. None: not even asking about all of them suffices.

    Args:
        ease: of each sample [count]; ``here``, ``server``: whether the device and the server answer it rightly.
        accuracy: promised, between 0 and 1; ``certainty``: likewise.

    Raises:
        InputError: there are no samples, or their numbers differ.
        UsageError: a promise that is not between 0 and 1.
    """
    if not len(ease) or not len(ease) == len(here) == len(server):
        raise InputError(f"there are {len(ease)} eases, {len(here)} answers of the device, {len(server)} of the server")
    if not (0 < accuracy < 1 and 0 < certainty < 1):
        raise UsageError("accuracy and certainty of a promise lie between 0 and 1")
    order = np.argsort(ease, kind="stable")
    eases = ease[order]
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


def binomial_tail(successes: int, trials: int, probability: float) -> float:
    """P(X ≤ ``successes``) for X ~ Binomial(``trials``, ``probability``)."""
    counts = np.arange(successes + 1)
    chances = (
        math.lgamma(trials + 1)
        - np.array([math.lgamma(k + 1) + math.lgamma(trials - k + 1) for k in counts])
        + counts * math.log(probability)
        + (trials - counts) * math.log1p(-probability)
    )
    highest = chances.max()
    return min(1.0, float(math.exp(highest) * np.exp(chances - highest).sum()))
