"""Candidate initialisations of an added block: copies, recalibrated copies, and closed-form fits."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.fitting.before_norm import Aim
from packager.fitting.channels import with_best_channels
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
    copies: Sequence[TrainableBlock], original: nn.Module, features: torch.Tensor, aim: Aim, *, seed: int
) -> Iterator[Candidate]:
    """Each copy as it is, and fitted from ``features`` [count, *start] to ``aim``.

    ``original``: the original that starts where the block does. A narrowed block is fitted with those of its channels
    that move the output most on ``features``. Batch-norm is recalibrated on them before fitting, since training
    normalises by batch statistics and the fit must hold then too. A block without a last linear map is only
    recalibrated, if it has batch-norm.
    """
    for number, block in enumerate(copies):
        yield Candidate(block, number, COPY)
        has_norms = bool(norms(block.module))
        module = with_statistics(block.module, features) if has_norms else block.module
        module = with_best_channels(block, original, features, aim.counted) or module
        made = _fitted(module, features, aim, seed=seed)
        if made is not None:
            yield Candidate(replace(block, module=made), number, FITTED)
        elif has_norms:
            yield Candidate(replace(block, module=module), number, WITH_STATISTICS)


def _fitted(module: nn.Module, features: torch.Tensor, aim: Aim, *, seed: int) -> nn.Module | None:
    """A copy whose last linear map is fitted, that in front of its last layer norm where ``aim`` has one."""
    if aim.norm is None:
        found = last_map(module, features[:_PROBED])
        return found and refitted(module, found, features, aim.values, seed=seed)
    stripped = aim.stripped(module, features)
    found = stripped and last_map(stripped, features[:_PROBED])
    if stripped is None or found is None:
        return None
    made = refitted(stripped, found, features, aim.values, seed=seed, counted=aim.counted)
    return made and made.get_submodule("block")


def with_statistics(module: nn.Module, features: torch.Tensor) -> nn.Module:
    """A copy with batch-norm statistics averaged over batches of ``features``."""
    made = copy.deepcopy(module).eval()
    with averaging(norms(made)), torch.no_grad():
        for batch in features.split(BATCH):
            made(batch)
    return made
