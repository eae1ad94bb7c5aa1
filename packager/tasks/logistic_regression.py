"""Multinomial logistic regression."""

from __future__ import annotations

import torch
from torch.nn import functional

_ITERATIONS = 100  # of L-BFGS


def logistic_regression(
    features: torch.Tensor, targets: torch.Tensor, *, penalty: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [classes, width] and bias [classes] of the least mean cross-entropy and penalised squares of the weight.

    ``features``: [count, width]; ``targets``: probabilities [count, classes]. ``penalty``: times the sum of squares.
    """
    weight = torch.zeros(targets.shape[1], features.shape[1], requires_grad=True)
    bias = torch.zeros(targets.shape[1], requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=_ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        solver.zero_grad()
        value = functional.cross_entropy(features @ weight.T + bias, targets) + penalty * weight.square().sum()
        value.backward()
        return value

    solver.step(loss)
    return weight.detach(), bias.detach()
