"""Self-merging: neurons of a hidden layer share weights, and are folded into a smaller layer (MEEdge §3.5.1), which is
retrained on a fifth of the data (§3.5.2, Eq. 2).

Two neurons whose incoming weights are equal give equal outputs, so one of them can be left out if its outgoing weights
are added to the other's. Hence a merged sibling is an ordinary, smaller branch: the saving is on disk, on the wire and
in the runtime, without two sessions having to share an initializer.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from packager.branch_zoo.features import FeatureBatch
from packager.branch_zoo.modules import Branch, build_branch
from packager.branch_zoo.specs import Shape, parse
from packager.errors import PackagingError, WeightsError
from packager.supernet.blocks.trainable import evaluated
from packager.supernet.expansion import TrainableExit, count_macs
from packager.training.schedule import Schedule

LEAST_MERGED, MOST_MERGED = 1 / 3, 1 / 2  # pairs, over the neurons of the layer
_TRIED = 5  # numbers of pairs in between
_RIDGE = 1e-3  # of the mean square of a layer's inputs
ALPHA, BETA = 0.5, 1.0  # Eq. 2
DATA_SHARE = 0.2  # of the training data
RATE = 1e-3  # §4.1
_MEAN_DECAY = 0.98  # per step, of the running mean of the weights
EPOCHS = 40  # the paper's 200 are for all layers; here the convolution part is fixed and its results are kept
_HINT = "the model and its cut points must be as when the branches were trained"
_LINEAR = re.compile(r"dense\.(\d{1,3})\.weight")


@dataclass(frozen=True)
class MergedBranch:
    """A self-merged sibling. ``shared``: the merged neurons of each hidden layer, by the layer's index in ``dense``."""

    branch: Branch
    shared: dict[int, torch.Tensor]


def closest_pairs(neurons: torch.Tensor, count: int) -> list[tuple[int, int]]:
    """``count`` disjoint pairs of ``neurons`` [n, weights] in ascending order of their L2 distance, at most n // 2."""
    total = len(neurons)
    first, second = torch.triu_indices(total, total, offset=1).unbind(0)
    rows = neurons.double().cpu()
    distance = torch.cdist(rows, rows)[first, second]
    order = distance.argsort(stable=True)
    found: list[tuple[int, int]] = []
    taken = [False] * total
    for a, b in zip(first[order].tolist(), second[order].tolist(), strict=True):
        if len(found) == min(count, total // 2):
            break
        if not taken[a] and not taken[b]:
            taken[a] = taken[b] = True
            found.append((a, b))
    return found


def self_merged(branch: Branch, share: float, vectors: torch.Tensor | None = None) -> MergedBranch:
    """A copy of ``branch`` in which each hidden layer of n neurons has round(``share`` · n) pairs merged.

    Layer by layer from the input: a pair's weights and bias become their mean, the next layer's weights for the two are
    added, so that the next layer's neurons are compared as they will be. With ``vectors`` [samples, features], what the
    fully connected part reads, the next layer is then fitted to what it computed before the merge (``_refitted``).

    Raises:
        PackagingError: there is no hidden layer.
    """
    made = copy.deepcopy(branch)
    layers = _linear_layers(made.dense)
    if len(layers) < 2:
        raise PackagingError("a branch without hidden layers has no neurons to merge")
    shared: dict[int, torch.Tensor] = {}
    for index, following in pairwise(layers):
        layer, after = _linear(made, index), _linear(made, following)
        rows = torch.cat([layer.weight.detach(), layer.bias.detach()[:, None]], dim=1)
        pairs = closest_pairs(rows, round(share * len(rows)))
        made.dense[index], folded, shared[index] = _folded(layer, after, pairs)
        if vectors is not None:
            with torch.no_grad(), evaluated(branch), evaluated(made):
                inputs, outputs = made.dense[:following](vectors), branch.dense[: following + 1](vectors)
            folded = _refitted(folded, inputs, outputs)
        made.dense[following] = folded
    return MergedBranch(made, shared)


def best_merge(
    branch: Branch, accuracy: Callable[[Branch], float], vectors: torch.Tensor | None = None
) -> MergedBranch:
    """The sibling with the most accurate number of pairs from a third to half of the neurons; of equals, the smallest.

    ``accuracy``: of a branch on held-out samples, before any retraining (§3.5.1: "traverse"). ``vectors``: as for
    ``self_merged``.
    """
    step = (MOST_MERGED - LEAST_MERGED) / (_TRIED - 1)
    tried = [self_merged(branch, LEAST_MERGED + number * step, vectors) for number in range(_TRIED)]
    scores = [accuracy(one.branch) for one in tried]
    return tried[max(range(_TRIED), key=lambda number: (scores[number], number))]


def hidden_widths(branch: Branch) -> tuple[int, ...]:
    """Neurons of each hidden layer."""
    return tuple(_linear(branch, index).out_features for index in _linear_layers(branch.dense)[:-1])


def resized(branch: Branch, widths: Sequence[int]) -> Branch:
    """A copy of ``branch`` whose hidden layers have so many neurons, with weights yet to be loaded."""
    made = copy.deepcopy(branch)
    layers = _linear_layers(made.dense)
    outputs = [*widths, _linear(made, layers[-1]).out_features]
    inputs = [_linear(made, layers[0]).in_features, *widths]
    for index, read, written in zip(layers, inputs, outputs, strict=True):
        made.dense[index] = nn.Linear(read, written)
    return made


def _folded(
    layer: nn.Linear, after: nn.Linear, pairs: Sequence[tuple[int, int]]
) -> tuple[nn.Linear, nn.Linear, torch.Tensor]:
    """Both layers with ``pairs`` merged, and which of the remaining neurons are merged ones [kept] bool."""
    kept = torch.ones(layer.out_features, dtype=torch.bool)
    merged = torch.zeros(layer.out_features, dtype=torch.bool)
    weight, bias, outgoing = (tensor.detach().clone() for tensor in (layer.weight, layer.bias, after.weight))
    if pairs:
        first, second = (torch.tensor(side) for side in zip(*pairs, strict=True))
        weight[first] = (weight[first] + weight[second]) / 2
        bias[first] = (bias[first] + bias[second]) / 2
        outgoing[:, first] += outgoing[:, second]
        kept[second], merged[first] = False, True
    return (
        _linear_of(weight[kept], bias[kept]),
        _linear_of(outgoing[:, kept], after.bias.detach().clone()),
        merged[kept],
    )


def _refitted(layer: nn.Linear, inputs: torch.Tensor, outputs: torch.Tensor) -> nn.Linear:
    """``layer`` moved by the ridge regression of ``outputs`` [samples, neurons] on ``inputs`` [samples, weights].

    The penalty is on the distance from the layer's weights and biases, so that few samples move it little.
    """
    known = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=1).double()
    missing = outputs.double() - (inputs.double() @ layer.weight.double().T + layer.bias.double())
    gram = known.T @ known
    penalty = _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    moved = torch.linalg.solve(gram + penalty, known.T @ missing).to(layer.weight.dtype).T.detach()
    return _linear_of((layer.weight + moved[:, :-1]).detach(), (layer.bias + moved[:, -1]).detach())


def _linear_of(weight: torch.Tensor, bias: torch.Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device)
    made.load_state_dict({"weight": weight, "bias": bias})
    return made


def _linear_layers(dense: nn.Sequential) -> list[int]:
    return [index for index, layer in enumerate(dense) if isinstance(layer, nn.Linear)]


def _linear(branch: Branch, index: int) -> nn.Linear:
    layer = branch.dense[index]
    assert isinstance(layer, nn.Linear)
    return layer


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


def exit_of(position: int, name: str, state: Mapping[str, torch.Tensor], shape: Shape) -> TrainableExit:
    """The exit at cut point ``position`` of this ``shape`` with the branch ``name`` of the zoo and its weights.

    A self-merged branch has the hidden widths of its weights.

    Raises:
        WeightsError: the weights belong to another branch, or the shape suits none.
    """
    spec, outputs = parse(name), _outputs(state)
    branch = build_branch(spec, shape, classes=outputs[-1], seed=0) if spec is not None and outputs else None
    if spec is None or branch is None:
        raise WeightsError(f"there is no branch {name[:80]} at cut point {position}", hint=_HINT)
    if spec.merged and len(outputs) - 1 == len(hidden_widths(branch)):
        branch = resized(branch, outputs[:-1])
    try:
        branch.load_state_dict(dict(state))
    except RuntimeError as error:
        raise WeightsError(f"the weights of {spec.exit_id(position)} have other names or shapes", hint=_HINT) from error
    return TrainableExit(
        id=spec.exit_id(position), position=position, branch=spec.name, module=branch, macs=count_macs(branch, shape)
    )


def _outputs(state: Mapping[str, torch.Tensor]) -> list[int]:
    """Outputs of each fully connected layer, in order."""
    layers = {int(found[1]): len(v) for key, v in state.items() if (found := _LINEAR.fullmatch(key)) and v.dim() == 2}
    return [layers[index] for index in sorted(layers)]
