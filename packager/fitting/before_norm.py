"""Blocks that end in a layer norm, as transformers do that normalise behind each residual sum: what the norm reads.

The norm's output is no linear function of any layer, its input is. Where the original that ends at the same cut point
also ends in a norm, an added block is fitted to what that one's norm reads, and takes its scale and bias.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn

from packager.fitting.features import BATCH
from packager.fitting.last_map import disturbed_output, outputs_of
from packager.supernet.blocks.trainable import evaluated

_SEED = 0
_PROBED = 4  # samples by which a norm is found
_TOLERANCE = 1e-3  # of the largest value


class BeforeNorm(nn.Module):
    """``block`` up to its layer norm ``norm``: [batch, *start] → what the norm reads [batch, *end]."""

    def __init__(self, block: nn.Module, norm: str) -> None:
        super().__init__()
        self.block = block
        self.norm = norm

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """See the class."""
        read: list[torch.Tensor] = []
        hook = self.block.get_submodule(self.norm).register_forward_pre_hook(
            lambda module, inputs: read.append(inputs[0])
        )
        try:
            self.block(features)
        finally:
            hook.remove()
        return read[0]


@dataclass(frozen=True)
class Aim:
    """The teacher's features [count, *end] that a block is to make.

    ``norm``: the layer norm at the end of the original that makes them; ``values`` are then what it reads, and
    ``counted`` [count, …], without the normalised axis, is False where its output is zero, as padding is.
    """

    values: torch.Tensor
    norm: nn.LayerNorm | None = None
    counted: torch.Tensor | None = None

    def stripped(self, module: nn.Module, features: torch.Tensor) -> BeforeNorm | None:
        """A copy of ``module`` with the aim's norm for its own, up to it; None if it does not end in such a norm."""
        name = last_norm(module, features[:_PROBED])
        if self.norm is None or name is None:
            return None
        made = copy.deepcopy(module)
        own, state = made.get_submodule(name), self.norm.state_dict()
        if {key: value.shape for key, value in own.state_dict().items()} != {k: v.shape for k, v in state.items()}:
            return None
        own.load_state_dict(state)
        return BeforeNorm(made, name)


def aim_of(original: nn.Module, features: torch.Tensor) -> Aim:
    """The aim of blocks that end where ``original`` does; ``features`` [count, …] are the teacher's at its start."""
    name = last_norm(original, features[:_PROBED])
    with evaluated(original):
        made = torch.cat([original(batch) for batch in features.split(BATCH)])
    if name is None:
        return Aim(made)
    norm = original.get_submodule(name)
    assert isinstance(norm, nn.LayerNorm)
    stripped = BeforeNorm(original, name)
    with evaluated(stripped):
        read = torch.cat([stripped(batch) for batch in features.split(BATCH)])
    return Aim(read, norm, (made != 0).any(-1))


def last_norm(module: nn.Module, features: torch.Tensor) -> str | None:
    """The layer norm over the last axis that makes the output of ``module``, but for a factor at each position.

    ``features``: [batch, *start]. Found by disturbing the norm's output, as ``last_map`` finds layers.
    """
    calls = outputs_of(module, features, _is_norm)
    if not calls:
        return None
    name, outputs = next(reversed(calls.items()))
    return name if len(outputs) == 1 and _makes(module, name, features, outputs[0]) else None


def _is_norm(layer: nn.Module) -> bool:
    return isinstance(layer, nn.LayerNorm) and len(layer.normalized_shape) == 1


def _makes(module: nn.Module, name: str, features: torch.Tensor, z: torch.Tensor) -> bool:
    """True if the output y is a factor for each position times z, the output of the norm ``name``."""
    with evaluated(module):
        y = module(features)
    if not isinstance(y, torch.Tensor) or y.shape != z.shape:
        return False
    noise = torch.randn(z.shape, generator=torch.Generator().manual_seed(_SEED))
    change = disturbed_output(module, name, features, noise) - y
    factor = (noise * change).sum(-1, keepdim=True) / noise.square().sum(-1, keepdim=True)
    wrong = max(float((change - factor * noise).abs().max()), float((y - factor * z).abs().max()))
    return bool((factor != 0).any()) and wrong <= _TOLERANCE * float(y.abs().max())
