"""A residual network for scikit-learn's digits, trained in seconds: the model of ``pathweave demo``."""

from __future__ import annotations

from packager.zoo.resnet import SmallResNet


def resnet_digits(*, classes: int) -> SmallResNet:
    """Ten residual blocks for [batch, 1, 8, 8], five on 8×8 and five on 4×4 pixels.

    Wide enough that blocks and not the session's overhead decide the latency at batch 1; deep enough that a third of
    the latency still leaves a choice of subnets.
    """
    return SmallResNet(channels=1, widths=(48, 64), depth=5, classes=classes)
