"""Batch-norm recalibration: statistics of the added blocks are recomputed after tuning, on sampled paths."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from device_sdk.supernet.plan import Subnet
from packager.supernet.expansion import Expansion
from packager.training.ranks import Ranks


def recalibrate(expansion: Expansion, batches: Iterable[tuple[Subnet, torch.Tensor]]) -> None:
    """Replace the running statistics of the added blocks by their means over ``batches``.

    During tuning they are moving averages over the last few paths through a block; recalibration averages over many.
    ``batches``: paths with their input [batch, *input]. Blocks on none of the paths keep their statistics.
    """
    modules = {block.id: block.module for block in expansion.trained}
    kept: dict[_BatchNorm, float | None] = {}
    try:
        for path, images in batches:
            for name in path.block_ids:
                for layer in _norms(modules[name]) if name in modules else ():
                    if layer not in kept:
                        kept[layer] = layer.momentum
                        layer.reset_running_stats()
                        layer.momentum = None  # torch: the mean of all batches since
                    layer.train()
            with torch.no_grad():
                expansion.run(path, images)
    finally:
        for layer, momentum in kept.items():
            layer.momentum = momentum
            layer.eval()


def average_statistics(modules: Iterable[nn.Module], ranks: Ranks) -> None:
    """Replace the running statistics, which each process computes on its share of the batches, by their mean over all.

    The statistics are linear in each batch's contribution, so the result does not depend on when or how often.
    """
    layers = dict.fromkeys(layer for module in modules for layer in _norms(module))
    pairs = [(layer.running_mean, layer.running_var) for layer in layers]
    ranks.average([part for pair in pairs for part in pair if part is not None])


def _norms(module: nn.Module) -> list[_BatchNorm]:
    return [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
