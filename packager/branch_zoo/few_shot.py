"""Retrains self-merged branches on a fifth of the data (MEEdge §3.5.2, Eq. 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from packager.branch_zoo.features import FeatureBatch
from packager.branch_zoo.modules import Branch
from packager.branch_zoo.self_merge import MergedBranch
from packager.supernet.blocks.trainable import evaluated
from packager.training.schedule import Schedule

ALPHA, BETA = 0.5, 1.0  # Eq. 2
DATA_SHARE = 0.2  # of the training data
RATE = 1e-3  # §4.1
_MEAN_DECAY = 0.98  # per step, of the running mean of the weights
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


def few_vectors(branch: Branch, batches: Sequence[FeatureBatch]) -> torch.Tensor:
    """Inputs to the fully connected part of ``branch`` for all ``batches`` [samples, features]."""
    with evaluated(branch):
        return torch.cat([branch.vectors(batch.stemmed) for batch in batches])


def retrain_to_least_loss(
    merged: MergedBranch, batches: Sequence[FeatureBatch], judged_on: FeatureBatch, *, epochs: int = EPOCHS
) -> None:
    """``retrain``, and keep the weights of least loss (Eq. 2) on the held-out samples ``judged_on``.

    Candidates are the weights at the beginning, those after each epoch, and their running mean then. Merging alone may
    cost nothing, and a fifth of the data is soon known by heart. The loss, unlike the accuracy on so few samples, tells
    small differences.
    """
    branch = merged.branch
    with evaluated(branch):
        vectors = branch.vectors(judged_on.stemmed)
    mean = AveragedModel(branch.dense, multi_avg_fn=get_ema_multi_avg_fn(_MEAN_DECAY))

    def judged(dense: nn.Module) -> float:
        with torch.no_grad():
            return float(few_shot_loss(dense(vectors).float(), judged_on.labels, judged_on.teacher))

    least, best = judged(branch.dense.eval()), _copied(branch.dense)

    def after_step(epoch_is_over: bool) -> None:
        nonlocal least, best
        mean.update_parameters(branch.dense)
        for dense in (branch.dense, mean.module) if epoch_is_over else ():
            if (loss := judged(dense)) < least:
                least, best = loss, _copied(dense)

    retrain(merged, batches, epochs=epochs, after_step=after_step)
    branch.dense.load_state_dict(best)


def retrain(
    merged: MergedBranch,
    batches: Sequence[FeatureBatch],
    *,
    epochs: int = EPOCHS,
    after_step: Callable[[bool], None] = lambda epoch_is_over: None,
) -> None:
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
        after_step(schedule.done % len(batches) == 0)


def _copied(module: nn.Module) -> dict[str, torch.Tensor]:
    return {key: value.detach().clone() for key, value in module.state_dict().items()}


def _hold_shared(branch: Branch, shared: Mapping[int, torch.Tensor]) -> None:
    """Clear the gradients of shared neurons, with which Adam leaves their weights unchanged."""
    for index, rows in shared.items():
        for parameter in branch.dense[index].parameters():
            if parameter.grad is not None:
                parameter.grad[rows.to(parameter.device)] = 0.0
