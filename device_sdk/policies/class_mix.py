"""The mix of classes on a device, estimated from private samples, as a prior of plans.

A network trained on one mix of classes and used on another is corrected by re-weighting its answers with the ratio of
the two mixes. Without labels the mix is the maximum of the likelihood of the logits, found by expectation maximisation
(Saerens, Latinne, Decaestecker 2002, section 2). Both need calibrated probabilities; one temperature is enough where
the shares are smoothed. Pure, numpy only.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from device_sdk.supernet.plan import Prior

Floats = npt.NDArray[np.float64]

LEAST_SAMPLES = 20
PSEUDO_SAMPLES = 4.0  # spread as in training: a class that was not seen keeps a share
_ITERATIONS, _TOLERANCE = 200, 1e-6
_FOLDS = 4
_CERTAINTY = 2.0  # standard errors by which the prior must raise the likelihood of samples it was not estimated on
_TEMPERATURES = (0.25, 8.0)
_GOLDEN = (math.sqrt(5) - 1) / 2
_SEARCH_STEPS = 40


def find_prior(
    logits: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64] | None,
    *,
    temperature: float | None = None,
) -> Prior | None:
    """The prior of the samples with ``logits`` [count, classes] of the full model; None where none is certain to help.

    ``labels`` [count], or None: then the mix is estimated from the logits. ``temperature``: of the logits; None: fitted
    to the labels, or 1 without any. Shares are estimated on three quarters of the samples and judged on the fourth, in
    turns: the prior is kept only if it makes those samples more likely by two standard errors.
    """
    count, classes = logits.shape
    if count < LEAST_SAMPLES or classes < 2 or not np.isfinite(logits).all():
        return None
    wide = logits.astype(np.float64)
    if temperature is None:
        temperature = 1.0 if labels is None else fit_temperature(wide, labels)
    likely = probabilities(wide / temperature)
    gains = np.zeros(count)
    folds = np.arange(count) % _FOLDS
    for fold in range(_FOLDS):
        rest, own = folds != fold, folds == fold
        ratios = np.exp(_log_ratios(likely[rest], None if labels is None else labels[rest]))
        gains[own] = np.log(_evidence(likely[own], ratios, None if labels is None else labels[own]))
    if gains.mean() <= _CERTAINTY * gains.std() / math.sqrt(count):
        return None
    return Prior(tuple(_log_ratios(likely, labels).tolist()), temperature)


def fit_temperature(logits: npt.NDArray[np.floating], labels: npt.NDArray[np.int64]) -> float:
    """The temperature at which ``logits`` [count, classes] over it make ``labels`` [count] likeliest, 0.25 to 8.

    Under the mix of the labels themselves, so that another mix does not count as overconfidence. Golden-section search
    over its logarithm (temperature scaling, Guo et al. 2017).
    """
    rows, wide = np.arange(len(labels)), logits.astype(np.float64)

    def loss(log_temperature: float) -> float:
        scaled = wide / math.exp(log_temperature)
        scaled = scaled + _shares_to_log_ratios(_label_shares(labels, wide.shape[1]))
        return float(-np.log(np.maximum(probabilities(scaled)[rows, labels], 1e-300)).mean())

    low, high = map(math.log, _TEMPERATURES)
    for _ in range(_SEARCH_STEPS):
        first, second = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, second) if loss(first) < loss(second) else (first, high)
    return math.exp((low + high) / 2)


def _log_ratios(likely: Floats, labels: npt.NDArray[np.int64] | None) -> Floats:
    """[classes], from calibrated probabilities [count, classes] or from labels."""
    shares = _estimated_shares(likely) if labels is None else _label_shares(labels, likely.shape[1])
    return _shares_to_log_ratios(shares)


def _shares_to_log_ratios(shares: Floats) -> Floats:
    return np.log(shares * len(shares))


def _label_shares(labels: npt.NDArray[np.int64], classes: int) -> Floats:
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    shares: Floats = (counts + PSEUDO_SAMPLES / classes) / (counts.sum() + PSEUDO_SAMPLES)
    return shares


def _estimated_shares(likely: Floats) -> Floats:
    """Shares of the classes [classes] by expectation maximisation, with pseudo-samples of the uniform mix."""
    count, classes = likely.shape
    shares = np.full(classes, 1.0 / classes)
    for _ in range(_ITERATIONS):
        weighted = likely * shares
        responsible = weighted / weighted.sum(axis=1, keepdims=True)
        new = (responsible.sum(axis=0) + PSEUDO_SAMPLES / classes) / (count + PSEUDO_SAMPLES)
        moved, shares = float(np.abs(new - shares).sum()), new
        if moved < _TOLERANCE:
            break
    return shares


def _evidence(likely: Floats, ratios: Floats, labels: npt.NDArray[np.int64] | None) -> Floats:
    """Likelihood ratio of each sample, new mix over uniform: [count]; with ``labels``, that of its label instead."""
    totals: Floats = likely @ ratios
    return totals if labels is None else ratios[labels] / totals


def probabilities(logits: Floats) -> Floats:
    """Of ``logits`` [count, classes]: each row sums to 1."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Floats = powers / powers.sum(axis=1, keepdims=True)
    return probabilities
