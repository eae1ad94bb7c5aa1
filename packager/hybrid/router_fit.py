"""The losses of hybrid training (Hybrid Eq. 6–7 and the two after them), and the router: trained with the routing
loss, its threshold tuned to a coverage (Alg. 2).

Sums over samples are means here, so that a loss does not grow with the batch. A router's two scores are the
probabilities of a softmax: r0 is ``ease``, r1 is 1 − ``ease``, and r1 − r0 lies between −1 and 1.

The result is the ``Router`` that devices run. ``benchmarks/hard_samples/router_fitting`` fits the same network on
a device, without the coverage penalty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace
from torch import Tensor, nn
from torch.nn import functional

from device_sdk.errors import DataError
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.deciders.router import ROUTER_FEATURES, meta_features, packed, standardised
from device_sdk.supernet.plan import Router
from packager.errors import TrainingError

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class RouterFit:
    """Settings for training a router. ``decay``: of weights per step, relative to the rate; ``patience``: in epochs."""

    coverage: float
    coverage_weight: float = 1.0
    hidden: tuple[int, int] = (32, 16)
    rate: float = 2e-3
    decay: float = 1.0
    batch: int = 64
    most_epochs: int = 100
    patience: int = 8
    held_out: float = 0.2
    seed: int = 0


def fit_routing(base: Logits, global_: Logits, labels: npt.NDArray[np.int64], groups: int, fit: RouterFit) -> Router:
    """A router from the answers of both models [count, classes] to samples with ``labels`` [count].

    Args:
        groups: the samples are so many views, one after the other, of the same images; an image is held out with all
            of its views.

    Raises:
        DataError: asking gains for no sample or for all: there is nothing to learn; or views are missing.
        TrainingError: a logit or the loss is not finite.
    """
    if not (np.isfinite(base).all() and np.isfinite(global_).all()):
        raise TrainingError("a logit is not finite", hint="lower base_rate or global_rate")
    if len(labels) % groups:
        raise DataError(f"{len(labels)} routing samples are not {groups} views of the same images")
    oracle = routing_oracle(*map(torch.from_numpy, (base, global_, labels)))
    if not oracle.any() or oracle.all():
        raise DataError(
            f"asking gains for {int(oracle.sum())} of {len(oracle)} routing samples: a router has nothing to learn",
            hint="give routing_data with images that the models do not know by heart",
        )
    features = meta_features(base)
    mean, spread = features.mean(axis=0), features.std(axis=0)
    factor = np.where(spread > 1e-12, 1.0 / np.where(spread > 1e-12, spread, 1.0), 0.0)
    values = torch.from_numpy(standardised(features, mean, factor)).float()
    network = _trained(values, oracle, len(oracle) // groups, fit)
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    weights = [(layer.weight.detach().double().numpy().T, layer.bias.detach().double().numpy()) for layer in layers]
    return Router(0.5, fit.hidden, packed(mean, factor, weights))


def tuned_to_coverage(router: Router, logits: Logits, coverage: float) -> Router:
    """The router that keeps ``coverage`` of the samples with ``logits`` [count, classes] at the base (Alg. 2).

    At 0 every sample is sent, at 1 none is.
    """
    eases = np.sort(ease(router, logits))
    sent = round((1.0 - coverage) * len(eases))
    if sent == len(eases):
        return replace(router, threshold=math.nextafter(1.0, math.inf))
    return replace(router, threshold=float(eases[sent]) if sent else 0.0)


def right_at(
    router: Router, base: Logits, global_: Logits, labels: npt.NDArray[np.int64], coverage: float
) -> npt.NDArray[np.bool_]:
    """Mask of samples that the hybrid classifies correctly if the ``1 − coverage`` hardest are sent: [count]."""
    sent = np.argsort(ease(router, base), kind="stable")[: round((1.0 - coverage) * len(labels))]
    answers = base.argmax(axis=1)
    answers[sent] = global_.argmax(axis=1)[sent]
    return np.asarray(answers == labels)


def _trained(values: Tensor, oracle: Tensor, images: int, fit: RouterFit) -> nn.Sequential:
    """The network of the epoch with the least loss on held-out images."""
    random = torch.Generator().manual_seed(fit.seed)
    order = torch.randperm(images, generator=random)
    held = torch.zeros(images, dtype=torch.bool)
    held[order[: int(fit.held_out * images)]] = True
    held = held.repeat(len(oracle) // images)
    judged = held if held.any() else ~held
    network = _started(fit.hidden, random)
    optimizer = torch.optim.AdamW(network.parameters(), lr=fit.rate, weight_decay=fit.decay)
    best, least, waited = network.state_dict(), math.inf, 0
    for _ in range(fit.most_epochs):
        learned = torch.nonzero(~held)[:, 0]
        for part in learned[torch.randperm(len(learned), generator=random)].split(fit.batch):
            optimizer.zero_grad()
            _loss(network, values[part], oracle[part], fit).backward()
            optimizer.step()
        with torch.no_grad():
            loss = float(_loss(network, values[judged], oracle[judged], fit))
        if not math.isfinite(loss):
            raise TrainingError("the loss of the router is not finite")
        waited += 1
        if loss < least:
            best, least, waited = {name: one.clone() for name, one in network.state_dict().items()}, loss, 0
        if waited >= fit.patience:
            break
    network.load_state_dict(best)
    return network


def _loss(network: nn.Module, values: Tensor, oracle: Tensor, fit: RouterFit) -> Tensor:
    return routing_loss(network(values)[:, 0], oracle, coverage=fit.coverage, coverage_weight=fit.coverage_weight)


def _started(hidden: tuple[int, int], random: torch.Generator) -> nn.Sequential:
    """Weights as He et al. (2015) start them, and no biases."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((ROUTER_FEATURES, *hidden, 1)):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.normal_(0.0, (2.0 / inputs) ** 0.5, generator=random)
            layer.bias.zero_()
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def routing_oracle(base_logits: Tensor, global_logits: Tensor, labels: Tensor) -> Tensor:
    """Mask of gains by asking: base is wrong, global model right (Eq. 6). [count, classes] twice -> [count]."""
    return (base_logits.argmax(1) != labels) & (global_logits.argmax(1) == labels)


def routing_loss(scores: Tensor, oracle: Tensor, *, coverage: float, coverage_weight: float = 1.0) -> Tensor:
    """The routing loss (Eq. 7), with ``coverage_weight`` as its λ_r.

    Args:
        scores: [count], the logarithm of ease / (1 − ease).
        oracle: [count], True where asking gains; these samples weigh W_r = 1 + 2o.
        coverage: the share of samples that is to stay at the base.
    """
    gains = oracle.to(scores.dtype)
    losses = functional.binary_cross_entropy_with_logits(scores, 1.0 - gains, reduction="none")
    asked = functional.relu(1.0 - 2.0 * torch.sigmoid(scores)).mean()
    penalty = functional.relu(coverage - (1.0 - asked))
    return coverage_weight * penalty + weighted(losses, 1.0 + 2.0 * gains)


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
