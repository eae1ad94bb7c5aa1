"""A residual network for scikit-learn's digits, trained in seconds: the model of ``pathweave demo``."""

from __future__ import annotations

from packager.zoo.resnet import SmallResNet


def resnet_digits(*, classes: int) -> SmallResNet:
    """Ten residual blocks for [batch, 1, 8, 8], five on 8×8 and five on 4×4 pixels.

    Wide enough that blocks, not session overhead, dominate the latency at batch 1; deep enough for a choice of subnets
    at a third of the latency.
    """
    return SmallResNet(channels=1, widths=(48, 64), depth=5, classes=classes)
