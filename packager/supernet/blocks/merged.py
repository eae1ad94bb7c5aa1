"""Merged blocks: one block in place of several (AdaptiveNet §4.1)."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.supernet.blocks.trainable import AddedBlocks, TrainableBlock, count_macs, fits_shapes, jumps
from packager.tracing.traced_model import parameter_count


def merged_blocks(
    originals: Sequence[TrainableBlock],
    tensors: Sequence[TensorSpec],
    *,
    max_span: int,
    tiled: bool = False,
    taps: Collection[int] = (),
    several: Collection[int] = (),
) -> AddedBlocks:
    """A merged block for every span of 2 to ``max_span`` neighbouring ``originals``; a note names spans without one.

    Args:
        tiled: only spans that begin at the first, the ``max_span + 1``st, … original. Far fewer blocks share the
            training then, and the cheapest path is the same if all spans of ``max_span`` can be merged.
        taps: cut points that no block may jump over.
        several: cut points of several tensors, where no merged block starts or ends.
    """
    blocks: list[TrainableBlock] = []
    unmerged: list[str] = []
    for first in range(0, len(originals), max_span if tiled else 1):
        for count in range(2, min(max_span, len(originals) - first) + 1):
            replaced = originals[first : first + count]
            if jumps(replaced[0].start, replaced[-1].end, taps):
                break
            if replaced[0].start in several or replaced[-1].end in several:
                continue
            block = _merged(replaced, tensors)
            if block is not None:
                blocks.append(block)
            else:
                unmerged.append(f"{replaced[0].start} to {replaced[-1].end}")
    notes = (f"not merged, no replaced block fits their shapes: blocks {', '.join(unmerged)}",) if unmerged else ()
    return AddedBlocks(tuple(blocks), notes)


def _merged(replaced: Sequence[TrainableBlock], tensors: Sequence[TensorSpec]) -> TrainableBlock | None:
    """The first of ``merged_candidates``, None if there is none."""
    start, end = replaced[0].start, replaced[-1].end
    candidate = next(merged_candidates(replaced, tensors), None)
    if candidate is None:
        return None
    source, module = candidate
    return TrainableBlock(
        id=f"m{start}-{end}",
        start=start,
        end=end,
        kind="merged",
        module=module,
        macs=count_macs(module, tensors[start].shape),
        copied_from=source,
    )


def merged_candidates(
    replaced: Sequence[TrainableBlock], tensors: Sequence[TensorSpec]
) -> Iterator[tuple[str, nn.Module]]:
    """Every copy of a replaced block that fits the whole span, with the id of that block.

    Exact copies come first, then copies with projections, each in order of falling size. None has more parameters than
    the largest replaced block.
    """
    start, end = replaced[0].start, replaced[-1].end
    shape_in, shape_out = tensors[start].shape, tensors[end].shape
    limit = max(block.parameters for block in replaced)
    candidates: list[tuple[bool, int, str, nn.Module]] = []
    for block in replaced:
        core_in, core_out = tensors[block.start].shape, tensors[block.end].shape
        before = _projection(shape_in, core_in, positive=tensors[block.start].low >= 0)
        after = _projection(core_out, shape_out, positive=tensors[end].low >= 0)
        if before is None or after is None:
            continue
        core = copy.deepcopy(block.module)
        parts = [part for part in (before, core, after) if not isinstance(part, nn.Identity)]
        module = parts[0] if len(parts) == 1 else nn.Sequential(*parts)
        if parameter_count(module) <= limit:
            candidates.append((len(parts) == 1, parameter_count(module), block.id, module))
    for _, _, source, module in sorted(candidates, key=lambda candidate: candidate[:2], reverse=True):
        if fits_shapes(module, shape_in, shape_out):
            yield source, module


def _projection(source: tuple[int, ...], target: tuple[int, ...], *, positive: bool) -> nn.Module | None:
    """The cheapest module from one shape to the other; None if no strided 1×1 convolution fits."""
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
    """The stride that reduces ``extent`` positions to ``wanted``, or 0."""
    stride = -(-extent // wanted)
    return stride if -(-extent // stride) == wanted else 0
