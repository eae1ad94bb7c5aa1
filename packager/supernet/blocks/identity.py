"""Identity blocks: a skip over blocks whose input and output shapes are equal. No parameters, no MACs.

Residual networks often tolerate the removal of a block. Useless skips are dropped by the fit before the training
(``packager/fitting``). In models with cut points of several tensors, which are not fitted, they are dropped after it
(``packager/training/range_accuracy.py``).
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

    Spans that consecutive shorter skips cover are left out, since those paths exist already; so are spans over one of
    the cut points ``taps``.
    """
    blocks: list[TrainableBlock] = []
    skipped: dict[int, set[int]] = {}  # start -> ends of its skips
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
    notes = () if blocks or not max_span else ("no identity blocks: no span has equal input and output shapes",)
    return AddedBlocks(tuple(sorted(blocks, key=lambda block: (block.start, block.end))), notes)


def _reaches(skipped: dict[int, set[int]], start: int, end: int) -> bool:
    """True if a chain of skips leads from cut point ``start`` to ``end``."""
    reached = {start}
    for position in range(start, end):
        if position in reached:
            reached |= skipped.get(position, set())
    return end in reached
