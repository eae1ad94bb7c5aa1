"""What an added block can start as: copies, copies with the statistics of their place, and fits of both."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from device_sdk.supernet.blocks import TensorSpec
from packager.fitting.features import BATCH
from packager.fitting.last_map import last_map
from packager.fitting.refit import refitted
from packager.supernet.blocks.merged import merged_candidates
from packager.supernet.blocks.trainable import TrainableBlock, count_macs

_MORE_MACS = 1.05  # of the copy's: a candidate that costs more is another block, not another start
COPY, WITH_STATISTICS, FITTED = "copy", "copy with its own statistics", "last map fitted"
_PROBED = 4  # samples on which the last linear map is looked for


@dataclass(frozen=True)
class Candidate:
    """A block as it could start. ``source``: the number of the copy that it was made from; ``how``: in words."""

    block: TrainableBlock
    source: int
    how: str


def sources(
    block: TrainableBlock, originals: Sequence[TrainableBlock], tensors: Sequence[TensorSpec]
) -> list[TrainableBlock]:
    """The block as it is, and as the copy of every other block that it replaces and that costs no more."""
    if block.kind != "merged":
        return [block]
    made = [block]
    for source, module in merged_candidates(originals[block.start : block.end], tensors):
        macs = count_macs(module, tensors[block.start].shape)
        if source != block.copied_from and macs <= _MORE_MACS * block.macs:
            module.requires_grad_(True)
            made.append(replace(block, module=module, macs=macs, copied_from=source))
    return made


def candidates(
    copies: Sequence[TrainableBlock], features: torch.Tensor, target: torch.Tensor, *, seed: int
) -> Iterator[Candidate]:
    """Each copy as it is, and fitted: from ``features`` [count, *start] to ``target`` [count, *end].

    Its statistics are taken from ``features`` before, since training normalises by those of its batches: what is
    fitted has to hold then too. A block without a last linear map only gets the statistics, if it has any.
    """
    for number, block in enumerate(copies):
        yield Candidate(block, number, COPY)
        has_norms = any(True for _ in norms(block.module))
        module = with_statistics(block.module, features) if has_norms else block.module
        found = last_map(module, features[:_PROBED])
        made = found and refitted(module, found, features, target, seed=seed)
        if made is not None:
            yield Candidate(replace(block, module=made), number, FITTED)
        elif has_norms:
            yield Candidate(replace(block, module=module), number, WITH_STATISTICS)


def with_statistics(module: nn.Module, features: torch.Tensor) -> nn.Module:
    """A copy whose batch-norms have the mean of their statistics over ``features``, batch by batch."""
    made = copy.deepcopy(module).eval()
    momenta = {layer: layer.momentum for layer in norms(made)}
    for layer in momenta:
        layer.reset_running_stats()
        layer.momentum = None  # torch: the mean of all batches since
        layer.train()
    with torch.no_grad():
        for batch in features.split(BATCH):
            made(batch)
    for layer, momentum in momenta.items():
        layer.momentum = momentum
        layer.eval()
    return made


def norms(module: nn.Module) -> Iterator[_BatchNorm]:
    """The batch-norms that keep running statistics."""
    return (part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats)
