"""Tuned blocks: copies of originals with weights of their own, for training that must leave the originals as they are.

In the manifest they are shrunk blocks that keep all channels: readers before format 1.5 refuse kinds that they do not
know (docs/adr/0051). Later ones would take a kind of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from packager.supernet.blocks.trainable import AddedBlocks, TrainableBlock


def tuned_blocks(originals: Sequence[TrainableBlock], *, count: int) -> AddedBlocks:
    """A block ``c<start>`` for each of the last ``count`` originals, a copy of it. Stem and head may be among them."""
    chosen = originals[max(0, len(originals) - count) :] if count else ()
    return AddedBlocks(
        tuple(
            replace(
                block, id=f"c{block.start}", kind="shrunk", module=copy.deepcopy(block.module), copied_from=block.id
            )
            for block in chosen
        )
    )
