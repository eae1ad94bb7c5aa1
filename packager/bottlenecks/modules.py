"""Encoder and decoder around a bottleneck: linear maps over channels that start as principal components.

Source: FrankenSplit (Furutanpey, Raith and Dustdar, 2024) and SC2 (Matsubara, Yang, Levorato and Mandt, 2022) put a
narrow, quantised tensor between a small encoder and a decoder, both distilled from the features they replace. Legend:
image n, channel c, bottleneck channel k, height h, width w.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from device_sdk.policies.measured_splits.packet_coding import as_received
from packager.joining.maps import ChannelMap

BITS = 4  # per value, for which bottlenecks are fitted; devices may send 1 to 8
_LEAST_DEVIATION = 1e-6


class Bottleneck(nn.Module):
    """Features [n, c, …] → the same as a server restores them: encoded, quantised as in a packet, decoded."""

    def __init__(self, encoder: ChannelMap, decoder: ChannelMap) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Restored features; gradients pass the rounding unchanged (Bengio et al. 2013)."""
        sent = self.encoder(features)
        rounded = torch.from_numpy(as_received(sent.detach().cpu().numpy(), BITS)).to(sent.device)
        restored: torch.Tensor = self.decoder(sent + (rounded - sent.detach()))
        return restored


@dataclass(frozen=True)
class Components:
    """Principal components of a cut point's features: ``mean`` [c], ``directions`` [c, c] by falling ``deviations``."""

    mean: torch.Tensor
    directions: torch.Tensor
    deviations: torch.Tensor
    rectified: bool

    def bottleneck(self, channels: int, *, maps: bool) -> Bottleneck:
        """The first ``channels`` components, each in units of its deviation, so that one range suits all of them."""
        basis = self.directions[:channels]
        scale = self.deviations[:channels].clamp_min(_LEAST_DEVIATION)[:, None]
        into = basis / scale
        encoder = ChannelMap(into, -into @ self.mean, maps=maps, halved=False, rectified=False)
        decoder = ChannelMap((basis * scale).T, self.mean, maps=maps, halved=False, rectified=self.rectified)
        return Bottleneck(encoder, decoder).eval()


def components(rows: torch.Tensor) -> Components:
    """The principal components of ``rows`` [rows, c]."""
    mean = rows.mean(0)
    _, singular, directions = torch.linalg.svd(rows - mean, full_matrices=False)
    return Components(mean, directions, singular / max(len(rows), 1) ** 0.5, bool(rows.min() >= 0))
