"""Fitting the routing network on private samples: Adam on small batches, stopped early on held-out samples. Pure.

Source: Hybrid Eq. 6 (the target: asking gains) and Eq. 7 (samples of which that is so weigh three times). Its coverage
penalty is left out: the threshold is tuned afterwards, to any coverage (Alg. 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.execution.deciders import ease
from device_sdk.execution.router import ease_of, meta_features, packed, standardised
from device_sdk.policies.decider_fitting import can_be_learned, mean_gain
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import ROUTER_FEATURES, Decider, Router

Values = npt.NDArray[np.float64]
Layers = list[tuple[Values, Values]]


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """How a router learns. ``patience``: epochs without a better held-out loss; ``decay``: of the weights, per step."""

    hidden: tuple[int, int] = (32, 16)
    learning_rate: float = 2e-3
    decay: float = 1.0
    batch: int = 64
    most_epochs: int = 100
    patience: int = 8
    held_out: float = 0.2
    gain_weight: float = 3.0  # W_r of samples about which asking gains
    seed: int = 0


def fit_router(logits: Array, easy: npt.NDArray[np.bool_], settings: RouterSettings | None = None) -> Router | None:
    """A router that estimates the probability of ``easy`` [count] from ``logits`` [count, classes].

    The target is whether asking a server gains nothing. The threshold is 0.5 until it is tuned. None if all samples are
    easy, or none is: there is nothing to learn.

    Raises:
        InputError: the numbers of samples differ, or a logit is not finite.
    """
    settings = settings or RouterSettings()
    if not can_be_learned(logits, easy):
        return None
    features = meta_features(logits)
    mean, spread = features.mean(axis=0), features.std(axis=0)
    known = spread > 1e-12
    factor = np.where(known, 1.0 / np.where(known, spread, 1.0), 0.0)
    values = standardised(features, mean, factor)
    random = np.random.default_rng(settings.seed)
    layers = _trained(values, easy.astype(np.float64), settings, random)
    return Router(0.5, settings.hidden, packed(mean, factor, layers))


def fit_router_if_better(
    logits: Array, easy: npt.NDArray[np.bool_], rival: Decider, settings: RouterSettings | None = None
) -> Router | None:
    """A router, if one that learns on two thirds of the samples ranks the rest better than ``rival``; else None.

    A network of thousands of weights fits the few samples of a device too well: judged on what it learned from, it
    would always win. Better: sending the hardest samples gains more, on the mean of all shares up to a half.
    """
    judging = np.arange(len(easy)) % 3 == 0
    found = fit_router(logits[~judging], easy[~judging], settings)
    if found is None:
        return None
    gains = ~easy[judging]
    own, other = (mean_gain(ease(one, logits[judging]), gains) for one in (found, rival))
    return fit_router(logits, easy, settings) if own > other else None


def _trained(values: Values, targets: Values, settings: RouterSettings, random: np.random.Generator) -> Layers:
    """The layers of the epoch with the least loss on held-out samples."""
    order = random.permutation(len(targets))
    held = order[: int(settings.held_out * len(order))]
    learned = order[len(held) :]
    if not len(held):
        held = learned
    layers = _started(settings.hidden, random)
    adam = _Adam(layers, settings)
    best, best_loss, waited = (
        [(w.copy(), b.copy()) for w, b in layers],
        _loss(layers, values, targets, held, settings),
        0,
    )
    for _ in range(settings.most_epochs):
        shuffled = random.permutation(learned)
        for at in range(0, len(shuffled), settings.batch):
            part = shuffled[at : at + settings.batch]
            adam.step(_gradients(layers, values[part], targets[part], settings.gain_weight))
        loss = _loss(layers, values, targets, held, settings)
        waited += 1
        if loss < best_loss:
            best, best_loss, waited = [(w.copy(), b.copy()) for w, b in layers], loss, 0
        if waited >= settings.patience:
            break
    return best


def _started(hidden: tuple[int, int], random: np.random.Generator) -> Layers:
    """Weights as He et al. (2015) start them, and no biases."""
    sizes = [ROUTER_FEATURES, *hidden, 1]
    return [
        (random.normal(0.0, (2.0 / inputs) ** 0.5, (inputs, outputs)), np.zeros(outputs))
        for inputs, outputs in pairwise(sizes)
    ]


def _loss(
    layers: Layers, values: Values, targets: Values, part: npt.NDArray[np.int64], settings: RouterSettings
) -> float:
    """The weighted cross entropy of some samples."""
    ease = np.clip(ease_of(layers, values[part]), 1e-12, 1 - 1e-12)
    losses = np.where(targets[part] > 0, -np.log(ease), -settings.gain_weight * np.log(1 - ease))
    return float(losses.mean())


def _gradients(layers: Layers, values: Values, targets: Values, gain_weight: float) -> Layers:
    """Of the mean weighted cross entropy, backwards through the layers."""
    inputs = [values]
    for weights, biases in layers[:-1]:
        inputs.append(np.maximum(inputs[-1] @ weights + biases, 0.0))
    ease = 1.0 / (1.0 + np.exp(-np.clip(inputs[-1] @ layers[-1][0] + layers[-1][1], -30, 30)))
    weight = np.where(targets > 0, 1.0, gain_weight)[:, None]
    back = weight * (ease - targets[:, None]) / len(targets)
    found: Layers = []
    for number in range(len(layers) - 1, -1, -1):
        found.append((inputs[number].T @ back, back.sum(axis=0)))
        if number:
            back = (back @ layers[number][0].T) * (inputs[number] > 0)
    return found[::-1]


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
