"""Small networks that correct a regression's score: Adam on small batches, stopped early on other samples. Pure."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from device_sdk.policies.deciding.router_settings import RouterSettings

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
