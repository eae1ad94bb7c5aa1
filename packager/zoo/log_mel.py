"""A log-mel spectrogram of convolutions and matrix products, so that it is part of a model and its ONNX fragments.

Shape legend: sounds n, samples s, frames f, frequencies q, mel bands m.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_FLOOR = 1e-6  # of the power, below which nothing is heard


class LogMel(nn.Module):
    """Sounds [n, 1, s] from −1 to 1 → logarithms of mel bands [n, 1, m, f]; no weights are trained.

    Source: mel scale of O'Shaughnessy (1987), 2595 log10(1 + f / 700), with triangular bands.

    Args:
        window: samples of a frame, a Hann window; ``hop``: samples between frames.
    """

    def __init__(self, *, sample_rate_hz: int, window: int = 400, hop: int = 160, bands: int = 40) -> None:
        super().__init__()
        self.hop = hop
        self.register_buffer("waves", _waves(window))  # [2 q, 1, window]
        self.register_buffer("mel", _mel_bands(sample_rate_hz, window, bands))  # [m, q]

    def forward(self, sounds: Tensor) -> Tensor:
        """See the class."""
        parts = functional.conv1d(sounds, self.waves, stride=self.hop)  # [n, 2 q, f]
        power = parts.square()
        cosine, sine = power.chunk(2, dim=1)
        return torch.matmul(self.mel, cosine + sine).clamp(min=_FLOOR).log().unsqueeze(1)


def _waves(window: int) -> Tensor:
    """Hann-windowed cosines, then sines, of all frequencies of a window."""
    time = torch.arange(window, dtype=torch.float64)
    angles = 2 * math.pi * torch.arange(window // 2 + 1, dtype=torch.float64)[:, None] * time / window
    hann = torch.hann_window(window, dtype=torch.float64)
    return torch.cat([angles.cos() * hann, angles.sin() * hann]).unsqueeze(1).float()


def _mel_bands(sample_rate_hz: int, window: int, bands: int) -> Tensor:
    """Triangles [m, q], evenly spaced on the mel scale from 0 to half the sampling rate."""
    top = 2595 * math.log10(1 + sample_rate_hz / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2, dtype=torch.float64) / 2595) - 1)
    heard = torch.arange(window // 2 + 1, dtype=torch.float64) * sample_rate_hz / window
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (heard - low) / (centre - low), (high - heard) / (high - centre)
    return torch.minimum(rising, falling).clamp(min=0).float()
