"""The routing network of the hybrid paper as a named peer: two hidden layers on 101 meta-features (App. B.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.neural_network import MLPClassifier

from device_sdk.execution.deciders import entropy

_HIDDEN = (256, 64)
_TOP = 10


def meta_features(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The entropy, and the outer product of the ten largest probabilities in descending order: [count, 101].

    The paper does not determine the list; "correlations between top 10 predictions" are read as their products.
    """
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    top = -np.sort(-powers / powers.sum(axis=1, keepdims=True), axis=1)[:, :_TOP]
    products = (top[:, :, None] * top[:, None, :]).reshape(len(top), -1)
    return np.hstack([entropy(logits)[:, None], products])


def fit_router(logits: npt.NDArray[np.float32], easy: npt.NDArray[np.bool_]):  # type: ignore[no-untyped-def]
    """A function that gives the ease of logits; trained on whether asking the server gains nothing (oracle, Eq. 6)."""
    features = meta_features(logits)
    mean, spread = features.mean(axis=0), features.std(axis=0) + 1e-9
    network = MLPClassifier(_HIDDEN, max_iter=500, early_stopping=True, random_state=0)
    network.fit((features - mean) / spread, easy)
    return lambda new: network.predict_proba((meta_features(new) - mean) / spread)[:, 1]
