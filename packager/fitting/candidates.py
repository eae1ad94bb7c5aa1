"""Candidate initialisations of an added block: copies, recalibrated copies, and closed-form fits."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.fitting.features import BATCH
from packager.fitting.last_map import last_map
from packager.fitting.refit import refitted
from packager.supernet.blocks.merged import merged_candidates
from packager.supernet.blocks.trainable import TrainableBlock, averaging, count_macs, norms

_MORE_MACS = 1.05  # relative to the copy: a candidate with more MACs would be a different block
COPY, WITH_STATISTICS, FITTED = "copy", "copy with its own statistics", "last map fitted"
_PROBED = 4  # samples for finding the last linear map


@dataclass(frozen=True)
class Candidate:
    """A candidate initialisation. ``source``: index of the copy that it derives from; ``how``: its description."""

    block: TrainableBlock
    source: int
    how: str


def sources(
    block: TrainableBlock, originals: Sequence[TrainableBlock], tensors: Sequence[TensorSpec]
) -> list[TrainableBlock]:
    """The block itself, and of a copy of one of several replaced blocks the copies of the others that have no
    more MACs."""
    if block.copied_from is None or block.end - block.start == 1:
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
    """Each copy as it is, and fitted from ``features`` [count, *start] to ``target`` [count, *end].

    Batch-norm is recalibrated on ``features`` before fitting, since training normalises by batch statistics and the fit
    must hold then too. A block without a last linear map is only recalibrated, if it has batch-norm.
    """
    for number, block in enumerate(copies):
        yield Candidate(block, number, COPY)
        has_norms = bool(norms(block.module))
        module = with_statistics(block.module, features) if has_norms else block.module
        found = last_map(module, features[:_PROBED])
        made = found and refitted(module, found, features, target, seed=seed)
        if made is not None:
            yield Candidate(replace(block, module=made), number, FITTED)
        elif has_norms:
            yield Candidate(replace(block, module=module), number, WITH_STATISTICS)


def with_statistics(module: nn.Module, features: torch.Tensor) -> nn.Module:
    """A copy with batch-norm statistics averaged over batches of ``features``."""
    made = copy.deepcopy(module).eval()
    with averaging(norms(made)), torch.no_grad():
        for batch in features.split(BATCH):
            made(batch)
    return made
