"""A residual network for scikit-learn's digits, trained in seconds: the model of ``pathweave demo``."""

from __future__ import annotations

from packager.zoo.resnet import SmallResNet


def resnet_digits(*, classes: int) -> SmallResNet:
    """Six residual blocks for [batch, 1, 8, 8], three on 8×8 and three on 4×4 pixels.

    Wide enough that blocks and not the session's overhead decide the latency at batch 1.
    """
    return SmallResNet(channels=1, widths=(48, 96), depth=3, classes=classes)
