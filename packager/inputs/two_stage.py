"""Models in two stages: a backbone, and a head that reads several of its features (AdaptiveNet §6)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class TwoStage(nn.Module):
    """A backbone under a head such as a feature pyramid with a detector, or a decoder for segmentation.

    ``backbone``: images → a tuple of features, in the order of their computation, its final output last.
    ``head``: these features, as separate arguments → one tensor [batch, …].

    The backbone is cut and gets added blocks; no block jumps over a feature that the head reads. The head stays whole.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, images: Tensor) -> Any:
        """[batch, *input] → [batch, *output]."""
        return self.head(*self.backbone(images))
