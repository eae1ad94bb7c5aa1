"""Self-merging: neurons of a hidden layer share weights, and are folded into a smaller layer (MEEdge §3.5.1).

Two neurons whose incoming weights are equal give equal outputs, so one of them can be left out if its outgoing weights
are added to the other's. Hence a merged sibling is an ordinary, smaller branch: the saving is on disk, on the wire and
in the runtime, without two sessions having to share an initializer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from packager.branch_zoo.modules import Branch
from packager.errors import PackagingError
from packager.supernet.blocks.trainable import evaluated

LEAST_MERGED, MOST_MERGED = 1 / 3, 1 / 2  # pairs, over the neurons of the layer
_TRIED = 5  # numbers of pairs in between
_RIDGE = 1e-3  # of the mean square of a layer's inputs


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
