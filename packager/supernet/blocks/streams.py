"""Blocks between cut points of several tensors: copies of replaced blocks, and skips (docs/adr/0028).

There are no projections and no shrunk blocks: a replacement must have the same input and output tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.supernet.blocks.trainable import AddedBlocks, TrainableBlock, count_macs, jumps

Cuts = Sequence[Sequence[TensorSpec]]  # the tensors at each cut point


class PassAll(nn.Module):
    """The identity on any number of tensors."""

    def forward(self, *features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Tensors [batch, …] → the same."""
        return features


def several(cuts: Cuts) -> frozenset[int]:
    """The cut points that have more than one tensor."""
    return frozenset(index for index, specs in enumerate(cuts) if len(specs) > 1)


def extents(specs: Sequence[TensorSpec]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Shape and type of each tensor at a cut point."""
    return tuple((spec.shape, spec.dtype) for spec in specs)


def copied_blocks(
    originals: Sequence[TrainableBlock], cuts: Cuts, *, max_span: int, tiled: bool = False, taps: Collection[int] = ()
) -> AddedBlocks:
    """A merged block for every span of 2 to ``max_span`` neighbours with several tensors at its start or end.

    It is a copy of the largest replaced block with the span's input and output tensors, if there is one. ``tiled`` and
    ``taps``: as in ``merged_blocks``.
    """
    streams = several(cuts)
    blocks: list[TrainableBlock] = []
    for first in range(0, len(originals), max_span if tiled else 1):
        for count in range(2, min(max_span, len(originals) - first) + 1):
            replaced = originals[first : first + count]
            start, end = replaced[0].start, replaced[-1].end
            if jumps(start, end, taps):
                break
            if streams & {start, end}:
                blocks += _copies(replaced, cuts)
    return AddedBlocks(tuple(blocks))


def _copies(replaced: Sequence[TrainableBlock], cuts: Cuts) -> list[TrainableBlock]:
    """The merged block for the span ``replaced``, or an empty list."""
    start, end = replaced[0].start, replaced[-1].end
    wanted = extents(cuts[start]), extents(cuts[end])
    fitting = [block for block in replaced if (extents(cuts[block.start]), extents(cuts[block.end])) == wanted]
    if not fitting:
        return []
    source = max(fitting, key=lambda block: block.parameters)
    module = copy.deepcopy(source.module)
    macs = count_macs(module, *(spec.shape for spec in cuts[start]))
    merged = TrainableBlock(
        id=f"m{start}-{end}", start=start, end=end, kind="merged", module=module, macs=macs, copied_from=source.id
    )
    return [merged]
