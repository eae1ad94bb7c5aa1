"""The memory format of a supernet's features during training.

CPU convolutions are faster in ``channels_last``, where the channels of a position are adjacent: a tuning step of
ResNet-56 takes 0.8 of the time (2 threads). Layout-sensitive operators such as ``view`` may fail.
"""

from __future__ import annotations

import torch
from torch import nn

from device_sdk.supernet.blocks import TensorSpec
from packager.supernet.blocks.trainable import evaluated
from packager.supernet.expansion import Expansion
from packager.tracing.traced_model import tensors_of

_SAMPLES = 2
_TOLERANCE = 1e-3  # of the largest magnitude


def training_format(expansion: Expansion, device: torch.device) -> torch.memory_format:
    """``channels_last`` on a CPU, for images, if every part computes the same from channels-last inputs."""
    cuts = expansion.traced.cuts
    if device.type != "cpu" or len(cuts[0][0].shape) != 3:
        return torch.contiguous_format
    parts = [(block.module, (*block.taps, block.start)) for block in expansion.blocks]
    parts += [(exit_.module, (exit_.position,)) for exit_ in expansion.exits]
    for module, read in parts:
        if not _bears_channels_last(module, [spec for position in read for spec in cuts[position]]):
            return torch.contiguous_format
    return torch.channels_last


def _bears_channels_last(module: nn.Module, specs: list[TensorSpec]) -> bool:
    random = torch.Generator().manual_seed(0)
    inputs = [torch.randn(_SAMPLES, *spec.shape, generator=random) for spec in specs]
    try:
        with evaluated(module):
            expected = tensors_of([module(*inputs)])
            found = tensors_of([module(*(_channels_last(tensor) for tensor in inputs))])
    except RuntimeError:  # of an operator that needs another layout
        return False
    pairs = zip(found, expected, strict=True)
    return all(bool((one - other).abs().max() <= _TOLERANCE * other.abs().max()) for one, other in pairs)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
