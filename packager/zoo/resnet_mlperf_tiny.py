"""ResNet-8 of the MLPerf Tiny benchmark, translated from Keras so that its weights give the same answers.

Source: Banbury et al., "MLPerf Tiny Benchmark", NeurIPS 2021; github mlcommons/tiny (Apache-2.0). Keras pads
"same": where the stride is 2, one row below and one column to the right, nothing above or to the left.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

_EPSILON = 1e-3  # of Keras' batch normalisation


class Stem(nn.Module):
    """Convolution, batch-norm, ReLU: [batch, 3, h, w] -> [batch, outputs, h, w]."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, outputs, 3, padding=1)
        self.bn = nn.BatchNorm2d(outputs, eps=_EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.bn(self.conv(x)))


class Stage(nn.Module):
    """One residual block: [batch, inputs, h, w] -> [batch, outputs, h/stride, w/stride]."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1 if stride == 1 else 0)
        self.bn1 = nn.BatchNorm2d(outputs, eps=_EPSILON)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(outputs, eps=_EPSILON)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        padded = x if self.stride == 1 else functional.pad(x, (0, 1, 0, 1))
        y = functional.relu(self.bn1(self.conv1(padded)))
        y = self.bn2(self.conv2(y))
        return functional.relu(self.shortcut(x) + y)


class MlperfTinyResNet8(nn.Module):
    """Stem, three stages, mean over the image, linear: [batch, 3, h, w] -> logits [batch, classes]."""

    def __init__(self, *, classes: int) -> None:
        super().__init__()
        self.stem = Stem(16)
        self.stage1 = Stage(16, 16, stride=1)
        self.stage2 = Stage(16, 32, stride=2)
        self.stage3 = Stage(32, 64, stride=2)
        self.fc = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.fc(x.mean((2, 3)))
