"""The two structures of ``branches = "two"``, and the cut points at which exits are attached (docs/adr/0010).

A structure is a function and a line in ``PLAIN``. It maps [batch, *shape of the cut point] to logits [batch, classes];
shapes: see ``specs.layout_of``. Unlike those of the grid, these branches are trained in the phases of the blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import nn

from packager.branch_zoo.modules import Stem
from packager.branch_zoo.specs import Shape, layout_of
from packager.supernet.blocks.streams import several
from packager.supernet.blocks.trainable import count_macs
from packager.supernet.expansion import Expansion, TrainableExit

_MOST_MACS = 0.1  # of the original path's, for one branch
_WIDEST = 256  # maximum channels or hidden units of a branch
_SMALL_SIDE = 8  # up to this side the first convolution keeps the resolution
_LEAST_LEFT = 0.05  # minimum share of the MACs behind an exit: with less, it saves nothing


def attach_exits(expansion: Expansion, *, count: int) -> Expansion:
    """The expansion with untrained exits at up to ``count`` inner cut points, one per plain structure that fits.

    If none fits although ``count`` is above 0, a note is added.
    """
    macs = [block.macs for block in expansion.originals]
    classes, exits = expansion.traced.tensors[-1].size, []
    for position in exit_positions(macs, count=count, left_out=several(expansion.traced.cuts)):
        spec = expansion.traced.tensors[position]
        for name in PLAIN if spec.dtype == "float32" else ():
            module = build_plain(name, spec.shape, classes=classes, whole_macs=sum(macs), seed=position)
            if module is not None:
                exits.append(
                    TrainableExit(f"x{position}-{name}", position, name, module, count_macs(module, spec.shape))
                )
    notes = ("no exits: no branch structure fits any inner cut point",) if count and not exits else ()
    return replace(expansion, exits=tuple(exits), notes=expansion.notes + notes)


def without_untrained_exits(expansion: Expansion, *, steps: int) -> Expansion:
    """The expansion without exits if they had no training step."""
    if steps or not expansion.exits:
        return expansion
    return replace(expansion, exits=(), notes=(*expansion.notes, "no exits: the training had no step for them"))


def exit_positions(macs: Sequence[int], *, count: int, left_out: Collection[int] = ()) -> tuple[int, ...]:
    """Up to ``count`` cut points that divide the original path's MACs evenly, in order.

    For each of the shares 1/(count + 1), 2/(count + 1), … the nearest cut point by MACs that is not chosen yet.
    Excluded: the input, the output, ``left_out``, and cut points with almost no MACs behind them.

    Args:
        macs: of each original block.
    """
    whole = sum(macs)
    done = [0, *itertools.accumulate(macs)]
    candidates = [k for k in range(1, len(macs)) if k not in left_out and whole - done[k] > _LEAST_LEFT * whole]
    chosen: list[int] = []
    for number in range(1, min(count, len(candidates)) + 1):
        wanted = whole * number / (count + 1)
        free = [k for k in candidates if k not in chosen]
        chosen.append(min(free, key=lambda k: abs(done[k] - wanted)))
    return tuple(sorted(chosen))


def build_plain(name: str, shape: Shape, *, classes: int, whole_macs: int, seed: int) -> nn.Module | None:
    """A branch of structure ``name`` with weights initialised from ``seed``; None if the shape is not supported.

    It is the first size whose MACs are at most a tenth of ``whole_macs``, those of the original path.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in PLAIN[name](shape, classes):
            if count_macs(module, shape) <= _MOST_MACS * whole_macs:
                return module
    return None


def _pooled(shape: Shape, classes: int) -> Iterator[nn.Module]:
    """The mean over all positions, then one linear layer: negligible MACs."""
    if len(shape) == 3:
        order, width = _channels_first(shape)
        yield nn.Sequential(*order, _Mean(2, 3), nn.BatchNorm1d(width), nn.Linear(width, classes))
    elif len(shape) == 2:
        yield nn.Sequential(_OverTokens(), nn.BatchNorm1d(shape[1]), nn.Linear(shape[1], classes))
    elif len(shape) == 1:
        yield nn.Sequential(nn.BatchNorm1d(shape[0]), nn.Linear(shape[0], classes))


def _conv(shape: Shape, classes: int) -> Iterator[nn.Module]:
    """Images: depthwise-separable 3×3 convolutions, their mean, one linear layer.

    From a small image two, the second at half the resolution; from a large one three, the first two halving it.
    Tokens and vectors: one hidden layer for each token, their mean, one linear layer. Padding, which is zero, counts in
    no mean over tokens (docs/adr/0091-kinds-of-samples.md).
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
        hidden = min(2 * shape[-1], _WIDEST)
        layers = [nn.LayerNorm(shape[-1]), nn.Linear(shape[-1], hidden), nn.ReLU()]
        before: list[nn.Module] = [_OverTokens(*layers)] if len(shape) == 2 else layers
        yield nn.Sequential(*before, nn.Linear(hidden, classes))


PLAIN: dict[str, Callable[[Shape, int], Iterator[nn.Module]]] = {"pooled": _pooled, "conv": _conv}


class _OverTokens(nn.Sequential):
    """The mean of what its layers make of each token [batch, tokens, width], without tokens that are zero."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        there = (features.abs().amax(-1, keepdim=True) > 0).to(features.dtype)
        return (super().forward(features) * there).sum(1) / there.sum(1).clamp(min=1)


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
    """A module that moves an image's channels to the front if necessary, and their number."""
    layout = layout_of(shape)
    assert layout is not None, shape
    return [Stem(True, (1, 1))] if layout.channels_last else [], layout.channels
