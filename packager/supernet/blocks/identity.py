"""Identity blocks: a skip over blocks that end in the shape that they start from. No parameters, no work.

A residual network often bears losing a block; which skips are worth keeping is seen after the training
(``packager/fitting``; between cut points of several tensors ``packager/training/usefulness.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import nn

from packager.supernet.blocks.streams import Cuts, PassAll, extents
from packager.supernet.blocks.trainable import AddedBlocks, TrainableBlock, jumps


def identity_blocks(
    originals: Sequence[TrainableBlock], cuts: Cuts, *, max_span: int, taps: Collection[int] = ()
) -> AddedBlocks:
    """A block ``i<start>-<end>`` over every span of up to ``max_span`` originals with equal shapes at both ends.

    Left out are spans that shorter skips put together: the paths over them are there already, and those that jump over
    one of the cut points ``taps``.
    """
    blocks: list[TrainableBlock] = []
    skipped: dict[int, set[int]] = {}  # by cut point, those that skips from there lead to
    for count in range(1, max_span + 1):
        for first in range(len(originals) - count + 1):
            start, end = originals[first].start, originals[first + count - 1].end
            same = extents(cuts[start]) == extents(cuts[end])
            if not same or jumps(start, end, taps) or _reaches(skipped, start, end):
                continue
            skipped.setdefault(start, set()).add(end)
            module = nn.Identity() if len(cuts[start]) == 1 else PassAll()
            blocks.append(
                TrainableBlock(id=f"i{start}-{end}", start=start, end=end, kind="identity", module=module, macs=0)
            )
    notes = () if blocks or not max_span else ("no identity blocks: no span ends in the shape that it starts from",)
    return AddedBlocks(tuple(sorted(blocks, key=lambda block: (block.start, block.end))), notes)


def _reaches(skipped: dict[int, set[int]], start: int, end: int) -> bool:
    """Whether skips lead from one cut point to the other."""
    reached = {start}
    for position in range(start, end):
        if position in reached:
            reached |= skipped.get(position, set())
    return end in reached
