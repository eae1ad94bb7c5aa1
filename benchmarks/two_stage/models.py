"""Small models in two stages, trained here: a residual backbone under a feature pyramid that answers for each cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from device_sdk.data.preprocessing import Preprocessing
from device_sdk.data.targets import TargetDataset
from device_sdk.progress import Progress
from packager.data.batches import BatchSource
from packager.inputs.two_stage import TwoStage
from packager.inputs.weights import read_state_dict
from packager.tasks import LearningTask
from packager.zoo.resnet import cifar_resnet

LAYERS = 20
WIDTHS = (16, 32, 64)
PYRAMID = 32  # channels
PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
BATCH, RATE, DECAY = 8, 2e-3, 1e-2
_WARMUP = 0.05


class Backbone(nn.Module):
    """The stages of a CIFAR ResNet at half the resolution: features of the image's size over 2, 4 and 8.

    ``taps``: which of the stages' ends are put out, the last one always.
    """

    def __init__(self, *, taps: Sequence[int]) -> None:
        super().__init__()
        self.body = cifar_resnet(LAYERS, classes=10)
        self.body.conv1.stride = (2, 2)
        self.body.linear = nn.Identity()
        self.taps = tuple(taps)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = functional.relu(self.body.bn1(self.body.conv1(images)))
        found = []
        for number, name in enumerate(self.body.stage_names):
            features = self.body.get_submodule(name)(features)
            if number in self.taps or number == len(self.body.stage_names) - 1:
                found.append(features)
        return tuple(found)


class Pyramid(nn.Module):
    """All features brought to ``PYRAMID`` channels and to one size, added, and answered for each cell.

    ``at``: number of the feature whose size counts. After Lin et al., "Feature Pyramid Networks", 2017.
    """

    def __init__(self, widths: Sequence[int], *, outputs: int, at: int) -> None:
        super().__init__()
        self.sides = nn.ModuleList(nn.Conv2d(width, PYRAMID, 1) for width in widths)
        self.mix = nn.Sequential(
            nn.Conv2d(PYRAMID, PYRAMID, 3, padding=1, bias=False), nn.BatchNorm2d(PYRAMID), nn.ReLU()
        )
        self.answer = nn.Conv2d(PYRAMID, outputs, 1)
        self.at = at

    def forward(self, *features: torch.Tensor) -> torch.Tensor:
        size = features[self.at].shape[2:]
        sides = [side(one) for side, one in zip(self.sides, features, strict=True)]
        total = sides[self.at]
        for number, one in enumerate(sides):
            if number < self.at:
                total = total + functional.adaptive_avg_pool2d(one, size)
            elif number > self.at:
                total = total + functional.interpolate(one, size=size, mode="bilinear", align_corners=False)
        return self.answer(self.mix(total))


@dataclass(frozen=True)
class Kind:
    """Structure of a task's model: stages that its head reads, the one whose size it answers in, answers per cell."""

    taps: tuple[int, ...]
    at: int
    outputs: int


def build(kind: Kind, weights: Path) -> TwoStage:
    """An untrained model; its backbone starts from a classifier's weights."""
    torch.manual_seed(0)
    backbone = Backbone(taps=kind.taps)
    known = {name: value for name, value in read_state_dict(weights).items() if not name.startswith("linear")}
    backbone.body.load_state_dict(known)
    widths = [WIDTHS[number] for number in (*kind.taps, len(WIDTHS) - 1)]
    return TwoStage(backbone, Pyramid(widths, outputs=kind.outputs, at=kind.at))


def train(
    model: TwoStage, data: TargetDataset, task: LearningTask, *, epochs: float, progress: Progress, name: str
) -> None:
    """Train the whole model on labels alone, as its owner would; it is in evaluation mode afterwards."""
    source = BatchSource(data, PREPROCESSING, batch=BATCH, seed=0, flip=True, crop=0.1, task=task)
    steps = max(1, round(epochs * source.batches_per_epoch))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    model.to(memory_format=torch.channels_last).train()
    with progress.task(name, steps) as shown:
        for step in range(steps):
            done = step / steps
            rate = done / _WARMUP if done < _WARMUP else 0.5 * (1 + math.cos(math.pi * done))
            for group in optimizer.param_groups:
                group["lr"] = RATE * max(rate, 0.01)
            images, targets = source.batch(step)
            loss = task.target_loss(model(images), targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            shown.advance()
            shown.note(f"loss {loss.item():.3f}")
    model.eval()
