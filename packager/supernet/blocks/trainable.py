"""A block of the supernet in training: an edge of the graph with its torch module."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from device_sdk.supernet.blocks import ORIGINAL, Block, BlockKind, Rendition, TensorSpec, kind_named
from packager.supernet.blocks.narrowing import Narrowing
from packager.tracing.traced_model import Feature, parameter_count, tensors_of


@dataclass(frozen=True)
class TrainableBlock:
    """A block of the supernet with its torch module: [batch, *start shape] → [batch, *end shape].

    Several tensors of a cut point are separate arguments, or a tuple as the result. ``taps``: cut points whose tensors
    are arguments before those of the start; only a head has some. ``narrowings``: what a shrunk block lost, if known.
    """

    id: str
    start: int
    end: int
    kind: str
    module: nn.Module
    macs: int
    copied_from: str | None = None
    taps: tuple[int, ...] = ()
    narrowings: tuple[Narrowing, ...] = ()

    def run(self, features: Mapping[int, Feature]) -> Feature:
        """The block's output for the ``features`` by cut point."""
        return self.module(*tensors_of(features[position] for position in (*self.taps, self.start)))

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return parameter_count(self.module)

    @property
    def properties(self) -> BlockKind:
        """The properties of its kind."""
        return kind_named(self.kind)

    def described(self, renditions: Sequence[Rendition], *, distillation_error: float | None = None) -> Block:
        """The block as stored in the manifest."""
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
class AddedBlocks:
    """The added blocks of one kind, and notes on those that could not be made, with the reason."""

    blocks: tuple[TrainableBlock, ...]
    notes: tuple[str, ...] = ()


def original_block(
    module: nn.Module, index: int, cuts: Sequence[Sequence[TensorSpec]], *, taps: tuple[int, ...] = ()
) -> TrainableBlock:
    """The pretrained block from cut point ``index`` to the next; ``cuts``: the tensors at each."""
    read = [spec for position in (*taps, index) for spec in cuts[position]]
    macs = count_macs(module, *(spec.shape for spec in read), dtype=read[-1].dtype)
    return TrainableBlock(
        id=f"o{index}", start=index, end=index + 1, kind=ORIGINAL, module=module, macs=macs, taps=taps
    )


@contextlib.contextmanager
def evaluated(module: nn.Module) -> Iterator[None]:
    """Inside the context, ``module`` is in evaluation mode and gradients are off."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)


def norms(module: nn.Module) -> list[_BatchNorm]:
    """The batch-norms that keep running statistics."""
    return [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]


@contextlib.contextmanager
def averaging(layers: Iterable[_BatchNorm]) -> Iterator[None]:
    """Inside the context, the running statistics of ``layers`` are the means over all batches; afterwards they stay."""
    momenta = {layer: layer.momentum for layer in layers}
    for layer in momenta:
        layer.reset_running_stats()
        layer.momentum = None  # torch: the mean of all batches since
        layer.train()
    try:
        yield
    finally:
        for layer, momentum in momenta.items():
            layer.momentum = momentum
            layer.eval()


def count_macs(module: nn.Module, *shapes: tuple[int, ...], dtype: str = "float32") -> int:
    """Multiply-accumulate operations per sample (operators unknown to torch's counter count 0).

    ``shapes``: of the module's input tensors, without the batch axis.
    """
    device = next((one.device for one in (*module.parameters(), *module.buffers())), None)
    zeros = [torch.zeros(1, *shape, dtype=getattr(torch, dtype), device=device) for shape in shapes]
    with evaluated(module), FlopCounterMode(display=False) as counter:
        module(*zeros)
    return counter.get_total_flops() // 2


def fits_shapes(module: nn.Module, source: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """True if ``module`` maps [batch, *source] to [batch, *target], tried with batches of 1 and 3."""
    try:
        with evaluated(module):
            shapes = [tuple(module(torch.zeros(batch, *source)).shape) for batch in (1, 3)]
    except Exception:  # operators raise many kinds on shapes that do not fit
        return False
    return shapes == [(1, *target), (3, *target)]


def jumps(start: int, end: int, taps: Iterable[int]) -> bool:
    """True if a block from ``start`` to ``end`` would jump over one of the cut points ``taps``."""
    return any(start < tap < end for tap in taps)


def listed(starts: Iterable[int]) -> str:
    """Blocks by their start cut points, for a note: ``block 3``, ``blocks 1, 2, 5``."""
    numbers = sorted(starts)
    return f"block{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def tuned_blocks(originals: Sequence[TrainableBlock], *, count: int) -> AddedBlocks:
    """A block ``c<start>`` for each of the last ``count`` originals, a copy of it. Stem and head may be among them.

    In the manifest they are shrunk blocks that keep all channels: readers before format 1.5 refuse kinds that they do
    not know (docs/adr/0051). Later ones would take a kind of their own.
    """
    chosen = originals[max(0, len(originals) - count) :] if count else ()
    return AddedBlocks(
        tuple(
            replace(
                block, id=f"c{block.start}", kind="shrunk", module=copy.deepcopy(block.module), copied_from=block.id
            )
            for block in chosen
        )
    )
