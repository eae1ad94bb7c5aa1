"""The share that is sent against the share that was requested: the difference due to chance, and the rest."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from benchmarks.hard_samples.judging import SENT, TWO_SIDED_95
from device_sdk.offload.remote_model import AskedShare
from device_sdk.policies.deciding.decider_fitting import Viewed, fit_best_logistic
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.plan import Decider, Entropy

Eases = npt.NDArray[np.float64]
DIVISIONS = 40
_BATCH = 64


def coverage_errors(tuned: Eases, new: Eases) -> dict[str, float]:
    """Points by which the share sent of ``new`` exceeds each share asked for; thresholds are quantiles of ``tuned``.

    ``coverage_chance_…``: half the width of the interval that holds 95 % of such errors if nothing but chance is at
    work: with n samples that set a threshold and m that are judged, a share c has the standard deviation
    sqrt(c (1 − c) (1/n + 1/m)). ``coverage_error_deviations``: the largest error in these.
    """
    figures, deviations = {}, []
    for share in SENT:
        kept = round(100 - 100 * share)
        error = float((new < np.quantile(tuned, share)).mean()) - share
        deviation = (share * (1 - share) * (1 / len(tuned) + 1 / len(new))) ** 0.5
        figures[f"coverage_error_{kept}"] = 100 * error
        figures[f"coverage_chance_{kept}"] = 100 * TWO_SIDED_95 * deviation
        deviations.append(abs(error) / deviation)
    errors = [abs(value) for name, value in figures.items() if name.startswith("coverage_error_")]
    bound = max(value for name, value in figures.items() if name.startswith("coverage_chance_"))
    summary = {"coverage_error_points": max(errors), "coverage_bound_points": bound}
    return {**figures, **summary, "coverage_error_deviations": max(deviations)}


def kept_share_errors(decider: Decider, logits: Array) -> dict[str, float]:
    """The largest error in points where the connection keeps the share over ``logits``, in random order."""
    order = np.random.default_rng(2).permutation(len(logits))
    errors = []
    for share in SENT:
        keeper = AskedShare(share)
        sent = [keeper.hard(decider, logits[order[at : at + _BATCH]]) for at in range(0, len(order), _BATCH)]
        errors.append(abs(float(np.concatenate(sent).mean()) - share))
    return {"kept_share_error_points": 100 * max(errors)}


def fitting_bias(logits: Array, easy: npt.NDArray[np.bool_], views: Viewed) -> dict[str, float]:
    """Error beyond chance: the mean error of a fitted decider minus that of the entropy, which needs no fit.

    On random halves of the tuning samples: one fits and sets thresholds on cross-fitted eases, the other is judged.
    """
    random, found = np.random.default_rng(1), []
    for _ in range(DIVISIONS):
        order = random.permutation(len(easy))
        first = np.zeros(len(easy), dtype=bool)
        first[order[: len(order) // 2]] = True
        fitted = fit_best_logistic(logits[first], easy[first], views=views.of(first))
        if fitted is None:
            continue
        entropy = [ease(Entropy(0.0), logits[part]) for part in (first, ~first)]
        pairs = [(fitted.eases, ease(fitted.decider, logits[~first])), (entropy[0], entropy[1])]
        own, rival = ([float((new < np.quantile(tuned, s)).mean()) for s in SENT] for tuned, new in pairs)
        found.append(np.array(own) - rival)
    means, spreads = np.mean(found, axis=0), np.std(found, axis=0) / len(found) ** 0.5
    worst = int(np.abs(means).argmax())
    return {
        "coverage_bias_points": 100 * float(means[worst]),
        "coverage_bias_bound_points": 100 * (abs(float(means[worst])) + TWO_SIDED_95 * float(spreads[worst])),
    }
