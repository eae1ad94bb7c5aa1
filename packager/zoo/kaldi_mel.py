"""Kaldi's log-mel features, as Audio Spectrogram Transformers take them, of a convolution and a matrix product.

Each frame loses its mean, is emphasised (0.97), windowed and transformed (512 points); all of it is linear, and so one
convolution. Source: Gong et al., "AST: Audio Spectrogram Transformer", 2021, §2; Kaldi's compute-fbank-feats.

Shape legend: sounds n, samples s, frames f, frequencies q, mel bands m.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

FRAME, HOP = 400, 160  # samples
_POINTS = 512
_EMPHASIS = 0.97
_LOWEST_HZ = 20.0
_FLOOR = 1.192092955078125e-07  # of a band's power


class KaldiMel(nn.Module):
    """Sounds [n, 1, s] from −1 to 1 → [n, frames, bands], less ``mean``, divided by twice ``std``.

    ``frames``: further ones are cut off, missing ones are 0 before; so are frames of silence, which padding makes.
    """

    def __init__(self, *, sample_rate_hz: int, frames: int, bands: int, mean: float, std: float) -> None:
        super().__init__()
        self.frames, self.mean, self.std = frames, mean, std
        self.register_buffer("waves", _waves())  # [2 q, 1, FRAME]
        self.register_buffer("mel", _mel_bands(sample_rate_hz, bands))  # [m, q]

    def forward(self, sounds: Tensor) -> Tensor:
        """See the class."""
        parts = functional.conv1d(sounds, self.waves, stride=HOP)[:, :, : self.frames]  # [n, 2 q, f]
        cosine, sine = parts.square().chunk(2, dim=1)
        power = torch.matmul(self.mel, cosine + sine).transpose(1, 2)  # [n, f, m]
        heard = (power.amax(-1, keepdim=True) > 0).to(power.dtype)
        features = power.clamp(min=_FLOOR).log() * heard
        missing = self.frames - features.shape[1]
        if missing:
            features = functional.pad(features, (0, 0, 0, missing))
        return (features - self.mean) / (2 * self.std)


def samples_of(frames: int) -> int:
    """The samples of so many frames."""
    return FRAME + HOP * (frames - 1)


def _waves() -> Tensor:
    """Cosines, then sines, of all frequencies [2 q, 1, FRAME], applied to a frame as it is."""
    size = torch.arange(FRAME, dtype=torch.float64)
    centred = torch.eye(FRAME, dtype=torch.float64) - 1 / FRAME
    emphasised = torch.eye(FRAME, dtype=torch.float64) - _EMPHASIS * torch.diag(torch.ones(FRAME - 1).double(), -1)
    emphasised[0, 0] = 1 - _EMPHASIS
    window = torch.hann_window(FRAME, periodic=False, dtype=torch.float64)
    angles = 2 * math.pi * torch.arange(_POINTS // 2 + 1, dtype=torch.float64)[:, None] * size / _POINTS
    transform = torch.cat([angles.cos(), angles.sin()]) * window
    return (transform @ emphasised @ centred).unsqueeze(1).float()


def _mel_bands(sample_rate_hz: int, bands: int) -> Tensor:
    """Triangles [m, q], evenly spaced on Kaldi's mel scale, 1127 ln(1 + f / 700), and straight in it."""

    def mel(hz: Tensor) -> Tensor:
        return 1127 * (1 + hz / 700).log()

    low, high = (float(mel(torch.tensor(hz, dtype=torch.float64))) for hz in (_LOWEST_HZ, sample_rate_hz / 2))
    edges = torch.linspace(low, high, bands + 2, dtype=torch.float64)[:, None]
    heard = mel(torch.arange(_POINTS // 2 + 1, dtype=torch.float64) * sample_rate_hz / _POINTS)
    rising, falling = (heard - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - heard) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).float()
