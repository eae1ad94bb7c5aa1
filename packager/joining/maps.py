"""Linear maps over channels, and the shapes of features that they apply to.

Legend: image n, channel c, height h, width w, token t.
"""

from __future__ import annotations

import torch
from torch import nn

Shape = tuple[int, ...]


class ChannelMap(nn.Module):
    """A linear map over channels, behind a mean over 2×2 pixels where ``halved``, before a rectifier if ``rectified``.

    Of ``maps`` [c, h, w] the channels come first, of tokens [t, c] and vectors [c] last.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, *, maps: bool, halved: bool, rectified: bool) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.linear: nn.Module = nn.Conv2d(inputs, outputs, 1) if maps else nn.Linear(inputs, outputs)
        with torch.no_grad():
            assert isinstance(self.linear.weight, torch.Tensor)
            assert isinstance(self.linear.bias, torch.Tensor)
            self.linear.weight.copy_(weight.reshape(self.linear.weight.shape))
            self.linear.bias.copy_(bias)
        self.pool = nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False) if halved else nn.Identity()
        self.last = nn.ReLU() if rectified else nn.Identity()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Features of the start → features of the end."""
        answer: torch.Tensor = self.last(self.linear(self.pool(features)))
        return answer


def extents(shape: Shape) -> tuple[Shape, int]:
    """Pixels or tokens, and channels: first in maps [c, h, w], last in tokens [t, c] and vectors [c]."""
    return (shape[1:], shape[0]) if len(shape) == 3 else (shape[:-1], shape[-1])


def with_channels(shape: Shape, channels: int) -> Shape:
    """``shape`` with another number of channels."""
    return (channels, *shape[1:]) if len(shape) == 3 else (*shape[:-1], channels)


def picked(features: torch.Tensor, count: int, *, seed: int) -> torch.Tensor:
    """Features at up to ``count`` positions, the same ones for the same extents: [n, positions, c]."""
    if features.dim() == 4:
        flat = features.flatten(2).movedim(1, 2)
    else:
        flat = features[:, None] if features.dim() == 2 else features
    positions = flat.shape[1]
    if positions <= count:
        return flat
    return flat[:, torch.randperm(positions, generator=torch.Generator().manual_seed(seed))[:count]]
