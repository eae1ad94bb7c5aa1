"""Small models of sensors that know several labels, numbers or vectors, and their data: for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

LABELS = ("flat", "high", "steep")


class Sensors(nn.Module):
    """Two convolutions and a linear layer: values [n, 2, 16] → [n, outputs]."""

    preprocessing = {"kind": "tensor", "mean": [0.0, 0.0], "std": [1.0, 1.0]}  # noqa: RUF012
    input_shape = (2, 16)

    def __init__(self, outputs: int, class_names: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(2, 12, 3, padding=1), nn.Conv1d(12, 12, 3, padding=1)
        self.head = nn.Linear(12, outputs)
        if class_names is not None:
            self.class_names = class_names

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return self.head(self.second(self.first(values).relu()).relu().mean(-1))


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy lines [count, 2, 16], and their mean and slope [count, 2]."""
    random = np.random.default_rng(seed)
    truth = random.uniform(-1, 1, (count, 2)).astype(np.float32)
    line = truth[:, :1] + truth[:, 1:] * np.linspace(-1, 1, 16, dtype=np.float32)
    noise = random.normal(0, 0.02, (count, 2, 16))
    return (np.stack([line, np.diff(line, prepend=line[:, :1])], axis=1) + noise).astype(np.float32), truth


def labels_of(truth: np.ndarray) -> np.ndarray:
    """1 for flat, high, steep, else 0 [count, 3]: none of them where a line is neither."""
    mean, slope = truth.T
    return np.stack([abs(slope) < 0.3, mean > 0.2, abs(slope) > 0.5], axis=1).astype(np.float32)


def write_labels(path: Path, count: int, seed: int) -> Path:
    """An .npz file whose labels are written, such as ``high|steep``, or ``-`` for none."""
    values, truth = drawn(count, seed)
    written = ["|".join(name for name, there in zip(LABELS, row, strict=True) if there) for row in labels_of(truth)]
    np.savez(path, x=values, y=np.array([one or "-" for one in written]))
    return path


def write_numbers(path: Path, count: int, seed: int) -> Path:
    """An .npz file with mean and slope of each sample."""
    values, truth = drawn(count, seed)
    np.savez(path, x=values, y=truth)
    return path


def labelling() -> Sensors:
    """Knows the labels."""
    values, truth = drawn(400, 1)
    return _trained(Sensors(3, LABELS), values, labels_of(truth), nn.functional.binary_cross_entropy_with_logits)


def measuring() -> Sensors:
    """Knows mean and slope, and does not name them."""
    values, truth = drawn(400, 1)
    return _trained(Sensors(2), values, truth, nn.functional.mse_loss)


def describing() -> Sensors:
    """The same, with numbers of which the first two are these, as a vector."""
    values, truth = drawn(400, 1)
    return _trained(Sensors(4), values, np.concatenate([truth, truth**2], axis=1), nn.functional.mse_loss)


def _trained(module: Sensors, values: np.ndarray, targets: np.ndarray, loss) -> Sensors:
    inputs, wanted = torch.from_numpy(values), torch.from_numpy(targets)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for parameter in module.parameters():
            parameter.data.normal_(std=0.3)
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
        for _ in range(250):
            optimizer.zero_grad()
            loss(module(inputs), wanted).backward()
            optimizer.step()
    return module.eval().requires_grad_(False)
