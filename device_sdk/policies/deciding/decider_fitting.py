"""Fitting deciders and the pooling of answers by logistic regression."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from device_sdk.errors import InputError
from device_sdk.offload.remote_model import LogarithmicPool
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.logistic import Logistic, LogitFeature, feature, first_and_second
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.deciders.router import Router

Labels = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]

_ITERATIONS = 50
_POOL_CONVERGED = 1e-9
_POOL_RIDGE = 1e-3  # of the weights, in samples: where all are right, the likelihood has no maximum
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
        gradient = (own - means).sum(axis=0) - _POOL_RIDGE * weights
        second = np.einsum("ncd,nce->de", shares * values, values) - means.T @ means
        step = np.linalg.solve(second + _POOL_RIDGE * np.eye(len(weights)), gradient)
        while np.abs(step).max() >= _POOL_CONVERGED and _penalised(logits, weights + step, labels) > loss:
            step = step / 2
        if np.abs(step).max() < _POOL_CONVERGED:
            break
        weights = weights + step
        loss = _penalised(logits, weights, labels)
    return weights


def _penalised(logits: Sequence[Values], weights: Values, labels: Labels) -> float:
    return float(_losses(logits, weights, labels).sum() + _POOL_RIDGE / 2 * (weights**2).sum())


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


TOP_TWO: tuple[LogitFeature, ...] = ("top_1", "top_2")  # HI §3.3
ALL_FEATURES: tuple[LogitFeature, ...] = ("top_1", "top_2", "entropy", "logit_margin", "log_sum_exp")

_RIDGE = 1.0  # of the standardised weights: a few dozen wrong answers must not make them large
_CLASS_RIDGE = 1.0  # of a class's log-odds, whose prior has this precision: a class seen once moves little
_CONVERGED = 1e-8
_FOLDS = 5  # of cross fitting

Mask = npt.NDArray[np.bool_]


def fit_logistic(
    logits: Array,
    easy: Mask,
    *,
    losses: Mask | None = None,
    features: Sequence[LogitFeature] = ALL_FEATURES,
    by_class: bool = True,
) -> Logistic | None:
    """A decider that estimates the probability of ``easy`` [count] from ``logits`` [count, classes].

    The target is usually a right answer; where a server is asked, that asking it gains nothing. Its
    threshold is 0.5 until it is tuned. None if all samples are easy, or none is: there is nothing to learn.

    Args:
        losses: mask of the easy samples whose right answer asking would replace by a wrong one [count]. With it the
            estimate is (1 − mean gain) / 2 instead: samples are ranked by the gain of asking less its losses, and
            asking gains where the estimate is below 0.5.
        by_class: learn a number for each class that is most probable, or second: networks confuse some classes more
            than others, and a server may know some better. Each has a normal prior of variance 1 around 0, so that
            hundreds of classes with a sample or two do no harm.

    Raises:
        InputError: the numbers of samples differ, or a logit is not finite.
    """
    if not can_be_learned(logits, easy):
        return None
    values = np.hstack([feature(name, logits)[:, None] for name in features])
    mean, spread = values.mean(axis=0), values.std(axis=0)
    spread[spread == 0] = 1.0
    classes = logits.shape[1] if by_class and logits.shape[1] > 1 else 0
    places, columns = _class_columns(logits) if classes else (np.empty(0, np.intp), np.empty((len(logits), 0)))
    design = np.hstack([(values - mean) / spread, columns])
    penalties = np.repeat([_RIDGE, _CLASS_RIDGE], [len(features), len(places)])
    fitted = logistic_weights(design, _targets(easy, losses), penalties)
    own = fitted[1 : 1 + len(features)] / spread
    of_classes = np.zeros(2 * classes)
    of_classes[places] = fitted[1 + len(features) :]
    by_answer, by_runner_up = np.split(of_classes, 2)
    bias = float(fitted[0] - own @ mean)
    return Logistic(0.5, tuple(features), _numbers(own), bias, _numbers(by_answer), _numbers(by_runner_up))


def _targets(easy: Mask, losses: Mask | None) -> Values:
    """1 for easy samples, else 0; with ``losses``, 1 for these, one half for those whose outcome asking leaves."""
    return easy.astype(np.float64) if losses is None else (easy.astype(np.float64) + losses) / 2


def _class_columns(logits: Array) -> tuple[npt.NDArray[np.intp], Values]:
    """Indicators of the classes that are some sample's first or second: places in 2 × classes, [count, places]."""
    count, classes = logits.shape
    first, second = first_and_second(logits)
    places = np.unique(np.concatenate([first, classes + second]))
    columns = np.zeros((count, len(places)))
    for one in (first, classes + second):
        columns[np.arange(count), np.searchsorted(places, one)] = 1.0
    return places, columns


@dataclass(frozen=True)
class Viewed:
    """Views of samples to learn from: ``logits`` [views, count, classes], and a mask of the easy ones [views, count].

    A view is a sample of its own: its answer may be wrong where that to the sample is right. ``losses``: as
    ``fit_logistic`` takes them [views, count].

    Raises:
        InputError: their numbers differ.
    """

    logits: Array
    easy: Mask
    losses: Mask | None = None

    def __post_init__(self) -> None:
        outcomes = [self.easy] if self.losses is None else [self.easy, self.losses]
        if self.logits.ndim != 3 or any(self.logits.shape[:2] != one.shape for one in outcomes):
            shapes = " and ".join(str(one.shape) for one in outcomes)
            raise InputError(f"there are views of shape {self.logits.shape} and outcomes of shape {shapes}")

    def require_of(self, logits: Array) -> None:
        """Raises InputError if they are not views of the samples with ``logits`` [count, classes]."""
        if self.logits.shape[1:] != logits.shape:
            raise InputError(f"there are views of shape {self.logits.shape[1:]} of samples of shape {logits.shape}")

    def of(self, positions: Mask) -> Viewed:
        """The views of some samples."""
        losses = None if self.losses is None else self.losses[:, positions]
        return Viewed(self.logits[:, positions], self.easy[:, positions], losses)


Kind = TypeVar("Kind", Logistic, Router)


@dataclass(frozen=True)
class Fitted(Generic[Kind]):
    """A decider that was fitted to samples, and the ease of each when it is left out: [count]."""

    decider: Kind
    eases: Values


def fit_best_logistic(
    logits: Array, easy: Mask, *, losses: Mask | None = None, views: Viewed | None = None
) -> Fitted[Logistic] | None:
    """The decider of all features that ranks left-out samples best, fitted to all of them.

    Tried are fits with and without a number per class, on the samples and on their ``views``; given ``losses``, fits
    to gains alone and to gains less losses. The former are better of a server that is right almost wherever the device
    is, the latter of one that knows some classes only. None if all samples are easy, or none is.

    Raises:
        InputError: the numbers of samples differ, or a logit is not finite.
    """
    found: tuple[Fitted[Logistic], float] | None = None
    gains = ~easy if losses is None else (~easy).astype(np.int64) - losses
    targets = [None] if losses is None or not losses.any() else [None, losses]
    for learned in (None, views) if views is not None else (None,):
        for target in targets:
            for by_class in (True, False):
                eases = cross_fitted_eases(logits, easy, losses=target, views=learned, by_class=by_class)
                gain = -math.inf if eases is None else mean_gain(eases, gains)
                if eases is None or (found is not None and gain <= found[1]):
                    continue
                decider = _fitted(logits, easy, target, learned, by_class=by_class)
                found = found if decider is None else (Fitted(decider, eases), gain)
    return None if found is None else found[0]


def cross_fitted_eases(
    logits: Array,
    easy: Mask,
    *,
    losses: Mask | None = None,
    views: Viewed | None = None,
    features: Sequence[LogitFeature] = ALL_FEATURES,
    by_class: bool = True,
) -> Values | None:
    """The ease of each sample by a decider that learned from four fifths of the others: [count].

    All views of a sample are left out with it. None if all samples that a decider learns from are easy, or none is.

    Args:
        losses: as ``fit_logistic`` takes them; given, those of the ``views`` are learned from too.

    Raises:
        InputError: the numbers of samples differ, or a logit is not finite.
    """
    eases = np.empty(len(easy))
    for left_out in _folds(len(easy)):
        seen = ~left_out
        part, lost = None if views is None else views.of(seen), None if losses is None else losses[seen]
        decider = _fitted(logits[seen], easy[seen], lost, part, features=features, by_class=by_class)
        if decider is None:
            return None
        eases[left_out] = ease(decider, logits[left_out])
    return eases


def mean_gain(eases: Values, gains: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> float:
    """Samples gained when the hardest are sent, less those lost: the mean over all shares up to a half.

    ``gains``: a mask, or 1 for a gain, −1 for a loss and 0 for neither [count].
    """
    order = np.argsort(eases, kind="stable")
    return float(np.cumsum(gains[order])[: max(1, len(order) // 2)].mean())


_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # of the samples that asking is tried with
_DOUBT = 1.0  # standard errors: with few samples a server that is better is not told from one that is not


def asking_pays(eases: Values, gains: npt.NDArray[np.int64]) -> bool:
    """True if asking about some share of the hardest samples gains, by more than a standard error.

    Args:
        eases: of left-out samples, where the decider was fitted [count].
        gains: 1 where asking makes a wrong answer right, −1 where a right one wrong, else 0 [count].
    """
    ordered = gains[np.argsort(eases, kind="stable")]
    net, changed = np.cumsum(ordered), np.cumsum(ordered != 0)
    at = [max(1, round(share * len(gains))) - 1 for share in _SHARES]
    return bool((net[at] > _DOUBT * np.sqrt(changed[at])).any())


def _fitted(
    logits: Array,
    easy: Mask,
    losses: Mask | None,
    views: Viewed | None,
    *,
    features: Sequence[LogitFeature] = ALL_FEATURES,
    by_class: bool,
) -> Logistic | None:
    if views is None:
        return fit_logistic(logits, easy, losses=losses, features=features, by_class=by_class)
    views.require_of(logits)
    flat = views.logits.reshape(-1, logits.shape[1])
    lost = None if losses is None or views.losses is None else views.losses.ravel()
    return fit_logistic(flat, views.easy.ravel(), losses=lost, features=features, by_class=by_class)


def _folds(count: int) -> Iterator[npt.NDArray[np.bool_]]:
    """Masks of the samples that each fold leaves out, [count] each."""
    folds = fold_of(count)
    for fold in range(min(_FOLDS, count)):
        yield folds == fold


def fold_of(count: int) -> npt.NDArray[np.int64]:
    """Number of the fold that leaves each sample out: [count], from 0 to 4."""
    return np.arange(count) % _FOLDS


def can_be_learned(logits: Array, easy: npt.NDArray[np.bool_]) -> bool:
    """True if some samples are easy and some are not.

    Raises:
        InputError: the numbers of samples differ, or a logit is not finite.
    """
    if len(logits) != len(easy):
        raise InputError(f"there are {len(logits)} samples and {len(easy)} outcomes")
    if not np.isfinite(logits).all():
        raise InputError("a logit is not finite")
    return bool(easy.any()) and not bool(easy.all())


def _numbers(values: npt.NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(values.tolist())


def logistic_weights(
    values: Values,
    targets: Values,
    penalties: Values,
    *,
    importance: Values | None = None,
    start: Values | None = None,
) -> Values:
    """The bias and the weights of ``values`` [count, features] that make ``targets`` most likely: [1 + features].

    Args:
        targets: 0 to 1 [count].
        penalties: of the squared weights [features]; the bias is free.
        importance: of each sample [count], 1 by default.
        start: where to begin, zeros by default.
    """
    design = np.hstack([np.ones((len(values), 1)), values])
    penalty = np.array([0.0, *penalties])
    share = np.ones(len(values)) if importance is None else importance
    weights = np.zeros(design.shape[1]) if start is None else start.copy()
    for _ in range(_ITERATIONS):
        odds = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (share * (targets - odds)) - penalty * weights
        curvature = (design * (share * odds * (1 - odds))[:, None]).T @ design + np.diag(penalty + 1e-9)
        change = np.linalg.solve(curvature, gradient)
        weights += change
        if np.abs(change).max() < _CONVERGED:
            break
    return weights
