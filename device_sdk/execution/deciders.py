"""Which samples are hard, by their logits: what exits, abstention and asking a server decide by. Pure, numpy only.

A new kind of decider is a type in ``supernet/plan.py`` and a line in ``_SCORES``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Decider, Entropy, Margin, MaxConfidence

Scores = npt.NDArray[np.float64]


def confidence(logits: Array) -> Scores:
    """The largest softmax probability of each sample: logits [batch, classes] -> [batch], above 0 and at most 1."""
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(1.0 / powers.sum(axis=1))


def margin(logits: Array) -> Scores:
    """The difference of the two largest softmax probabilities: logits [batch, classes] -> [batch], 0 to 1."""
    ordered = np.sort(_probabilities(logits), axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2] if ordered.shape[1] > 1 else ordered[:, -1])


def entropy(logits: Array) -> Scores:
    """The Shannon entropy of the softmax probabilities in nats: logits [batch, classes] -> [batch], at least 0."""
    probabilities = _probabilities(logits)
    logs = np.log(np.where(probabilities > 0, probabilities, 1.0))
    return np.asarray(np.maximum(-(probabilities * logs).sum(axis=1), 0.0))


def ease(decider: Decider, logits: Array) -> Scores:
    """How easy each sample is, in the decider's own measure: the larger, the easier. [batch]

    The entropy counts negative, so that every kind is ordered the same way.
    """
    return _SCORES[type(decider)](logits)


def hard(decider: Decider, logits: Array) -> npt.NDArray[np.bool_]:
    """Which samples are hard: logits [batch, classes] -> [batch]."""
    return np.asarray(ease(decider, logits) < _limit(decider))


def _limit(decider: Decider) -> float:
    return -decider.threshold if isinstance(decider, Entropy) else decider.threshold


def _probabilities(logits: Array) -> Scores:
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


_SCORES: dict[type, Callable[[Array], Scores]] = {
    MaxConfidence: confidence,
    Entropy: lambda logits: -entropy(logits),
    Margin: margin,
}
