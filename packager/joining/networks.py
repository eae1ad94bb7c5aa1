"""A pretrained network as its original blocks: features at every cut point, and answers from any of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from device_sdk.supernet.blocks import TensorSpec
from packager.joining.maps import Shape, extents
from packager.supernet.blocks.trainable import TrainableBlock
from packager.tracing.traced_model import Feature, tensors_of

Place = tuple[int, int]  # network and its own cut point

_WIDEST = 2  # channels of a cut point, times the least at any with maps of its extents
_BATCH = 8


@dataclass(frozen=True)
class CutNetwork:
    """A network's original blocks, its cut points' tensors, and the shapes of these at each further input size."""

    blocks: tuple[TrainableBlock, ...]
    cuts: tuple[tuple[TensorSpec, ...], ...]
    sizes: tuple[tuple[Shape, ...], ...] = ()

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """The cut points at which an added map may start or end: those with one tensor of floats, not of many channels.

        Where a block widens its features, a map from there costs most and joins no better than one beside it.
        """
        cuts = [cut for cut in range(1, len(self.cuts) - 1) if len(self.cuts[cut]) == 1]
        shapes = {cut: self.cuts[cut][0].shape for cut in cuts if self.cuts[cut][0].dtype == "float32"}
        least: dict[Shape, int] = {}
        for shape in shapes.values():
            pixels, channels = extents(shape)
            least[pixels] = min(channels, least.get(pixels, channels))
        return tuple(
            cut
            for cut, (pixels, channels) in ((cut, extents(shape)) for cut, shape in shapes.items())
            if channels <= _WIDEST * least[pixels]
        )

    def shapes(self, cut: int) -> tuple[Shape, ...]:
        """The shape of the tensor at a cut point, at the own and then at each further input size."""
        return (self.cuts[cut][0].shape, *(shapes[cut] for shapes in self.sizes))

    @torch.no_grad()
    def features(self, images: torch.Tensor) -> Iterator[tuple[int, Feature]]:
        """Each cut point behind the input with its features, for ``images`` [n, *input]."""
        live: Feature = images
        for block in self.blocks:
            live = block.module(*tensors_of([live]))
            yield block.end, live

    @torch.no_grad()
    def after(self, block: TrainableBlock, features: torch.Tensor) -> torch.Tensor:
        """The features behind an original block, for those [n, *start] before it, in small batches."""
        found = []
        for some in features.split(_BATCH):
            found += tensors_of([block.module(*tensors_of([some]))])
        return torch.cat(found)

    def features_at(self, cut: int, images: torch.Tensor) -> torch.Tensor:
        """The features at one cut point, for ``images`` [n, *input]."""
        live = images
        for block in self.blocks[:cut]:
            live = self.after(block, live)
        return live

    def logits_from(self, cut: int, features: torch.Tensor) -> torch.Tensor:
        """Answers [n, classes] for the features at a cut point, differentiable."""
        live: Feature = features
        for block in self.blocks[cut:]:
            live = block.module(*tensors_of([live]))
        assert isinstance(live, torch.Tensor)
        return live

    @torch.no_grad()
    def answers_from(self, cut: int, features: torch.Tensor) -> torch.Tensor:
        """Class probabilities [n, classes] for the features at a cut point, in small batches."""
        return torch.cat([self.logits_from(cut, some).softmax(1) for some in features.split(_BATCH)])

    def depth(self, cut: int) -> float:
        """The share of the work that is done at a cut point."""
        return self.macs_until[cut] / max(self.macs_until[-1], 1)

    @cached_property
    def macs_until(self) -> tuple[int, ...]:
        """Multiply-accumulates up to each cut point."""
        done = [0]
        for block in self.blocks:
            done.append(done[-1] + block.macs)
        return tuple(done)
