"""Growing the block supernet: original blocks plus merged blocks that replace several (AdaptiveNet §4.1).

Exits are attached to the expansion by ``packager/exits.py``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from device_sdk.graph import Block, BlockKind, CutPoint, Exit, Golden, Rendition, Subnet, Supernet
from packager.tracing import TracedModel, parameter_count

TORCH = "torch"  # the runtime of the renditions that only exist while packaging


@dataclass(frozen=True)
class TrainableBlock:
    """A block of the growing supernet with its torch module: [batch, *start shape] → [batch, *end shape]."""

    id: str
    start: int
    end: int
    kind: BlockKind
    module: nn.Module
    macs: int
    copied_from: str | None = None

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return parameter_count(self.module)

    def described(self, renditions: Sequence[Rendition], *, distillation_error: float | None = None) -> Block:
        """The same block as the graph knows it."""
        return Block(
            id=self.id,
            start=self.start,
            end=self.end,
            kind=self.kind,
            parameters=self.parameters,
            macs=self.macs,
            renditions=tuple(renditions),
            distillation_error=distillation_error,
            copied_from=self.copied_from,
        )


@dataclass(frozen=True)
class TrainableExit:
    """An exit with its torch module: [batch, *shape of the cut point ``position``] → [batch, classes]."""

    id: str
    position: int
    branch: str
    module: nn.Module
    macs: int

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return parameter_count(self.module)

    def described(self, renditions: Sequence[Rendition], *, accuracy: float) -> Exit:
        """The same exit as the graph knows it; ``accuracy``: its share of right answers, 0 to 1."""
        return Exit(
            id=self.id,
            position=self.position,
            branch=self.branch,
            parameters=self.parameters,
            macs=self.macs,
            renditions=tuple(renditions),
            accuracy=accuracy,
        )


@dataclass(frozen=True)
class Expansion:
    """The supernet as torch modules. ``notes`` say what could not be added and why."""

    traced: TracedModel
    blocks: tuple[TrainableBlock, ...]
    notes: tuple[str, ...]
    exits: tuple[TrainableExit, ...] = ()

    @property
    def originals(self) -> tuple[TrainableBlock, ...]:
        """The pretrained blocks, in order; their weights never change."""
        return tuple(block for block in self.blocks if block.kind == "original")

    @property
    def added(self) -> tuple[TrainableBlock, ...]:
        """The blocks that are trained."""
        return tuple(block for block in self.blocks if block.kind != "original")

    @property
    def cut_points(self) -> tuple[CutPoint, ...]:
        """The cut points 0 to N."""
        return tuple(CutPoint(index, (spec,)) for index, spec in enumerate(self.traced.tensors))

    def supernet(self) -> Supernet:
        """The graph over the torch modules, to sample paths from while training."""
        rendition = Rendition("fp32", TORCH, blob="", size_bytes=0, golden=Golden((), 0.0))
        return Supernet(self.cut_points, [block.described([rendition]) for block in self.blocks])

    def run(self, subnet: Subnet, batch: torch.Tensor) -> torch.Tensor:
        """The output of a path for ``batch`` [batch, *input]."""
        return self.features_along(subnet, batch)[len(self.traced.blocks)]

    def features_along(self, subnet: Subnet, batch: torch.Tensor) -> dict[int, torch.Tensor]:
        """What a path computes for ``batch`` [batch, *input] at each cut point that it passes, 0 and N included."""
        blocks = {block.id: block for block in self.blocks}
        features = {0: batch}
        for block_id in subnet.block_ids:
            block = blocks[block_id]
            features[block.end] = block.module(features[block.start])
        return features


def expand(traced: TracedModel, *, max_span: int) -> Expansion:
    """Add a merged block for every span of 2 to ``max_span`` originals between the first and the last block.

    The first block (stem) and the last one (head) stay as they are: they turn the input into features and features
    into answers, which nothing else in the model does.
    """
    originals = [_original(traced, index) for index in range(len(traced.blocks))]
    merged: list[TrainableBlock] = []
    notes: list[str] = []
    last = len(originals) - 1
    for start in range(1, last):
        for end in range(start + 2, min(start + max_span, last) + 1):
            block = _merged(traced, originals[start:end])
            if block is not None:
                merged.append(block)
            else:
                notes.append(f"blocks {start} to {end} cannot be merged: no replaced block fits their shapes")
    if not merged and not notes:
        notes.append(f"nothing to merge: {max(last - 1, 0)} blocks between stem and head, spans up to {max_span}")
    for block in originals:
        block.module.requires_grad_(False).eval()
    for block in merged:
        block.module.requires_grad_(True)
    return Expansion(traced, tuple(originals + merged), tuple(notes))


def _original(traced: TracedModel, index: int) -> TrainableBlock:
    module = traced.blocks[index]
    return TrainableBlock(
        id=f"o{index}",
        start=index,
        end=index + 1,
        kind="original",
        module=module,
        macs=count_macs(module, traced.tensors[index].shape),
    )


def _merged(traced: TracedModel, replaced: Sequence[TrainableBlock]) -> TrainableBlock | None:
    """A copy of the one replaced block that has the span's shapes, else a projected copy, else None.

    Never more parameters than the largest replaced block; starts from the copied block's weights.
    """
    start, end = replaced[0].start, replaced[-1].end
    shape_in, shape_out = traced.tensors[start].shape, traced.tensors[end].shape
    limit = max(block.parameters for block in replaced)
    candidates: list[tuple[bool, int, TrainableBlock, nn.Module]] = []
    for block in replaced:
        core_in, core_out = traced.tensors[block.start].shape, traced.tensors[block.end].shape
        before = _projection(shape_in, core_in, positive=traced.tensors[block.start].low >= 0)
        after = _projection(core_out, shape_out, positive=traced.tensors[end].low >= 0)
        if before is None or after is None:
            continue
        core = copy.deepcopy(block.module)
        parts = [part for part in (before, core, after) if not isinstance(part, nn.Identity)]
        module = parts[0] if len(parts) == 1 else nn.Sequential(*parts)
        if parameter_count(module) <= limit:
            candidates.append((len(parts) == 1, parameter_count(module), block, module))
    if not candidates:
        return None
    _, _, source, module = max(candidates, key=lambda candidate: candidate[:2])
    return TrainableBlock(
        id=f"m{start}-{end}",
        start=start,
        end=end,
        kind="merged",
        module=module,
        macs=count_macs(module, shape_in),
        copied_from=source.id,
    )


def _projection(source: tuple[int, ...], target: tuple[int, ...], *, positive: bool) -> nn.Module | None:
    """The cheapest module from one shape to the other; None where a strided 1×1 convolution cannot do it."""
    if source == target:
        return nn.Identity()
    if len(source) != 3 or len(target) != 3:
        return None
    strides = [_stride(a, b) for a, b in zip(source[1:], target[1:], strict=True)]
    if 0 in strides:
        return None
    convolution = nn.Conv2d(source[0], target[0], 1, stride=tuple(strides), bias=False)
    generator = torch.Generator().manual_seed(source[0] * 65537 + target[0])
    with torch.no_grad():
        convolution.weight.normal_(0.0, (2.0 / source[0]) ** 0.5, generator=generator)
    layers: list[nn.Module] = [convolution, nn.BatchNorm2d(target[0])]
    return nn.Sequential(*layers, nn.ReLU()) if positive else nn.Sequential(*layers)


def _stride(extent: int, wanted: int) -> int:
    """The stride that turns ``extent`` positions into ``wanted``, or 0."""
    stride = -(-extent // wanted)
    return stride if -(-extent // stride) == wanted else 0


def count_macs(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiply-accumulate operations for one sample of ``shape`` (operators unknown to torch's counter count 0)."""
    training = module.training
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module.eval()(torch.zeros(1, *shape))
    module.train(training)
    return counter.get_total_flops() // 2
