"""Retrains self-merged branches on a fifth of the data (MEEdge §3.5.2, Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional

from packager.branch_zoo.features import FeatureBatch
from packager.branch_zoo.modules import Branch
from packager.branch_zoo.self_merge import MergedBranch
from packager.supernet.blocks.trainable import evaluated
from packager.training.schedule import Schedule

ALPHA, BETA = 0.5, 1.0  # Eq. 2
DATA_SHARE = 0.2  # of the training data
RATE = 1e-3  # §4.1
EPOCHS = 40  # the paper's 200 are for all layers; here the convolution part is fixed and its results are kept


def few_shot_loss(
    answers: torch.Tensor, labels: torch.Tensor, teacher: torch.Tensor, drift: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Eq. 2: α · MSE(labels, answers) + (1 − α) · KL(full model, answers) + β · ``drift`` of the shared weights.

    MSE is between class probabilities [batch, classes] and one-hot labels. ``drift``: L1 distance of the shared weights
    from where they began; 0 where they are fixed, as in ``retrain``.
    """
    target = functional.one_hot(labels, answers.shape[1]).to(answers.dtype)
    supervised = functional.mse_loss(answers.softmax(1), target)
    imitated = functional.kl_div(answers.log_softmax(1), teacher.log_softmax(1), log_target=True, reduction="batchmean")
    return ALPHA * supervised + (1 - ALPHA) * imitated + BETA * drift


def retrain_if_better(
    merged: MergedBranch, batches: Sequence[FeatureBatch], accuracy: Callable[[Branch], float]
) -> float:
    """``retrain``, unless that lowers the ``accuracy`` on held-out samples. Returns the accuracy that it has then.

    Merging alone may cost nothing, and a fifth of the data is soon known by heart.
    """
    start = {key: value.clone() for key, value in merged.branch.state_dict().items()}
    before = accuracy(merged.branch)
    retrain(merged, batches)
    after = accuracy(merged.branch)
    if after < before:
        merged.branch.load_state_dict(start)
    return max(before, after)


def retrain(merged: MergedBranch, batches: Sequence[FeatureBatch], *, epochs: int = EPOCHS) -> None:
    """Train the fully connected part in place; shared neurons and the convolution part stay as they are.

    ``batches``: of the branch's cut point, ``DATA_SHARE`` of the training data.
    """
    branch = merged.branch
    with evaluated(branch):
        vectors = [branch.vectors(batch.stemmed) for batch in batches]
    branch.dense.eval()  # statistics of the normalisation in front, where there is one, stay as well
    layers = [layer for layer in branch.dense if isinstance(layer, nn.Linear)]
    optimizer = torch.optim.Adam([p for layer in layers for p in layer.parameters()], lr=RATE)
    schedule = Schedule(steps=epochs * len(batches), seconds=None)
    while not schedule.over:
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(RATE)
        number = schedule.done % len(batches)
        optimizer.zero_grad(set_to_none=True)
        batch = batches[number]
        few_shot_loss(branch.dense(vectors[number]).float(), batch.labels, batch.teacher).backward()
        _hold_shared(branch, merged.shared)
        optimizer.step()
        schedule.done += 1


def _hold_shared(branch: Branch, shared: Mapping[int, torch.Tensor]) -> None:
    """Clear the gradients of shared neurons, with which Adam leaves their weights unchanged."""
    for index, rows in shared.items():
        for parameter in branch.dense[index].parameters():
            if parameter.grad is not None:
                parameter.grad[rows.to(parameter.device)] = 0.0
