"""The branch structures of exits, one function each and a registry.

A branch maps [batch, *shape of the cut point] to logits [batch, classes]. Supported shapes: images
[channels, height, width] (or [height, width, channels]), tokens [tokens, width], vectors [width].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from packager.supernet.expansion import count_macs

Shape = tuple[int, ...]

_MOST_MACS = 0.1  # of the original path's, for one branch
_WIDEST = 256  # maximum channels or hidden units of a branch
_SMALL_SIDE = 8  # up to this side the first convolution keeps the resolution


def build_branch(name: str, shape: Shape, *, classes: int, whole_macs: int, seed: int) -> nn.Module | None:
    """A branch of structure ``name`` with weights initialised from ``seed``; None if the shape is not supported.

    It is the first size whose MACs are at most a tenth of ``whole_macs``, those of the original path.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in BRANCHES[name](shape, classes):
            if count_macs(module, shape) <= _MOST_MACS * whole_macs:
                return module
    return None


def _pooled(shape: Shape, classes: int) -> Iterator[nn.Module]:
    """The mean over all positions, then one linear layer: negligible MACs."""
    if len(shape) == 3:
        order, width = _channels_first(shape)
        yield nn.Sequential(*order, _Mean(2, 3), nn.BatchNorm1d(width), nn.Linear(width, classes))
    elif len(shape) == 2:
        yield nn.Sequential(_Mean(1), nn.BatchNorm1d(shape[1]), nn.Linear(shape[1], classes))
    elif len(shape) == 1:
        yield nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


def _conv(shape: Shape, classes: int) -> Iterator[nn.Module]:
    """Images: depthwise-separable 3×3 convolutions, their mean, one linear layer.

    From a small image two, the second at half the resolution; from a large one three, the first two halving it.
    Tokens and vectors: one hidden layer for each token, their mean, one linear layer.
    """
    if len(shape) == 3:
        order, width = _channels_first(shape)
        large = min(shape[:2] if order else shape[1:]) > _SMALL_SIDE
        for factor in (2, 1, 0.5):
            first, second = (min(math.ceil(width * grow), _WIDEST) for grow in (factor, 2 * factor))
            layers = _separable(width, first, stride=2 if large else 1) + _separable(first, second, stride=2)
            if large:
                layers += _separable(second, second, stride=1)
            yield nn.Sequential(*order, *layers, _Mean(2, 3), nn.Linear(second, classes))
    elif len(shape) in (1, 2):
        mean = [_Mean(1)] if len(shape) == 2 else []
        hidden = min(2 * shape[-1], _WIDEST)
        layers = [nn.LayerNorm(shape[-1]), nn.Linear(shape[-1], hidden), nn.ReLU()]
        yield nn.Sequential(*layers, *mean, nn.Linear(hidden, classes))


BRANCHES: dict[str, Callable[[Shape, int], Iterator[nn.Module]]] = {"pooled": _pooled, "conv": _conv}


class _Mean(nn.Module):
    """The mean over some axes."""

    def __init__(self, *axes: int) -> None:
        super().__init__()
        self._axes = axes

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.mean(self._axes)


def _separable(inputs: int, outputs: int, *, stride: int) -> list[nn.Module]:
    """A depthwise 3×3 convolution and a pointwise one: [batch, inputs, h, w] → [batch, outputs, h / stride, …]."""
    return [
        nn.Conv2d(inputs, inputs, 3, stride=stride, padding=1, groups=inputs, bias=False),
        nn.BatchNorm2d(inputs),
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    ]


def _channels_first(shape: Shape) -> tuple[list[nn.Module], int]:
    """A module that moves an image's channels to the front if necessary, and their number.

    Channels-last, as in some transformers, is detected by equal first two extents and a different third.
    """
    if shape[0] == shape[1] != shape[2]:
        return [_ChannelsFirst()], shape[2]
    return [], shape[0]


class _ChannelsFirst(nn.Module):
    """[batch, height, width, channels] → [batch, channels, height, width]."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return features.permute(0, 3, 1, 2)
