"""The pretrained blocks, from which builders of added blocks start, and the recipe's choices for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from packager.supernet.blocks.streams import several
from packager.supernet.blocks.trainable import TrainableBlock, original_block
from packager.tracing.traced_model import TracedModel


@dataclass(frozen=True)
class Originals:
    """The original blocks of ``traced``. The other fields: see ``Recipe``."""

    traced: TracedModel
    max_span: int
    tiled: bool = False
    shrink_rates: Sequence[float] = ()
    identity: bool = False
    copied: int = 0

    @cached_property
    def blocks(self) -> list[TrainableBlock]:
        """All original blocks, in order."""
        return [
            original_block(module, index, self.traced.cuts, taps=self.traced.read_by(index)[:-1])
            for index, module in enumerate(self.traced.blocks)
        ]

    @property
    def inner(self) -> list[TrainableBlock]:
        """The ones between stem and head."""
        return self.blocks[1:-1]

    @property
    def streams(self) -> frozenset[int]:
        """The cut points of several tensors."""
        return several(self.traced.cuts)

    @property
    def single(self) -> list[TrainableBlock]:
        """The ones of ``inner`` with one tensor at either end."""
        return [block for block in self.inner if not self.streams & {block.start, block.end}]
