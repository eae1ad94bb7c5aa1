"""Batch-norm statistics of the added blocks, taken again after tuning from the paths that will be used."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from device_sdk.supernet.plan import Subnet
from packager.supernet.expansion import Expansion
from packager.training.ranks import Ranks


def recalibrate(expansion: Expansion, batches: Iterable[tuple[Subnet, torch.Tensor]]) -> None:
    """Replace the running statistics of every added block that ``batches`` pass by their mean over all of them.

    While tuning, a block's statistics follow the last few paths that passed it; these are means over many. Each batch
    is [batch, *input], with the path that it takes. Blocks that no path passes keep what they have.
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
    """Give all processes the mean of the running statistics that each has from its own share of the batches.

    They are linear in what each batch adds to them: it makes no difference how often, or when, this is done.
    """
    layers = dict.fromkeys(layer for module in modules for layer in _norms(module))
    pairs = [(layer.running_mean, layer.running_var) for layer in layers]
    ranks.average([part for pair in pairs for part in pair if part is not None])


def _norms(module: nn.Module) -> list[_BatchNorm]:
    return [part for part in module.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
