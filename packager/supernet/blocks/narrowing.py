"""Channels that a shrunk block lost: which layers made them, which one reads them, and weights for other ones.

Known for chains of linear layers, as in transformers: the layers in the middle of a feed-forward part, and the heads of
an attention. Which of them are kept can then be decided anew, on features (``packager/fitting/channels.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Narrowing:
    """``layers`` make channels that ``reader`` alone reads, all ``nn.Linear``; ``unit`` neighbours stay together.

    ``layers``: by name, how often each makes them: 3 for one layer that makes queries, keys and values.
    """

    layers: Mapping[str, int]
    reader: str
    unit: int = 1

    def take(self, units: torch.Tensor, *, of: nn.Module, into: nn.Module) -> None:
        """Copy the weights of the channels in ``units`` int64 [kept] from the wider ``of`` into ``into``."""
        wide, narrow = linear(of, self.reader), linear(into, self.reader)
        channels = (units[:, None] * self.unit + torch.arange(self.unit)).flatten()
        with torch.no_grad():
            narrow.weight.copy_(wide.weight[:, channels])
            for name, times in self.layers.items():
                maker, made = linear(of, name), linear(into, name)
                rows = torch.cat([channels + part * wide.in_features for part in range(times)])
                made.weight.copy_(maker.weight[rows])
                if maker.bias is not None:
                    made.bias.copy_(maker.bias[rows])


def linear(module: nn.Module, name: str) -> nn.Linear:
    """The linear layer ``name`` of ``module``."""
    found = module.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found


def narrowing_between(wide: nn.Module, narrow: nn.Module) -> Narrowing | None:
    """The narrowing of ``wide`` to ``narrow``: one group of channels between linear layers; None for any other."""
    state = narrow.state_dict()
    changed = {name for name, value in wide.state_dict().items() if state[name].shape != value.shape}
    layers, readers = [], []
    for name, layer in wide.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        other = linear(narrow, name)
        if other.out_features != layer.out_features:
            layers.append(name)
        if other.in_features != layer.in_features:
            readers.append(name)
    owners = {name.rpartition(".")[0] for name in changed}
    if len(readers) != 1 or not layers or set(layers) & set(readers) or owners != {*layers, *readers}:
        return None
    width = linear(wide, readers[0]).in_features
    if any(linear(wide, name).out_features != width for name in layers):
        return None
    return Narrowing(dict.fromkeys(layers, 1), readers[0])
