"""The router of a hybrid (Hybrid Eq. 6, Alg. 2), the weights of samples in its losses, and which turns help.

The router is the logistic decider that devices fit: from random weights or from the entropy, the paper's network of 101
meta-features ranked samples worse (ADR 76). Bundles with such a network are still read and run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from torch import Tensor
from torch.nn import functional

from device_sdk.errors import DataError
from device_sdk.policies.deciding.decider_fitting import Fitted, Viewed, fit_best_logistic
from device_sdk.supernet.deciders.logistic import Logistic
from device_sdk.supernet.deciders.port import ease
from packager.errors import TrainingError

Logits = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RoutingSamples:
    """Answers of both models [views × count, classes] to so many views of ``count`` images, and all their labels.

    Raises:
        DataError: views are missing. TrainingError: a logit is not finite.
    """

    base: Logits
    global_: Logits
    labels: npt.NDArray[np.int64]
    views: int

    def __post_init__(self) -> None:
        if not (np.isfinite(self.base).all() and np.isfinite(self.global_).all()):
            raise TrainingError("a logit is not finite", hint="lower base_rate or global_rate")
        if len(self.labels) % self.views:
            raise DataError(f"{len(self.labels)} routing samples are not {self.views} views of the same images")


def fit_router(samples: RoutingSamples) -> Fitted[Logistic]:
    """The decider that ranks left-out images best by the gain of asking; learned from them and their views.

    Raises:
        DataError: asking gains for no sample or for all: there is nothing to learn.
    """
    here, there = (one.argmax(axis=1) == samples.labels for one in (samples.base, samples.global_))
    gains, losses = ~here & there, here & ~there
    shown = Viewed(
        samples.base.reshape(samples.views, -1, samples.base.shape[1]),
        ~gains.reshape(samples.views, -1),
        losses.reshape(samples.views, -1),
    )
    assert shown.losses is not None
    found = fit_best_logistic(shown.logits[0], shown.easy[0], losses=shown.losses[0], views=shown)
    if found is None:
        raise DataError(
            f"asking gains for {int(gains.sum())} of {len(gains)} routing samples: a router has nothing to learn",
            hint="give routing_data with images that the models do not know by heart",
        )
    return found


def tuned_to_coverage(router: Logistic, logits: Logits, coverage: float) -> Logistic:
    """The router that keeps ``coverage`` of the samples with ``logits`` [count, classes] at the base (Alg. 2).

    At 0 every sample is sent, at 1 none is.
    """
    eases = np.sort(ease(router, logits))
    sent = round((1.0 - coverage) * len(eases))
    if sent == len(eases):
        return replace(router, threshold=math.nextafter(1.0, math.inf))
    return replace(router, threshold=float(eases[sent]) if sent else 0.0)


def right_at(
    eases: npt.NDArray[np.float64], base: Logits, global_: Logits, labels: npt.NDArray[np.int64], coverage: float
) -> Mask:
    """Mask of samples that the hybrid classifies correctly if the ``1 − coverage`` hardest are sent: [count]."""
    sent = np.argsort(eases, kind="stable")[: round((1.0 - coverage) * len(labels))]
    answers = base.argmax(axis=1)
    answers[sent] = global_.argmax(axis=1)[sent]
    return np.asarray(answers == labels)


def helps(before: Mask, after: Mask) -> bool:
    """True if more held-out samples are right ``after`` a turn, by more than a standard error of the difference."""
    won, lost = int((after & ~before).sum()), int((before & ~after).sum())
    return won - lost > math.sqrt(won + lost)


def base_weights(routed: Tensor) -> Tensor:
    """W_b = 2 − r: samples that stay at the base weigh twice. ``routed`` [count]: those that are sent."""
    return 2.0 - routed.float()


def global_weights(routed: Tensor) -> Tensor:
    """W_g = 1 + r: samples that are sent weigh twice."""
    return 1.0 + routed.float()


def weighted(losses: Tensor, weights: Tensor) -> Tensor:
    """The mean of weighted losses: [count] each."""
    return (weights * losses).mean()


def answer_losses(
    logits: Tensor,
    labels: Tensor,
    teacher: Tensor | None = None,
    *,
    label_weight: float = 1.0,
    temperature: float = 1.0,
) -> Tensor:
    """The loss of each answer: cross entropy with its label, mixed with its distance from a teacher's answer.

    ``logits``, ``teacher``: [count, classes]; ``labels``: [count]. -> [count]
    """
    losses = functional.cross_entropy(logits, labels, reduction="none")
    if teacher is None or label_weight == 1.0:
        return losses
    soft = functional.softmax(teacher / temperature, dim=1)
    distances = functional.kl_div(functional.log_softmax(logits / temperature, dim=1), soft, reduction="none").sum(1)
    return label_weight * losses + (1.0 - label_weight) * temperature**2 * distances
