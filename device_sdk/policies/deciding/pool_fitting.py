"""Weights for pooling a device's own answer with a server's, by maximum likelihood. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError
from device_sdk.offload.remote_model import LogarithmicPool
from device_sdk.runtimes.port import Array

Labels = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_ITERATIONS = 50
_CONVERGED = 1e-9
_RIDGE = 1e-3  # of the weights, in samples: where all are right, the likelihood has no maximum
_LARGEST = 1e3  # weight


def fit_pool(device: Array, server: Array, labels: Labels) -> LogarithmicPool | None:
    """The pool that makes ``labels`` [count] most likely; logits [count, classes].

    The samples should be ones that neither network learned from: of samples learned by heart a network is always sure.
    None where the device's answers add nothing: the pool's loss is not lower than that of the server's answers alone,
    at their own best temperature, by more than a standard error.

    Raises:
        InputError: there are no samples, shapes differ, a label is no class, or a logit is not finite.
    """
    _check(device, server, labels)
    centred = [_centred(one) for one in (device, server)]
    both, alone = _weights(centred, labels), _weights(centred[1:], labels)
    if both[0] <= 0 or both[1] < 0:
        return None
    saved = _losses(centred[1:], alone, labels) - _losses(centred, both, labels)
    if saved.mean() <= saved.std() / len(labels) ** 0.5:
        return None
    return LogarithmicPool(*(float(np.clip(weight, 0.0, _LARGEST)) for weight in both))


def _weights(logits: Sequence[Values], labels: Labels) -> Values:
    """The weight of each of the logits, by Newton's method with halved steps: the likelihood is concave."""
    values = np.stack(logits, axis=2)  # [count, classes, networks]
    own = values[np.arange(len(labels)), labels]
    weights = np.full(len(logits), 1.0 / len(logits))
    loss = _penalised(logits, weights, labels)
    for _ in range(_ITERATIONS):
        shares = np.exp(_log_softmax(values @ weights))[..., None]
        means = (shares * values).sum(axis=1)
        gradient = (own - means).sum(axis=0) - _RIDGE * weights
        second = np.einsum("ncd,nce->de", shares * values, values) - means.T @ means
        step = np.linalg.solve(second + _RIDGE * np.eye(len(weights)), gradient)
        while np.abs(step).max() >= _CONVERGED and _penalised(logits, weights + step, labels) > loss:
            step = step / 2
        if np.abs(step).max() < _CONVERGED:
            break
        weights = weights + step
        loss = _penalised(logits, weights, labels)
    return weights


def _penalised(logits: Sequence[Values], weights: Values, labels: Labels) -> float:
    return float(_losses(logits, weights, labels).sum() + _RIDGE / 2 * (weights**2).sum())


def _losses(logits: Sequence[Values], weights: Values, labels: Labels) -> Values:
    """The cross entropy of each sample: [count]."""
    pooled = sum(weight * one for weight, one in zip(weights, logits, strict=True))
    return np.asarray(-_log_softmax(np.asarray(pooled))[np.arange(len(labels)), labels])


def _centred(logits: Array) -> Values:
    """Logits minus their mean over the classes, which no probability depends on."""
    wide = logits.astype(np.float64)
    return np.asarray(wide - wide.mean(axis=1, keepdims=True))


def _log_softmax(values: Values) -> Values:
    shifted = values - values.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _check(device: Array, server: Array, labels: Labels) -> None:
    if device.ndim != 2 or device.shape != server.shape or len(device) != len(labels):
        raise InputError(f"there are answers of shape {device.shape} and {server.shape} to {len(labels)} samples")
    if not len(labels):
        raise InputError("there are no samples")
    if not (np.isfinite(device).all() and np.isfinite(server).all()):
        raise InputError("a logit is not finite")
    if labels.min() < 0 or labels.max() >= device.shape[1]:
        raise InputError(f"a label is none of {device.shape[1]} classes")
