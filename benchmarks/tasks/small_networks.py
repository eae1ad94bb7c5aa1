"""Small networks for sounds and sensors, their training (a minute or two), and packaging without any."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.runner.run import BenchOptions
from device_sdk.data.kinds import preparer_of
from device_sdk.data.preprocessing import AnyPreprocessing
from device_sdk.progress import Progress
from packager.data.prepared_set import PreparedSet
from packager.inputs.job import Job
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.recipe import Recipe
from packager.pipeline import package
from packager.tasks import Classification, LearningTask
from packager.zoo.log_mel import LogMel

RECIPE = Recipe(steps=0, batch=32, shrink_rates=(0.75, 0.5), variants=0, renditions=("fp32", "int8"))
_BATCH, _RATE, _DECAY = 64, 3e-3, 1e-3

Values = npt.NDArray[np.float32]


class Residual(nn.Module):
    """Two convolutions over the last one or two axes, beside the identity."""

    def __init__(self, channels: int, *, axes: int, kernel: int) -> None:
        super().__init__()
        self.first, self.second = (_convolution(channels, channels, axes=axes, kernel=kernel) for _ in range(2))

    def forward(self, features: Tensor) -> Tensor:
        """[n, channels, …] → the same shape."""
        return (self.second(self.first(features).relu()) + features).relu()


class Keywords(nn.Module):
    """A spectrogram in front of a residual network, as small ones for keyword spotting (Tang and Lin, 2018)."""

    def __init__(self, classes: int, *, sample_rate_hz: int, channels: int = 48, blocks: int = 4) -> None:
        super().__init__()
        self.front = LogMel(sample_rate_hz=sample_rate_hz, window=256, hop=128, bands=40)
        self.body = _residual_network(1, classes, channels=channels, blocks=blocks, axes=2, kernel=3)

    def spectrogram(self, sounds: Tensor) -> Tensor:
        """Sounds [n, 1, samples] → what ``body`` takes [n, 1, bands, frames]."""
        return self.front(sounds) / 10

    def forward(self, sounds: Tensor) -> Tensor:
        """Sounds [n, 1, samples] → logits [n, classes]."""
        return self.body(self.spectrogram(sounds))


def movements(inputs: int, classes: int, *, channels: int = 96, blocks: int = 4) -> nn.Sequential:
    """A residual network over time (Wang et al., 2017): values [n, inputs, time] → logits [n, classes]."""
    return _residual_network(inputs, classes, channels=channels, blocks=blocks, axes=1, kernel=7)


def _residual_network(
    inputs: int, classes: int, *, channels: int, blocks: int, axes: int, kernel: int
) -> nn.Sequential:
    mean = nn.AdaptiveAvgPool1d(1) if axes == 1 else nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(
        nn.Sequential(_convolution(inputs, channels, axes=axes, kernel=kernel, stride=2), nn.ReLU()),
        *(Residual(channels, axes=axes, kernel=kernel) for _ in range(blocks)),
        nn.Sequential(mean, nn.Flatten(), nn.Linear(channels, classes)),
    )


def _convolution(inputs: int, outputs: int, *, axes: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv, norm = (nn.Conv1d, nn.BatchNorm1d) if axes == 1 else (nn.Conv2d, nn.BatchNorm2d)
    return nn.Sequential(conv(inputs, outputs, kernel, stride, kernel // 2, bias=False), norm(outputs))


def fit(
    module: nn.Module,
    inputs: Values,
    labels: npt.NDArray[np.int64],
    *,
    epochs: float,
    changed: Callable[[Tensor], Tensor],
    progress: Progress,
    name: str,
) -> None:
    """Train ``module`` on prepared ``inputs`` [count, …]; ``changed`` augments a batch."""
    torch.manual_seed(0)
    steps = max(1, round(epochs * len(labels) / _BATCH))
    optimizer = torch.optim.AdamW(module.parameters(), lr=_RATE, weight_decay=_DECAY)
    module.train()
    with progress.task(name, steps) as shown:
        for step in range(steps):
            at = torch.randint(len(labels), (_BATCH,))
            for group in optimizer.param_groups:
                group["lr"] = _RATE * max(0.01, 0.5 * (1 + math.cos(math.pi * step / steps)))
            logits = module(changed(torch.from_numpy(inputs)[at]))
            loss = functional.cross_entropy(logits, torch.from_numpy(labels)[at], label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            shown.advance()


def shifted(batch: Tensor, most: int) -> Tensor:
    """Samples [n, channels, …, time], each moved in time by up to ``most``, around the end."""
    by = torch.randint(-most, most + 1, (len(batch),))
    return torch.stack([torch.roll(one, int(shift), -1) for one, shift in zip(batch, by, strict=True)])


def prepared(preprocessing: AnyPreprocessing, shape: tuple[int, ...], samples: Any) -> Values:
    """Samples of a kind without blobs as a model takes them [count, *shape]."""
    preparer = preparer_of(preprocessing, shape, lambda name: b"")
    return preparer.inputs(samples).take(np.arange(len(samples)))


def packaged(
    model: LoadedModel,
    sets: Sequence[PreparedSet],
    options: BenchOptions,
    *,
    task: LearningTask | None = None,
    recipe: Recipe = RECIPE,
) -> Path:
    """The folder of the bundle of ``model``: blocks start in closed form and are not trained.

    ``sets``: for training and validation.
    """
    training, validation = sets
    job = Job(model, training, "training", validation, "validation", recipe, model.name, task=task or Classification())
    return package(job, options.work_folder / model.name, progress=options.progress).folder
