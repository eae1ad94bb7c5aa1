"""The routing network of the Hybrid paper (App. B.2): meta-features of logits, and how hard it finds them. Pure.

The paper counts 101 meta-features (predictions, entropy, correlations of the ten largest) and does not list them. Ours:
the ten largest probabilities in descending order; the entropy in nats; then for each pair of these ten, in the order
(1, 2), (1, 3) … (9, 10), the product of their probabilities, and after all products the differences of their logits.
With fewer than ten classes the missing probabilities are 0, and so are the differences with them.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import Self

import numpy as np

from device_sdk.supernet.deciders.port import Array, Thresholded
from device_sdk.supernet.deciders.port import Scores as Values

ROUTER_FEATURES = 101
MOST_ROUTER_NEURONS = 256  # of a hidden layer: a router takes at most 0.4 MB
TOP = 10
_USUAL = (16, 16)  # neurons of the hidden layers
FARTHEST = 5.0  # standard deviations from the mean of a feature
_FIRST, _SECOND = np.triu_indices(TOP, 1)


class Router(Thresholded, frozen=True, tag="router"):
    """Hard is a sample whose estimated probability that asking gains nothing lies below ``threshold``.

    Source: Hybrid App. B.2.

    A network with two ``hidden`` layers of rectified linear units on 101 meta-features of the logits, and a sigmoid at
    its end. ``weights``: float32, little-endian, one after the other: the mean of each feature and one over its
    spread; then for each of the three layers its matrix [inputs, outputs], row by row, and its biases.
    A feature enters as (feature − mean) · (one over spread), held within ±5.

    Raises:
        ValueError: a layer has no or too many neurons, or the weights are not as many as they need or not finite.
    """

    hidden: tuple[int, int]
    weights: bytes

    def __post_init__(self) -> None:
        if not all(1 <= neurons <= MOST_ROUTER_NEURONS for neurons in self.hidden):
            raise ValueError(f"a router's hidden layers have 1 to {MOST_ROUTER_NEURONS} neurons, not {self.hidden}")
        if len(self.weights) != 4 * self.weight_count(self.hidden):
            raise ValueError(
                f"a router of {self.hidden} neurons has {self.weight_count(self.hidden)} weights of four bytes, "
                f"not {len(self.weights)} bytes"
            )
        if not all(math.isfinite(number) for (number,) in struct.iter_unpack("<f", self.weights)):
            raise ValueError("a router has a weight that is not finite")

    @staticmethod
    def weight_count(hidden: tuple[int, int]) -> int:
        """Number of float32 values in the ``weights`` of a router with these hidden layers."""
        first, second = hidden
        return 2 * ROUTER_FEATURES + (ROUTER_FEATURES + 1) * first + (first + 1) * second + second + 1

    @classmethod
    def largest(cls, classes: int) -> Self:
        """See the port; of a usual size."""
        return cls(0.0, _USUAL, bytes(4 * cls.weight_count(_USUAL)))

    def score(self, logits: Array) -> Values:
        """See the port."""
        mean, factor, layers = _unpacked(self)
        return ease_of(layers, standardised(meta_features(logits), mean, factor))


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
