"""The shapes of YOLOv3 (Redmon and Farhadi 2018): Darknet-53 and three heads. Without weights; it only gives layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

YOLO_INPUT = (3, 416, 416)
_STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))  # channels and residual blocks
_OUTPUTS = 255  # three boxes of 80 classes, a place and a confidence


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(channels, channels // 2, 1), _convolution(channels // 2, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class _Head(nn.Module):
    """Five convolutions for the next head, then the boxes."""

    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.shared = nn.Sequential(
            _convolution(inputs, channels, 1),
            _convolution(channels, wide, 3),
            _convolution(wide, channels, 1),
            _convolution(channels, wide, 3),
            _convolution(wide, channels, 1),
        )
        self.boxes = nn.Sequential(_convolution(channels, wide, 3), nn.Conv2d(wide, _OUTPUTS, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shared = self.shared(x)
        return shared, self.boxes(shared)


class Yolov3(nn.Module):
    """[batch, 3, 416, 416] -> boxes at 13², 26² and 52² places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _convolution(3, 32, 3)
        inputs, stages = 32, []
        for channels, blocks in _STAGES:
            residuals = (_Residual(channels) for _ in range(blocks))
            stages.append(nn.Sequential(_convolution(inputs, channels, 3, 2), *residuals))
            inputs = channels
        self.stages = nn.ModuleList(stages)
        self.heads = nn.ModuleList([_Head(1024, 512), _Head(768, 256), _Head(384, 128)])
        self.narrow = nn.ModuleList([_convolution(512, 256, 1), _convolution(256, 128, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        shared, coarse = self.heads[0](features[4])
        shared = functional.interpolate(self.narrow[0](shared), scale_factor=2.0)
        shared, middle = self.heads[1](torch.cat([shared, features[3]], dim=1))
        shared = functional.interpolate(self.narrow[1](shared), scale_factor=2.0)
        _, fine = self.heads[2](torch.cat([shared, features[2]], dim=1))
        return coarse, middle, fine


def yolov3() -> nn.Module:
    """The network on the meta device."""
    with torch.device("meta"):
        return Yolov3().eval()
