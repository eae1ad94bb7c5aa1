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
_CAUTION = 1.5  # standard errors
_SAMPLES_OF_NO_LOSS = 8.0  # that the regression starts from
_LEAST_SHARE = 1e-4  # of a confidence's log odds
_ROW = 2

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
    exits: Sequence[ExitSamples],
    *,
    right_at_end: Rights,
    confidence_at_end: Confidences,
    full_ms: float,
    accuracy_drop: float,
) -> list[ExitChoice]:
    """The exits and thresholds of least mean latency that are expected to lose ``accuracy_drop`` at most.

    The drop is that of the accuracy below the end's, as seen, and as expected of new samples (``ExpectedDrop``): many
    thresholds are tried on few samples, so the drop seen of the best is biased downwards.

    ``exits`` follow each other. Starts from the best common threshold, then improves one exit's threshold at a time;
    an exit that does not pay is left out.
    """
    if not exits:
        return []
    grids = [_grid(exit_.confidence) for exit_ in exits]
    drop = ExpectedDrop(exits, right_at_end, confidence_at_end)

    def judged(thresholds: Sequence[float]) -> tuple[float, Sequence[float]]:
        mean_ms, left_at = _simulate(exits, thresholds, full_ms=full_ms)
        return (mean_ms if drop.within(accuracy_drop, left_at) else math.inf), thresholds

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


class ExpectedDrop:
    """The accuracy that thresholds of ``exits`` lose against the end, expected of samples like these [count].

    Samples that only the end (1) or only the exit (-1) gets right tell what leaving costs. A ridge regression of that
    on the log odds of the end's confidence less those of the exit's, over the samples of all exits together, says what
    such a sample costs on average, so that the lucky ones of one threshold do not count for it alone (ADR 100).
    """

    def __init__(self, exits: Sequence[ExitSamples], right_at_end: Rights, confidence_at_end: Confidences) -> None:
        end = _log_odds(confidence_at_end)
        self._seen = [right_at_end.astype(float) - one.right.astype(float) for one in exits]
        rows = [_row(seen != 0, end - _log_odds(one.confidence)) for seen, one in zip(self._seen, exits, strict=True)]
        surer = np.concatenate([row[:, 1] for row in rows])
        differ = max(1, sum(int(np.count_nonzero(seen)) for seen in self._seen))
        scale = math.sqrt(float(surer @ surer) / differ) or 1.0
        self._rows = [row / np.array([1.0, scale]) for row in rows]
        weights = np.eye(_ROW) * _SAMPLES_OF_NO_LOSS
        inverse = np.linalg.inv(sum((row.T @ row for row in self._rows), weights))
        slopes = inverse @ sum((row.T @ seen for row, seen in zip(self._rows, self._seen, strict=True)), np.zeros(_ROW))
        self._expected = [row @ slopes for row in self._rows]
        errors = [seen - one for seen, one in zip(self._seen, self._expected, strict=True)]
        by_sample = sum((row * error[:, None] for row, error in zip(self._rows, errors, strict=True)), 0.0)
        # exits are wrong about the same samples: errors are added up by sample before they are squared
        self._covariance = inverse @ (np.transpose(by_sample) @ by_sample + weights) @ inverse

    def within(self, limit: float, left_at: Sequence[Rights]) -> bool:
        """True if the drop seen is within ``limit``, and the one expected with ``_CAUTION`` standard errors.

        ``left_at``: for each exit, mask [count] of the samples that leave by it.
        """
        count, seen, expected, spread, row = len(self._seen[0]), 0.0, 0.0, 0.0, np.zeros(_ROW)
        for number, left in enumerate(left_at):
            seen += float(self._seen[number][left].sum())
            costs = self._expected[number][left]
            expected, spread = expected + float(costs.sum()), spread + float(costs @ costs)
            row += self._rows[number][left].sum(axis=0)
        error = math.sqrt(float(row @ self._covariance @ row) + spread)
        return max(seen, expected + _CAUTION * error) / count <= limit


def _row(differs: Rights, surer: Confidences) -> Confidences:
    """[count, 2]: 1 and how much surer the end is, 0 where both are right or both wrong."""
    return np.stack([np.ones_like(surer), surer], axis=1) * differs[:, None]


def _log_odds(confidence: Confidences) -> Confidences:
    shares = np.clip(confidence, _LEAST_SHARE, 1 - _LEAST_SHARE)
    return np.asarray(np.log(shares / (1 - shares)))


def _grid(values: Confidences) -> list[float]:
    """Thresholds to try: evenly spaced quantiles from the least confidence on, and one that no sample reaches."""
    return [*np.unique(np.quantile(values, np.linspace(0, 0.99, _TRIED))).tolist(), UNREACHABLE_CONFIDENCE]


def _simulate(
    exits: Sequence[ExitSamples], thresholds: Sequence[float], *, full_ms: float
) -> tuple[float, list[Rights]]:
    """If all exits answered from their thresholds on: mean latency, and for each exit a mask of those that leave."""
    rest = np.ones(len(exits[0].confidence), dtype=bool)
    latency_ms = tried_ms = 0.0
    left_at = []
    for exit_, threshold in zip(exits, thresholds, strict=True):
        if threshold >= UNREACHABLE_CONFIDENCE:
            left_at.append(np.zeros_like(rest))
            continue
        tried_ms += exit_.branch_ms
        left_at.append(rest & (exit_.confidence >= threshold))
        latency_ms += np.count_nonzero(left_at[-1]) * (exit_.reach_ms + tried_ms)
        rest &= ~left_at[-1]
    latency_ms += np.count_nonzero(rest) * (full_ms + tried_ms)
    return float(latency_ms) / len(rest), left_at


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
