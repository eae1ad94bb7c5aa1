"""Closed-form starts of exits: multinomial logistic regression of their last linear layer on what is before it.

A few hundred steps on batches leave an exit of one linear layer far from its optimum, which a convex solver finds in
seconds from the features of some thousand samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from device_sdk.progress import Progress
from packager.supernet.blocks.trainable import evaluated
from packager.supernet.expansion import Expansion, TrainableExit
from packager.tasks.logistic_regression import logistic_regression
from packager.tracing.traced_model import tensors_of

MOST_SAMPLES, MOST_BYTES = 8_192, 512_000_000  # of prepared inputs
LEAST_SAMPLES = 64
EXIT_BATCH = 8  # samples whose features at all cut points are in memory together
_PENALTIES = (1e-4, 1e-3, 1e-2)  # times the sum of squares of the weights, besides the mean cross-entropy
_HELD_BACK = 4  # one of so many samples chooses the penalty
_LABEL_SHARE = 0.5  # of the target; the rest are the full model's probabilities
_LEAST_VARIANCE = 1e-12

Batches: TypeAlias = Iterable[tuple[npt.NDArray[np.float32], npt.NDArray[Any]]]
States: TypeAlias = dict[str, dict[str, torch.Tensor]]  # by exit and name


def sample_count(sample_bytes: int) -> int:
    """The number of training samples for the fit; fewer of large ones."""
    return max(LEAST_SAMPLES, min(MOST_SAMPLES, MOST_BYTES // sample_bytes))


def fit_exits(expansion: Expansion, batches: Batches, *, progress: Progress) -> States:
    """The states of the exits that end with a linear layer on features which need no training.

    ``batches``: prepared training samples [n, *input] with labels [n], −1 for none, through the original path. Exits
    behind which nothing is gained over equal probabilities on the samples held back are left out.
    """
    parts = [part for part in map(_Head.of, expansion.exits) if part is not None]
    if not parts:
        return {}
    found = _collected(expansion, parts, batches, progress)
    if len(found.targets) < LEAST_SAMPLES:
        return {}
    states = {}
    with progress.task("fit exits", len(parts)) as task:
        for part in parts:
            task.note(part.exit.id)
            if (state := part.fitted(found.features[part.exit.id], found.targets)) is not None:
                states[part.exit.id] = state
            task.advance()
    return states


def with_exit_states(expansion: Expansion, states: States) -> Expansion:
    """The expansion whose exits start from ``states``, and a note on their number."""
    for exit_ in expansion.exits:
        if exit_.id in states:
            exit_.module.load_state_dict(states[exit_.id])
    if not states:
        return expansion
    note = f"{len(states)} of {len(expansion.exits)} exits start from a fit of their last layer"
    return replace(expansion, notes=(*expansion.notes, note))


@dataclass(frozen=True)
class _Features:
    """Features before the last layer, by exit, [count, width]; targets: probabilities [count, classes]."""

    features: dict[str, torch.Tensor]
    targets: torch.Tensor


@dataclass(frozen=True)
class _Head:
    """An exit whose layers ``before`` the batch-norm, if there is one, and the last linear layer need no training."""

    exit: TrainableExit
    before: nn.Sequential
    norm: nn.BatchNorm1d | None
    last: nn.Linear

    @classmethod
    def of(cls, exit_: TrainableExit) -> _Head | None:
        layers = list(exit_.module) if isinstance(exit_.module, nn.Sequential) else []
        if not layers or not isinstance(layers[-1], nn.Linear):
            return None
        *before, last = layers
        norm = before.pop() if before and isinstance(before[-1], nn.BatchNorm1d) else None
        trained = (nn.modules.batchnorm._BatchNorm, nn.Conv1d, nn.Conv2d)
        if any(isinstance(one, trained) for layer in before for one in layer.modules()):
            return None
        return cls(exit_, nn.Sequential(*before), norm, last)

    def fitted(self, features: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor] | None:
        """The state of the exit; None where the fit explains nothing of what was held back."""
        held = torch.arange(len(targets)) % _HELD_BACK == _HELD_BACK - 1
        mean, deviation = features[~held].mean(0), features[~held].var(0).clamp_min(_LEAST_VARIANCE).sqrt()
        standard = (features - mean) / deviation
        tried = []
        for penalty in _PENALTIES:
            weight, bias = logistic_regression(standard[~held], targets[~held], penalty=penalty)
            loss = float(functional.cross_entropy(standard[held] @ weight.T + bias, targets[held]))
            tried.append((loss, penalty, weight, bias))
        loss, _, weight, bias = min(tried, key=lambda one: one[0])
        if not loss < math.log(targets.shape[1]):
            return None
        return self._state(mean, deviation, weight, bias)

    def _state(
        self, mean: torch.Tensor, deviation: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """``weight`` and ``bias`` are of standardised features: the batch-norm standardises, or the layer itself."""
        names = {id(layer): name for name, layer in self.exit.module.named_children()}
        state = {name: value.clone() for name, value in self.exit.module.state_dict().items()}
        last = names[id(self.last)]
        if self.norm is None:
            weight = weight / deviation
            bias = bias - weight @ mean
        else:
            norm = names[id(self.norm)]
            state[f"{norm}.running_mean"], state[f"{norm}.running_var"] = mean, deviation.square()
        state[f"{last}.weight"], state[f"{last}.bias"] = weight, bias
        return state


def _collected(expansion: Expansion, parts: Sequence[_Head], batches: Batches, progress: Progress) -> _Features:
    features: dict[str, list[torch.Tensor]] = {part.exit.id: [] for part in parts}
    targets: list[torch.Tensor] = []
    with progress.task("features of exits", 1) as task, torch.no_grad():
        for inputs, labels in batches:
            samples = torch.from_numpy(inputs)
            along = expansion.traced.features(samples)
            answers = along[-1]
            assert isinstance(answers, torch.Tensor)
            for part in parts:
                (own,) = tensors_of([along[part.exit.position]])
                with evaluated(part.before):
                    features[part.exit.id].append(part.before(own).float())
            targets.append(_targets(answers, torch.from_numpy(np.asarray(labels))))
        task.advance()
    whole = {name: torch.cat(some) for name, some in features.items() if some}
    return _Features(whole, torch.cat(targets) if targets else torch.empty(0))


def _targets(answers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The full model's probabilities [n, classes], mixed with the labels where there are some."""
    teacher = answers.float().softmax(1)
    known = (labels >= 0)[:, None]
    hot = functional.one_hot(labels.long().clamp_min(0), answers.shape[1]).float()
    return torch.where(known, _LABEL_SHARE * hot + (1 - _LABEL_SHARE) * teacher, teacher)
