"""Thresholds of exits and deciders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError, UsageError
from device_sdk.policies.deciding.promises import binomial_tail
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice

Correct = npt.NDArray[np.bool_]


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


_TRIED = 32  # thresholds per exit
_ROUNDS = 20  # of improving thresholds one by one
_CAUTION = 2.0  # standard errors

Confidences = npt.NDArray[np.float64]
Rights = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ExitSamples:
    """An exit on the calibration samples, in their order: ``confidence`` and ``right`` [count].

    ``reach_ms``: the way to its cut point for those that leave there, beside the branches tried, its own included;
    ``branch_ms``: what trying it costs.
    """

    choice: ExitChoice
    confidence: Confidences
    right: Rights
    reach_ms: float
    branch_ms: float


def choose_exits(
    exits: Sequence[ExitSamples], *, right_at_end: Rights, full_ms: float, accuracy_drop: float
) -> list[ExitChoice]:
    """The exits and thresholds of least mean latency whose drop plus two standard errors is within ``accuracy_drop``.

    The drop is that of the accuracy below the end's; its standard error is paired, over the samples that only one of
    the two gets right. Many thresholds are tried on few samples, so the observed drop of the best is biased downwards.

    ``exits`` follow each other. Starts from the best common threshold, then improves one exit's threshold at a time;
    an exit that does not pay is left out.
    """
    if not exits:
        return []
    grids = [_grid(exit_.confidence) for exit_ in exits]

    def judged(thresholds: Sequence[float]) -> tuple[float, Sequence[float]]:
        mean_ms, lost, won = _simulate(exits, thresholds, right_at_end=right_at_end, full_ms=full_ms)
        drop = (lost - won + _CAUTION * math.sqrt(lost + won)) / len(right_at_end)
        return (mean_ms if drop <= accuracy_drop else math.inf), thresholds

    common = sorted({value for grid in grids for value in grid})
    best_ms, best = min((judged([value] * len(exits)) for value in common), key=lambda found: found[0])
    for _ in range(_ROUNDS):
        changed = [[*best[:k], value, *best[k + 1 :]] for k, grid in enumerate(grids) for value in grid]
        mean_ms, thresholds = min((judged(one) for one in changed), key=lambda found: found[0])
        if not mean_ms < best_ms:
            break
        best_ms, best = mean_ms, thresholds
    return [
        msgspec.structs.replace(exit_.choice, threshold=threshold)
        for exit_, threshold in zip(exits, best, strict=True)
        if threshold < UNREACHABLE_CONFIDENCE
    ]


def _grid(values: Confidences) -> list[float]:
    """Thresholds to try: evenly spaced quantiles from the least confidence on, and one that no sample reaches."""
    return [*np.unique(np.quantile(values, np.linspace(0, 0.99, _TRIED))).tolist(), UNREACHABLE_CONFIDENCE]


def _simulate(
    exits: Sequence[ExitSamples], thresholds: Sequence[float], *, right_at_end: Rights, full_ms: float
) -> tuple[float, int, int]:
    """If all exits answered from their thresholds on: mean latency, samples that only the end, only exits get right."""
    rest = np.ones(len(right_at_end), dtype=bool)
    right = right_at_end.copy()
    latency_ms = tried_ms = 0.0
    for exit_, threshold in zip(exits, thresholds, strict=True):
        if threshold >= UNREACHABLE_CONFIDENCE:
            continue
        tried_ms += exit_.branch_ms
        answered = rest & (exit_.confidence >= threshold)
        latency_ms += np.count_nonzero(answered) * (exit_.reach_ms + tried_ms)
        right[answered] = exit_.right[answered]
        rest &= ~answered
    latency_ms += np.count_nonzero(rest) * (full_ms + tried_ms)
    lost, won = (right_at_end & ~right).sum(), (right & ~right_at_end).sum()
    return float(latency_ms) / len(rest), int(lost), int(won)


def hard_threshold(confidence_at_end: Confidences, *, share: float, samples: int) -> float:
    """The threshold below which the least confident samples lie that make up ``share`` of all ``samples``.

    ``confidence_at_end``: of those that no exit answered. It lies in the middle of a gap between two confidences; share
    0 gives 0, and a share that takes all of them gives a threshold that no confidence reaches.
    """
    wanted = round(share * samples)
    if wanted <= 0:
        return 0.0
    if wanted >= len(confidence_at_end):
        return UNREACHABLE_CONFIDENCE
    ordered = np.sort(confidence_at_end)
    return float((ordered[wanted - 1] + ordered[wanted]) / 2)
