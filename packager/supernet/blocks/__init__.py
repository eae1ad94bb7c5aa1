"""Blocks of the supernet besides the original ones: one module per kind of added block, and a line in ``BUILDERS``.

A builder turns the originals into blocks of its kind and into notes on those that could not be made. A kind that skips,
has no weights or spans a fixed number of originals says so in ``device_sdk.supernet.blocks.BLOCK_KINDS``.
"""

from __future__ import annotations

from collections.abc import Callable

from packager.supernet.blocks.identity import identity_blocks
from packager.supernet.blocks.merged import merged_blocks
from packager.supernet.blocks.originals import Originals
from packager.supernet.blocks.shrunk import shrunk_blocks
from packager.supernet.blocks.streams import copied_blocks
from packager.supernet.blocks.trainable import AddedBlocks, tuned_blocks

BUILDERS: dict[str, Callable[[Originals], AddedBlocks]] = {
    "merged": lambda of: merged_blocks(
        of.inner, of.traced.tensors, max_span=of.max_span, tiled=of.tiled, taps=of.traced.taps, several=of.streams
    ),
    "copied": lambda of: copied_blocks(
        of.inner, of.traced.cuts, max_span=of.max_span, tiled=of.tiled, taps=of.traced.taps
    ),
    "shrunk": lambda of: shrunk_blocks(of.single, of.traced.tensors, rates=of.shrink_rates),
    "identity": lambda of: identity_blocks(
        of.inner, of.traced.cuts, max_span=of.max_span if of.identity else 0, taps=of.traced.taps
    ),
    "tuned": lambda of: tuned_blocks(of.blocks, count=of.copied),
}
