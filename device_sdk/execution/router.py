"""The routing network of the Hybrid paper (App. B.2): meta-features of logits, and how hard it finds them. Pure.

The paper counts 101 meta-features (predictions, entropy, correlations of the ten largest) and does not list them. Ours:
the ten largest probabilities in descending order; the entropy in nats; then for each pair of these ten, in the order
(1, 2), (1, 3) … (9, 10), the product of their probabilities, and after all products the differences of their logits.
With fewer than ten classes the missing probabilities are 0, and so are the differences with them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import ROUTER_FEATURES, Router

Values = npt.NDArray[np.float64]

TOP = 10
FARTHEST = 5.0  # standard deviations from the mean of a feature
_FIRST, _SECOND = np.triu_indices(TOP, 1)


def meta_features(logits: Array) -> Values:
    """The 101 numbers of each sample: logits [batch, classes] -> [batch, 101]."""
    wide = -np.sort(-logits.astype(np.float64), axis=1)
    powers = np.exp(wide - wide[:, :1])
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    entropy = np.maximum(-(probabilities * logs).sum(axis=1, keepdims=True), 0.0)
    known = min(TOP, wide.shape[1])
    top = np.zeros((len(wide), TOP))
    top[:, :known] = probabilities[:, :known]
    values = np.zeros((len(wide), TOP))
    values[:, :known] = wide[:, :known]
    products = top[:, _FIRST] * top[:, _SECOND]
    differences = np.where(known > _SECOND, values[:, _FIRST] - values[:, _SECOND], 0.0)
    return np.hstack([top, entropy, products, differences])


def estimated_ease(router: Router, logits: Array) -> Values:
    """The estimated probability that asking gains nothing: logits [batch, classes] -> [batch]."""
    mean, factor, layers = _unpacked(router)
    return ease_of(layers, standardised(meta_features(logits), mean, factor))


def standardised(features: Values, mean: Values, factor: Values) -> Values:
    """Features [batch, 101] as a router takes them."""
    return np.asarray(np.clip((features - mean) * factor, -FARTHEST, FARTHEST))


def ease_of(layers: list[tuple[Values, Values]], values: Values) -> Values:
    """The output of the network for standardised features [batch, 101]."""
    for weights, biases in layers[:-1]:
        values = np.maximum(values @ weights + biases, 0.0)
    weights, biases = layers[-1]
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(values @ weights + biases, -700.0, 700.0))))[:, 0]


def packed(mean: Values, factor: Values, layers: list[tuple[Values, Values]]) -> bytes:
    """The weights as a ``Router`` keeps them."""
    numbers = [mean, factor, *(part for layer in layers for part in layer)]
    return b"".join(one.astype("<f4").tobytes() for one in numbers)


@lru_cache(maxsize=16)
def _unpacked(router: Router) -> tuple[Values, Values, list[tuple[Values, Values]]]:
    numbers = np.frombuffer(router.weights, "<f4").astype(np.float64)
    mean, factor = numbers[:ROUTER_FEATURES], numbers[ROUTER_FEATURES : 2 * ROUTER_FEATURES]
    at, layers = 2 * ROUTER_FEATURES, []
    for inputs, outputs in zip((ROUTER_FEATURES, *router.hidden), (*router.hidden, 1), strict=True):
        weights = numbers[at : at + inputs * outputs].reshape(inputs, outputs)
        at += inputs * outputs
        layers.append((weights, numbers[at : at + outputs]))
        at += outputs
    return mean, factor, layers
