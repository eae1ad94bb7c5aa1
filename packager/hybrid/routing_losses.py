"""The routing oracle and the three losses of hybrid training (Hybrid Eq. 6–7 and the two losses after them).

Sums over samples are means here, so that a loss does not grow with the batch. A router's two scores are the
probabilities of a softmax: r0 is ``ease``, r1 is 1 − ``ease``, and r1 − r0 lies between −1 and 1.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


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
