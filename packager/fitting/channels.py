"""The channels that a shrunk block keeps, decided on features: those that move the output of their reader most."""

from __future__ import annotations

import copy

import torch
from torch import nn

from packager.fitting.features import BATCH
from packager.supernet.blocks.narrowing import linear
from packager.supernet.blocks.trainable import TrainableBlock, evaluated


def with_best_channels(
    block: TrainableBlock, original: nn.Module, features: torch.Tensor, counted: torch.Tensor | None = None
) -> nn.Module | None:
    """A copy of the module of ``block`` with other channels of ``original``; None if it is not known what it lost.

    ``features``: [count, *start]; ``counted``: [count, …], the positions of the reader's input that count, or all.
    """
    if not block.narrowings:
        return None
    made = copy.deepcopy(block.module)
    for narrowing in block.narrowings:
        effects = channel_effects(original, narrowing.reader, features, counted)
        count = linear(made, narrowing.reader).in_features // narrowing.unit
        of_units = effects.view(-1, narrowing.unit).sum(1)
        narrowing.take(of_units.topk(count).indices.sort().values, of=original, into=made)
    return made


def channel_effects(
    module: nn.Module, reader: str, features: torch.Tensor, counted: torch.Tensor | None = None
) -> torch.Tensor:
    """Of each channel that the linear layer ``reader`` reads, variance · squared weights behind it [channels] float64.

    That is how much of the variance of the layer's output is lost without the channel, were channels independent and
    their means kept.
    """
    layer = linear(module, reader)
    read: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    total = torch.zeros(3, layer.in_features, dtype=torch.float64)  # count, sum, sum of squares
    try:
        for first in range(0, len(features), BATCH):
            read.clear()
            with evaluated(module):
                module(features[first : first + BATCH])
            rows = read[0].flatten(0, -2)
            if counted is not None and read[0].shape[:-1] == counted[first : first + BATCH].shape:
                rows = rows[counted[first : first + BATCH].flatten()]
            values = rows.double()
            total += torch.stack([torch.full_like(total[0], len(values)), values.sum(0), values.square().sum(0)])
    finally:
        hook.remove()
    count, first_moment, second_moment = total
    variance = second_moment / count.clamp_min(1) - (first_moment / count.clamp_min(1)).square()
    return variance * layer.weight.detach().double().square().sum(0)
