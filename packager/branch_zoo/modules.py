"""The one module that builds a torch branch from a spec.

Shapes: [batch, *shape of the cut point] → stem → [batch, channels, *sides] → convolution part → [batch, features] →
fully connected part → logits [batch, classes].
"""

from __future__ import annotations

import threading
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from packager.branch_zoo.specs import (
    CONVOLUTION_KINDS,
    BranchSpec,
    ConvPart,
    Filter,
    Layout,
    Shape,
    cells,
    layout_of,
    specs_for,
    strided,
    strides,
)

_CONVOLUTION: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d)  # by the number of axes, less one
_NORM: tuple[type[nn.Module], ...] = (nn.BatchNorm1d, nn.BatchNorm2d)
_GENERATOR = threading.Lock()  # layers draw from torch's global generator, which all threads share
__all__ = ["Branch", "Stem", "build_branch", "specs_for", "stem_of"]


class Branch(nn.Module):
    """A branch of the zoo. ``stem`` has no parameters, so its result can be cached; ``after_stem`` is the rest."""

    def __init__(self, stem: nn.Module, conv: nn.Module, pool: nn.Module, dense: nn.Sequential) -> None:
        super().__init__()
        self.stem = stem
        self.conv = conv
        self.pool = pool
        self.dense = dense

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.after_stem(self.stem(features))

    def after_stem(self, stemmed: torch.Tensor) -> torch.Tensor:
        """Logits from the stem's result [batch, channels, *sides]."""
        return self.dense(self.vectors(stemmed))

    def vectors(self, stemmed: torch.Tensor) -> torch.Tensor:
        """Inputs to the fully connected part [batch, features]."""
        return self.pool(self.conv(stemmed))


def build_branch(spec: BranchSpec, shape: Shape, *, classes: int, seed: int) -> Branch | None:
    """A branch of structure ``spec`` with weights initialised from ``seed``; None if the shape is not supported."""
    layout = layout_of(shape)
    if layout is None or (spec.conv.layers and not layout.sides):
        return None
    with _GENERATOR, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Branch(stem_of(layout), _conv(spec.conv, layout), _pool(spec, layout), _dense(spec, layout, classes))


def stem_of(layout: Layout) -> nn.Module:
    """Channels first, and large maps pooled."""
    return Stem(layout.channels_last, layout.pooling)


class Stem(nn.Module):
    """Moves channels to the front if they are last, and averages over windows of ``pooling`` positions."""

    def __init__(self, channels_last: bool, pooling: tuple[int, ...]) -> None:
        super().__init__()
        self._channels_last = channels_last
        self._pooling = pooling

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self._channels_last:
            features = features.transpose(1, 2) if features.dim() == 3 else features.permute(0, 3, 1, 2)
        if max(self._pooling, default=1) == 1:
            return features
        if len(self._pooling) == 1:
            return functional.avg_pool1d(features, self._pooling)
        return functional.avg_pool2d(features, self._pooling)


class _Cells(nn.Module):
    """The means over ``count`` windows along each axis, which overlap where the side is no multiple; flattened."""

    def __init__(self, sides: tuple[int, ...], count: tuple[int, ...]) -> None:
        super().__init__()
        self._stride = tuple(side // cells for side, cells in zip(sides, count, strict=True))
        self._kernel = tuple(
            side - (cells - 1) * step for side, cells, step in zip(sides, count, self._stride, strict=True)
        )
        self._whole = all(cells == 1 for cells in count)
        self._axes = tuple(range(2, 2 + len(sides)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if not self._axes:
            return features
        if self._whole:
            return features.mean(self._axes)
        pool = functional.avg_pool1d if len(self._axes) == 1 else functional.avg_pool2d
        return pool(features, self._kernel, self._stride).flatten(1)


def _pool(spec: BranchSpec, layout: Layout) -> nn.Module:
    sides = layout.pooled
    for stride in strides(spec.conv, sides):
        sides = strided(sides, stride)
    return _Cells(sides, cells(spec, layout))


def _conv(part: ConvPart, layout: Layout) -> nn.Sequential:
    layers: list[nn.Module] = []
    axes = len(layout.sides)
    for (inputs, outputs), stride in zip(
        pairwise(part.channels(layout.channels)), strides(part, layout.pooled), strict=True
    ):
        norm, convolution = _NORM[axes - 1], _CONVOLUTION[axes - 1]
        for one in CONVOLUTION_KINDS[part.kind](part.kernel, stride):
            layers += _depthwise(inputs, one)
        layers += [norm(inputs), nn.ReLU()]
        if part.kind != "depthwise":
            layers += [convolution(inputs, outputs, 1, bias=False), norm(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


def _depthwise(channels: int, one: Filter) -> list[nn.Module]:
    """One filter.

    Along an axis with stride 2, dilation by 2 reads every second position only: thinned out first, it costs less.
    """
    thinned = one.dilation > 1
    dilation = tuple(max(1, one.dilation // step) for step in one.stride)
    convolution = _CONVOLUTION[len(one.kernel) - 1](
        channels,
        channels,
        one.kernel,
        stride=1 if thinned else one.stride,
        padding=tuple(step * (size // 2) for step, size in zip(dilation, one.kernel, strict=True)),
        dilation=dilation,
        groups=channels,
        bias=False,
    )
    return [_Thinned(one.stride), convolution] if thinned and max(one.stride) > 1 else [convolution]


class _Thinned(nn.Module):
    """Every ``stride``-th position along each axis, the first included."""

    def __init__(self, stride: tuple[int, ...]) -> None:
        super().__init__()
        self._stride = stride

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if len(self._stride) == 1:
            return features[:, :, :: self._stride[0]]
        return features[:, :, :: self._stride[0], :: self._stride[1]]


def _dense(spec: BranchSpec, layout: Layout, classes: int) -> nn.Sequential:
    """The fully connected part; features that no convolution normalised are normalised first."""
    features = spec.conv.channels(layout.channels)[-1]
    for count in cells(spec, layout):
        features *= count
    layers: list[nn.Module] = [] if spec.conv.layers else [nn.BatchNorm1d(features)]
    for inputs, outputs in pairwise((features, *spec.dense.hidden)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    last = spec.dense.hidden[-1] if spec.dense.hidden else features
    return nn.Sequential(*layers, nn.Linear(last, classes))
