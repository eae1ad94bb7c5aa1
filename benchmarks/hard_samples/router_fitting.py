"""Fitting a router: its networks, its settings, and whether it is better than plain scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.policies.deciding.decider_fitting import (
    Fitted,
    Viewed,
    can_be_learned,
    fold_of,
    logistic_weights,
    mean_gain,
)
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.router import FARTHEST, TOP, meta_features, packed, standardised
from device_sdk.supernet.plan import Router


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """Settings for fitting a router.

    ``penalties``: of the regression on all meta-features, in samples, the largest first; at the first, infinity, only
    the entropy counts. ``neurons``: of each of the networks that correct the regression, one per fold. ``patience``:
    epochs without a lower loss; ``decay``: of the weights, per step. ``gain_weight``: W_r of samples about which
    asking gains.
    """

    penalties: tuple[float, ...] = (math.inf, 1e4, 3e3, 1e3, 3e2, 1e2)
    neurons: tuple[int, int] = (8, 8)
    learning_rate: float = 2e-3
    decay: float = 1.0
    batch: int = 256
    most_epochs: int = 40
    patience: int = 5
    gain_weight: float = 3.0
    seed: int = 0


Values = npt.NDArray[np.float64]
Layers = list[tuple[Values, Values]]
Positions = npt.NDArray[np.int64]


def trained(
    values: Values,
    targets: Values,
    scores: Values,
    settings: RouterSettings,
    random: np.random.Generator,
    *,
    learned: Positions,
    stopping: Positions,
) -> Layers:
    """The layers of the epoch with the least loss on the rows at ``stopping``; those of the start change no score.

    Args:
        values: standardised features [rows, features]; targets: [rows], 0 or 1.
        scores: [rows], the logarithm of the odds that the network's output is added to.
        learned: the rows that it learns from.
    """
    layers = _started(values.shape[1], settings.neurons, random)
    adam = _Adam(layers, settings)
    best, waited = _copied(layers), 0
    least = losses(scores[stopping] + output(layers, values[stopping]), targets[stopping], settings.gain_weight).mean()
    for _ in range(settings.most_epochs):
        shuffled = random.permutation(learned)
        for at in range(0, len(shuffled), settings.batch):
            part = shuffled[at : at + settings.batch]
            adam.step(_gradients(layers, values[part], targets[part], scores[part], settings.gain_weight))
        found = scores[stopping] + output(layers, values[stopping])
        loss = losses(found, targets[stopping], settings.gain_weight).mean()
        waited += 1
        if loss < least:
            best, least, waited = _copied(layers), loss, 0
        if waited >= settings.patience:
            break
    return best


def output(layers: Layers, values: Values) -> Values:
    """The network's correction to the score: [rows, features] -> [rows]."""
    for weights, biases in layers[:-1]:
        values = np.maximum(values @ weights + biases, 0.0)
    weights, biases = layers[-1]
    return np.asarray((values @ weights + biases)[:, 0])


def losses(scores: Values, targets: Values, gain_weight: float) -> Values:
    """The weighted cross entropy of each row: [rows] each."""
    return np.where(targets > 0, np.logaddexp(0.0, -scores), gain_weight * np.logaddexp(0.0, scores))


def side_by_side(networks: list[Layers]) -> Layers:
    """One network whose output is the mean of theirs."""
    merged: Layers = []
    for number, parts in enumerate(zip(*networks, strict=True)):
        biases = np.concatenate([bias for _, bias in parts])
        if number == 0:
            merged.append((np.hstack([weights for weights, _ in parts]), biases))
        elif number < len(networks[0]) - 1:
            merged.append((_block_diagonal([weights for weights, _ in parts]), biases))
        else:
            merged.append((np.vstack([weights for weights, _ in parts]) / len(parts), biases.mean(keepdims=True)))
    return merged


def _block_diagonal(parts: list[Values]) -> Values:
    found = np.zeros(np.sum([part.shape for part in parts], axis=0))
    row = column = 0
    for part in parts:
        found[row : row + part.shape[0], column : column + part.shape[1]] = part
        row, column = row + part.shape[0], column + part.shape[1]
    return found


def _started(features: int, neurons: tuple[int, int], random: np.random.Generator) -> Layers:
    """Weights as He et al. (2015) start them, but for the last layer, which is zero; no biases."""
    sizes = [features, *neurons]
    layers = [
        (random.normal(0.0, (2.0 / inputs) ** 0.5, (inputs, outputs)), np.zeros(outputs))
        for inputs, outputs in pairwise(sizes)
    ]
    return [*layers, (np.zeros((sizes[-1], 1)), np.zeros(1))]


def _copied(layers: Layers) -> Layers:
    return [(weights.copy(), biases.copy()) for weights, biases in layers]


def _gradients(layers: Layers, values: Values, targets: Values, scores: Values, gain_weight: float) -> Layers:
    """Of the mean weighted cross entropy, backwards through the layers."""
    inputs = [values]
    for weights, biases in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ weights + biases, 0.0))
    found = scores + (inputs[-1] @ layers[-1][0] + layers[-1][1])[:, 0]
    ease = 1.0 / (1.0 + np.exp(-np.clip(found, -30, 30)))
    weight = np.where(targets > 0, 1.0, gain_weight)
    back = (weight * (ease - targets) / len(targets))[:, None]
    gradients: Layers = []
    for number in range(len(layers) - 1, -1, -1):
        gradients.append((inputs[number].T @ back, back.sum(axis=0)))
        if number:
            back = (back @ layers[number][0].T) * (inputs[number] > 0)
    return gradients[::-1]


class _Adam:
    """Adam (Kingma and Ba 2015) with decoupled decay of the weights; changes ``layers`` in place."""

    def __init__(self, layers: Layers, settings: RouterSettings) -> None:
        self._settings = settings
        self._parts = [part for layer in layers for part in layer]
        self._means = [np.zeros_like(part) for part in self._parts]
        self._squares = [np.zeros_like(part) for part in self._parts]
        self._steps = 0

    def step(self, gradients: Layers) -> None:
        self._steps += 1
        rate, decay = self._settings.learning_rate, self._settings.decay
        flat = [part for layer in gradients for part in layer]
        for part, mean, square, gradient in zip(self._parts, self._means, self._squares, flat, strict=True):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            change = (mean / (1 - 0.9**self._steps)) / (np.sqrt(square / (1 - 0.999**self._steps)) + 1e-8)
            part -= rate * (change + (decay * part if part.ndim > 1 else 0.0))


_ENTROPY = TOP  # its place among the meta-features
_ENTROPY_PENALTY = 1.0  # in samples: a few samples may be separable


def fit_router(
    logits: Array,
    easy: npt.NDArray[np.bool_],
    settings: RouterSettings | None = None,
    *,
    views: Viewed | None = None,
) -> Fitted[Router] | None:
    """A router that estimates the probability of ``easy`` [count] from ``logits`` [count, classes].

    The target is that asking a server gains nothing. The threshold is 0.5 until it is tuned. None if all samples
    that it learns from are easy, or none is: there is nothing to learn.

    Args:
        views: learned from in place of the samples; all views of a sample are left out with it.

    Raises:
        InputError: the numbers of samples differ, or a logit is not finite.
    """
    settings = settings or RouterSettings()
    can_be_learned(logits, easy)  # refuses samples that are none; all may be easy where some of their views are not
    views = views or Viewed(logits[None], easy[None])
    views.require_of(logits)
    rows = views.logits.reshape(-1, logits.shape[1])
    if not can_be_learned(rows, views.easy.ravel()):
        return None
    features = meta_features(rows)
    mean, spread = features.mean(axis=0), features.std(axis=0)
    known = spread > 1e-12
    factor = np.where(known, 1.0 / np.where(known, spread, 1.0), 0.0)
    samples = _Samples(
        standardised(features, mean, factor),
        views.easy.ravel().astype(np.float64),
        np.tile(fold_of(len(easy)), len(views.logits)),
    )
    own = standardised(meta_features(logits), mean, factor)
    weights, networks, eases = _fitted(samples, own, fold_of(len(easy)), settings)
    layers = _with_regression(weights, networks)
    hidden = (layers[0][0].shape[1], layers[1][0].shape[1])
    return Fitted(Router(0.5, hidden, packed(mean, factor, layers)), eases)


def fit_router_if_better(
    logits: Array,
    easy: npt.NDArray[np.bool_],
    rival: Values,
    settings: RouterSettings | None = None,
    *,
    views: Viewed | None = None,
) -> Fitted[Router] | None:
    """A router, if it ranks left-out samples better than a rival does, else None. ``rival``: its eases of them [count].

    A rival that was fitted has to have left the samples out too (``cross_fitted_eases``): judged on what it learned
    from, it would win too often. Better: sending the hardest samples gains more, on the mean of all shares up to half.
    """
    found = fit_router(logits, easy, settings, views=views)
    return found if found is not None and mean_gain(found.eases, ~easy) > mean_gain(rival, ~easy) else None


@dataclass(frozen=True)
class _Samples:
    """Rows to learn from: standardised features [rows, 101], targets [rows], and the fold of each [rows]."""

    values: Values
    targets: Values
    folds: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        """Of the folds."""
        return int(self.folds.max()) + 1

    def in_fold(self, fold: int) -> Positions:
        return np.flatnonzero(self.folds == fold % self.count)

    def outside(self, *folds: int) -> Positions:
        return np.flatnonzero(~np.isin(self.folds, [fold % self.count for fold in folds]))


def _fitted(
    samples: _Samples, own: Values, own_folds: npt.NDArray[np.int64], settings: RouterSettings
) -> tuple[Values, list[Layers], Values]:
    """The regression's weights, its bias first; the networks, if they are kept; the eases of left-out samples [count].

    ``own``: features of the samples themselves [count, 101], with their folds.
    """
    regressions = [_regressions(samples, samples.outside(fold), settings) for fold in range(samples.count)]
    risks = _left_out(samples, regressions, settings)
    best = min(range(len(settings.penalties)), key=lambda number: float(risks[number].mean()))
    per_fold = [weights[best] for weights in regressions]
    networks = [_network(samples, per_fold[fold], fold, settings) for fold in range(samples.count)]
    corrected = np.empty(len(samples.targets))
    for fold, (weights, network) in enumerate(zip(per_fold, networks, strict=True)):
        rows = samples.in_fold(fold)
        scores = _scores(weights, samples.values[rows]) + output(network, samples.values[rows])
        corrected[rows] = losses(scores, samples.targets[rows], settings.gain_weight)
    keeps = _is_lower(corrected, risks[best], len(own))
    scores = np.empty(len(own))
    for fold, (weights, network) in enumerate(zip(per_fold, networks, strict=True)):
        rows = own_folds == fold
        scores[rows] = _scores(weights, own[rows]) + (output(network, own[rows]) if keeps else 0.0)
    weights = _regressions(samples, np.arange(len(samples.targets)), settings)[best]
    return weights, networks if keeps else [], 1.0 / (1.0 + np.exp(-np.clip(scores, -700, 700)))


def _regressions(samples: _Samples, rows: Positions, settings: RouterSettings) -> list[Values]:
    """The weights [102] for each penalty, learned from ``rows``; with each the entropy's weight is free."""
    values, targets = samples.values[rows], samples.targets[rows]
    importance = np.where(targets > 0, 1.0, settings.gain_weight)
    found: list[Values] = []
    start = np.zeros(1 + values.shape[1])
    used = [0, 1 + _ENTROPY]
    for penalty in settings.penalties:
        if math.isinf(penalty):
            start[used] = logistic_weights(
                values[:, [_ENTROPY]], targets, np.array([_ENTROPY_PENALTY]), importance=importance
            )
        else:
            penalties = np.full(values.shape[1], penalty)
            penalties[_ENTROPY] = _ENTROPY_PENALTY
            start = logistic_weights(values, targets, penalties, importance=importance, start=start)
        found.append(start.copy())
    return found


def _left_out(samples: _Samples, regressions: Sequence[Sequence[Values]], settings: RouterSettings) -> Values:
    """The loss of each row by the regressions that did not learn from it: [penalties, rows]."""
    found = np.empty((len(settings.penalties), len(samples.targets)))
    for fold, by_penalty in enumerate(regressions):
        rows = samples.in_fold(fold)
        for number, weights in enumerate(by_penalty):
            scores = _scores(weights, samples.values[rows])
            found[number, rows] = losses(scores, samples.targets[rows], settings.gain_weight)
    return found


def _network(samples: _Samples, weights: Values, fold: int, settings: RouterSettings) -> Layers:
    """A network for the regression that left out ``fold``; the next fold says when it stops."""
    random = np.random.default_rng([settings.seed, fold])
    scores = _scores(weights, samples.values)
    stopping = samples.in_fold(fold + 1)
    learned = samples.outside(fold, fold + 1)
    if not len(learned):
        learned = stopping
    return trained(samples.values, samples.targets, scores, settings, random, learned=learned, stopping=stopping)


def _is_lower(new: Values, old: Values, count: int) -> bool:
    """True if the mean of ``new`` [views × count] is lower by over a standard error; views of a sample count as one."""
    change = (new - old).reshape(-1, count).mean(axis=0)
    return bool(change.mean() < -change.std() / count**0.5)


def _scores(weights: Values, values: Values) -> Values:
    return np.asarray(weights[0] + values @ weights[1:])


def _with_regression(weights: Values, networks: list[Layers]) -> Layers:
    """One network of two hidden layers whose output is the regression's score plus the mean of the networks' outputs.

    The first neuron's input stays above 0, since features are bounded; what is added for that is taken off at the end.
    """
    above = 1.0 + FARTHEST * float(np.abs(weights[1:]).sum())
    column = weights[1:, None]
    regression: Layers = [
        (column, np.array([above])),
        (np.ones((1, 1)), np.zeros(1)),
        (np.ones((1, 1)), np.array([weights[0] - above])),
    ]
    if not networks:
        return regression
    both = side_by_side([regression, side_by_side(networks)])
    return [*both[:-1], (2 * both[-1][0], 2 * both[-1][1])]  # their sum, not their mean
