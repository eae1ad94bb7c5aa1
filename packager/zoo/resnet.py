"""Residual networks for small images, with shortcuts that have no parameters (option A).

Source: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, §4.2; names of the
state dict as in github akamaster/pytorch_resnet_cifar10 (BSD-2-Clause).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut: [batch, inputs, h, w] -> [batch, outputs, h/stride, w/stride]."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        """Option A: every ``stride``-th pixel, new channels are zeros, half of them on either side."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.new_channels:
            before = self.new_channels // 2
            x = functional.pad(x, (0, 0, 0, 0, before, self.new_channels - before))
        return x


class SmallResNet(nn.Module):
    """Stem, one stage of ``depth`` blocks per width, mean over the image, linear.

    Every stage but the first halves the image. [batch, channels, h, w] -> logits [batch, classes].
    """

    def __init__(self, *, channels: int, widths: Sequence[int], depth: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.stage_names = tuple(f"layer{number}" for number in range(1, len(widths) + 1))
        inputs = widths[0]
        for name, width in zip(self.stage_names, widths, strict=True):
            first = BasicBlock(inputs, width, stride=1 if name == "layer1" else 2)
            rest = (BasicBlock(width, width, stride=1) for _ in range(depth - 1))
            self.add_module(name, nn.Sequential(first, *rest))
            inputs = width
        self.linear = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        for name in self.stage_names:
            x = self.get_submodule(name)(x)
        return self.linear(x.mean((2, 3)))


def cifar_resnet(layers: int, *, classes: int) -> SmallResNet:
    """ResNet-20, 32, 44, 56 or 110 for [batch, 3, 32, 32]: 6n + 2 layers, widths 16, 32, 64."""
    return SmallResNet(channels=3, widths=(16, 32, 64), depth=(layers - 2) // 6, classes=classes)


def resnet_digits(*, classes: int) -> SmallResNet:
    """Ten residual blocks for [batch, 1, 8, 8], five on 8×8 and five on 4×4 pixels.

    Wide enough that blocks, not session overhead, dominate the latency at batch 1; deep enough for a choice of subnets
    at a third of the latency.
    """
    return SmallResNet(channels=1, widths=(48, 64), depth=5, classes=classes)
