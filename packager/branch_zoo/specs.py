"""The branch zoo as a grid of specs: 15 convolution parts times 7 fully connected parts (MEEdge §3.2.1, §4.5).

The paper gives the numbers, not the list. Its convolutions are depthwise, depthwise separable, spatially separable and
dilated, with kernels 3, 5 and 7; with none that makes 13, and "varying numbers of layers" makes 15. Its fully connected
parts vary the number of input features and have 1 to 3 layers. A spec is plain data: MACs and parameters follow from
it and the shape of the cut point, without torch.

A branch is: average pooling of large maps, convolution part, average pooling to a grid, fully connected part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

Shape = tuple[int, ...]

POOLED_ABOVE = 16  # a side is pooled by the largest factor that leaves so many positions
MOST_CHANNELS = 256  # of a convolution's output
DILATION = 2
_HALVED_ABOVE = 4  # a side of more positions is halved by every layer
_BYTES = 4  # of a parameter


@dataclass(frozen=True)
class Filter:
    """A depthwise filter: its kernel, stride and dilation along each axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: int = 1


def _square(kernel: int, stride: tuple[int, ...]) -> list[Filter]:
    return [Filter((kernel,) * len(stride), stride)]


def _spatial(kernel: int, stride: tuple[int, ...]) -> list[Filter]:
    """k×1, then 1×k. On tokens, which have one axis, both lie along it."""
    if len(stride) == 1:
        return [Filter((kernel,), stride), Filter((kernel,), (1,))]
    return [Filter((kernel, 1), (stride[0], 1)), Filter((1, kernel), (1, stride[1]))]


def _dilated(kernel: int, stride: tuple[int, ...]) -> list[Filter]:
    return [Filter((kernel,) * len(stride), stride, DILATION)]


# by kind, the depthwise filters of a layer for a kernel size and the layer's stride
CONVOLUTION_KINDS: dict[str, Callable[[int, tuple[int, ...]], list[Filter]]] = {
    "depthwise": _square,
    "separable": _square,
    "spatial": _spatial,
    "dilated": _dilated,
}


@dataclass(frozen=True)
class ConvPart:
    """``layers`` convolutions of one of ``CONVOLUTION_KINDS``, each followed by batch-norm and a rectifier.

    All kinds but ``depthwise`` are followed by a 1×1 convolution that doubles the channels, up to ``MOST_CHANNELS``.
    """

    kind: str = "none"
    kernel: int = 1
    layers: int = 0

    @property
    def name(self) -> str:
        """For example ``separable3x2``: kernel 3, two layers."""
        return self.kind + (f"{self.kernel}" if self.layers else "") + (f"x{self.layers}" if self.layers > 1 else "")

    def channels(self, inputs: int) -> tuple[int, ...]:
        """Channels before the first layer and after each."""
        found = [inputs]
        for _ in range(self.layers):
            found.append(found[-1] if self.kind == "depthwise" else min(2 * found[-1], MOST_CHANNELS))
        return tuple(found)


@dataclass(frozen=True)
class DensePart:
    """Average pooling to ``grid`` cells per axis, then fully connected layers: ``hidden`` ones and the last."""

    grid: int
    hidden: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """For example ``p2h512h256``: a 2×2 grid, two hidden layers."""
        return f"p{self.grid}" + "".join(f"h{width}" for width in self.hidden)


@dataclass(frozen=True)
class BranchSpec:
    """One structure of the zoo. ``merged``: its hidden layers are those of the self-merged sibling (§3.5.1)."""

    conv: ConvPart
    dense: DensePart
    merged: bool = False

    @property
    def name(self) -> str:
        """The branch's name in the manifest; ``parse`` reads it."""
        return f"{self.conv.name}-{self.dense.name}" + (_MERGED if self.merged else "")

    def exit_id(self, position: int) -> str:
        """The exit's id at a cut point: the same in every run."""
        return f"x{position}-{self.name}"


CONVOLUTIONS: tuple[ConvPart, ...] = (
    ConvPart(),
    *(ConvPart(kind, k, 1) for kind in CONVOLUTION_KINDS for k in (3, 5, 7)),
    ConvPart("separable", 3, 2),
    ConvPart("separable", 5, 2),
)
DENSE: tuple[DensePart, ...] = (
    *(DensePart(grid) for grid in (1, 2, 4)),
    *(DensePart(grid, (256,)) for grid in (1, 2, 4)),
    DensePart(2, (512, 256)),
)
GRID: tuple[BranchSpec, ...] = tuple(BranchSpec(conv, dense) for conv in CONVOLUTIONS for dense in DENSE)
_MERGED = "-merged"
_BY_NAME = {spec.name: spec for spec in GRID}


def parse(name: str) -> BranchSpec | None:
    """The spec of the grid that has this name, or its merged sibling; None for another name."""
    whole = _BY_NAME.get(name.removesuffix(_MERGED))
    return whole if whole is None or not name.endswith(_MERGED) else replace(whole, merged=True)


@dataclass(frozen=True)
class Layout:
    """Layout of a cut point's tensor: ``channels`` maps over the ``sides``; no side for vectors, one for tokens."""

    channels: int
    sides: tuple[int, ...]
    channels_last: bool = False

    @property
    def pooling(self) -> tuple[int, ...]:
        """The factor by which each side is pooled before the branch."""
        return tuple(max(1, side // POOLED_ABOVE) for side in self.sides)

    @property
    def pooled(self) -> tuple[int, ...]:
        """The sides after that."""
        return tuple(side // factor for side, factor in zip(self.sides, self.pooling, strict=True))


def layout_of(shape: Shape) -> Layout | None:
    """The layout of [channels, h, w], [h, w, channels] (equal sides, other channels), [tokens, width] or [width]."""
    if len(shape) == 3 and shape[0] == shape[1] != shape[2]:
        return Layout(shape[2], shape[:2], channels_last=True)
    if len(shape) == 3:
        return Layout(shape[0], shape[1:])
    if len(shape) == 2:
        return Layout(shape[1], shape[:1], channels_last=True)
    return Layout(shape[0], ()) if len(shape) == 1 else None


def strides(part: ConvPart, sides: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The stride of each layer along each axis."""
    found = []
    for _ in range(part.layers):
        found.append(tuple(2 if side > _HALVED_ABOVE else 1 for side in sides))
        sides = strided(sides, found[-1])
    return found


def strided(sides: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """The sides after a convolution that pads by half its reach."""
    return tuple(math.ceil(side / step) for side, step in zip(sides, stride, strict=True))


def specs_for(shape: Shape, grid: tuple[BranchSpec, ...] = GRID) -> tuple[BranchSpec, ...]:
    """The specs that can be built for a cut point of this shape; of those that come out equal, the first.

    Vectors have no convolution. On a side of fewer positions than a grid has cells, each position is a cell.
    """
    layout = layout_of(shape)
    found: dict[object, BranchSpec] = {}
    for spec in grid if layout is not None else ():
        assert layout is not None
        if spec.conv.layers and not layout.sides:
            continue
        found.setdefault((spec.conv, cells(spec, layout), spec.dense.hidden), spec)
    return tuple(found.values())


def cells(spec: BranchSpec, layout: Layout) -> tuple[int, ...]:
    """Cells along each axis before the fully connected part."""
    sides = layout.pooled
    for stride in strides(spec.conv, sides):
        sides = strided(sides, stride)
    return tuple(min(spec.dense.grid, side) for side in sides)


@dataclass(frozen=True)
class BranchCost:
    """Cost of a branch: MACs per sample, and parameters in float32."""

    macs: int
    parameters: int

    @property
    def nbytes(self) -> int:
        """Bytes of the parameters."""
        return _BYTES * self.parameters


def branch_cost(spec: BranchSpec, shape: Shape, *, classes: int) -> BranchCost:
    """The cost of ``spec`` at a cut point of this shape, which ``specs_for`` lists."""
    layout = layout_of(shape)
    assert layout is not None, shape
    macs = parameters = 0
    sides, channels = layout.pooled, spec.conv.channels(layout.channels)
    for (inputs, outputs), stride in zip(pairwise(channels), strides(spec.conv, sides), strict=True):
        for one in CONVOLUTION_KINDS[spec.conv.kind](spec.conv.kernel, stride):
            sides, taps = strided(sides, one.stride), math.prod(one.kernel)
            macs += inputs * taps * math.prod(sides)
            parameters += inputs * taps
        parameters += 2 * inputs
        if spec.conv.kind != "depthwise":
            macs += inputs * outputs * math.prod(sides)
            parameters += inputs * outputs + 2 * outputs
    features = channels[-1] * math.prod(cells(spec, layout))
    parameters += 2 * features if not spec.conv.layers else 0
    for inputs, outputs in pairwise((features, *spec.dense.hidden, classes)):
        macs, parameters = macs + inputs * outputs, parameters + (inputs + 1) * outputs
    return BranchCost(macs, parameters)
