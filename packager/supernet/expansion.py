"""Growing the block supernet: original blocks plus blocks that replace one or several of them (AdaptiveNet §4.1).

The kinds of added blocks are in ``packager/supernet/blocks``; exits are attached by ``packager/branch_zoo/plain.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from device_sdk.supernet.blocks import ORIGINAL, CutPoint, Exit, Golden, Rendition, TensorSpec
from device_sdk.supernet.plan import Subnet
from device_sdk.supernet.supernet import Supernet
from packager.supernet.blocks import BUILDERS
from packager.supernet.blocks.heads import attentions
from packager.supernet.blocks.originals import Originals
from packager.supernet.blocks.trainable import TrainableBlock, count_macs
from packager.tracing.traced_model import Feature, TracedModel, parameter_count

__all__ = ["Expansion", "TrainableBlock", "TrainableExit", "count_macs", "expand", "shrink_rates_for"]

TORCH = "torch"  # the runtime of the renditions that only exist while packaging
_SMALL_MODEL = 10_000_000  # parameters; AdaptiveNet §7.2 shrinks MobileNetV2 (3.5 M), not ResNet-50 (25.6 M)
_SHRINK_RATES = (0.5, 0.25)


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
        """The exit as stored in the manifest; ``accuracy``: 0 to 1."""
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
    """The supernet as torch modules. ``notes``: what could not be added, with the reason."""

    traced: TracedModel
    blocks: tuple[TrainableBlock, ...]
    notes: tuple[str, ...]
    exits: tuple[TrainableExit, ...] = ()

    @property
    def originals(self) -> tuple[TrainableBlock, ...]:
        """The pretrained blocks, in order; their weights never change."""
        return tuple(block for block in self.blocks if block.kind == ORIGINAL)

    @property
    def added(self) -> tuple[TrainableBlock, ...]:
        """All blocks but the originals."""
        return tuple(block for block in self.blocks if block.kind != ORIGINAL)

    @property
    def trained(self) -> tuple[TrainableBlock, ...]:
        """The added blocks with weights."""
        return tuple(block for block in self.added if block.properties.weights)

    @property
    def cut_points(self) -> tuple[CutPoint, ...]:
        """The cut points 0 to N. A tap's tensor stays live at the later cut points up to the head that reads it."""
        *inner, last = self.traced.cuts
        tensors, taps = self.traced.tensors, self.traced.taps
        cuts = [
            CutPoint(index, (*specs, *(tensors[tap] for tap in taps if tap < index)), mandatory=index in taps)
            for index, specs in enumerate(inner)
        ]
        return (*cuts, CutPoint(len(cuts), last))

    def supernet(self) -> Supernet:
        """The graph over the torch modules, to sample paths from while training."""
        rendition = Rendition("fp32", TORCH, blob="", size_bytes=0, golden=Golden((), 0.0))
        return Supernet(self.cut_points, [block.described([rendition]) for block in self.blocks])

    def exit_tensor(self, exit_: TrainableExit) -> TensorSpec:
        """The output of an exit: ``exit_<id>``, shaped like the model's output."""
        return self.supernet().exit_tensor(exit_.described((), accuracy=0.0))

    def without(self, block_ids: Iterable[str]) -> Expansion:
        """The same without some of the added blocks."""
        left_out = set(block_ids)
        return replace(self, blocks=tuple(block for block in self.blocks if block.id not in left_out))

    def replacing(self, blocks: Mapping[str, TrainableBlock]) -> Expansion:
        """The same with other blocks in place of those of the same ids."""
        return replace(self, blocks=tuple(blocks.get(block.id, block) for block in self.blocks))

    def noting(self, *notes: str) -> Expansion:
        """The same with more notes."""
        return replace(self, notes=self.notes + notes)

    def run(self, subnet: Subnet, batch: torch.Tensor) -> torch.Tensor:
        """The output of a path for ``batch`` [batch, *input]."""
        answer = self.features_along(subnet, batch)[len(self.traced.blocks)]
        assert isinstance(answer, torch.Tensor)
        return answer

    def features_along(self, subnet: Subnet, batch: torch.Tensor) -> dict[int, Feature]:
        """Features of a path for ``batch`` [batch, *input] at each cut point that it passes, 0 and N included."""
        blocks = {block.id: block for block in self.blocks}
        features: dict[int, Feature] = {0: batch}
        for block_id in subnet.block_ids:
            block = blocks[block_id]
            features[block.end] = block.run(features)
        return features


def expand(
    traced: TracedModel,
    *,
    max_span: int,
    tiled: bool = False,
    shrink_rates: Sequence[float] = (),
    identity: bool = False,
    copied: int = 0,
) -> Expansion:
    """Add blocks between the first and the last original one.

    A merged block for every span of 2 to ``max_span`` originals (``tiled``: only spans starting at every
    ``max_span``th); a shrunk block for every original and each of ``shrink_rates``; with ``identity`` a skip over every
    span that keeps its shape; copies of the last ``copied`` originals.

    The first block (stem) and the last one (head) are replaced by copies alone: no other block maps input to features
    or features to answers. No block is added over a cut point that the head reads.
    """
    originals = Originals(traced, max_span, tiled, shrink_rates, identity, copied)
    kinds = [build(originals) for build in BUILDERS.values()]
    added = [block for kind in kinds for block in kind.blocks]
    notes = [note for kind in kinds for note in kind.notes]
    if not added and not notes:
        notes.append(f"nothing to merge: {len(originals.inner)} blocks between stem and head, spans up to {max_span}")
    for block in originals.blocks:
        block.module.requires_grad_(False).eval()
    for block in added:
        block.module.requires_grad_(True)
    return Expansion(traced, (*originals.blocks, *added), tuple(notes))


def shrink_rates_for(traced: TracedModel, chosen: Sequence[float] | str) -> Sequence[float]:
    """The rates that a recipe's ``shrink_rates`` mean: themselves, or those of AdaptiveNet §7.2 for some models.

    ``chosen``: rates; ``transformers``, whose losses a closed-form fit mends without training (docs/adr/0096); or
    ``auto``: for small models too.
    """
    if not isinstance(chosen, str):
        return chosen
    small = chosen == "auto" and sum(traced.parameters) < _SMALL_MODEL
    return _SHRINK_RATES if small or any(map(attentions, traced.blocks)) else ()
