"""Calibration data: features of real samples along the original path, for fitting and measuring quantisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from packager.supernet.blocks.trainable import TrainableBlock
from packager.supernet.expansion import Expansion
from packager.supernet.input_sizes import UsableSize, free_axes_at, resized

MAX_SAMPLES = 512
MAX_BYTES = 256_000_000  # of features at one cut point; two are in memory at a time
LEAST_SAMPLES = 16
_BATCH = 64
_HELD_BACK = 4  # one of so many samples

Features = npt.NDArray[np.float32]


def sample_count(sample_bytes: int, available: int) -> int:
    """The number of samples for calibration, out of ``available``: fewer for models with large features.

    ``sample_bytes``: of one sample's features at the cut point where they are largest.
    """
    return min(available, max(LEAST_SAMPLES, min(MAX_BYTES // sample_bytes, MAX_SAMPLES)))


@dataclass(frozen=True)
class Calibration:
    """Prepared training ``samples`` [count, *input], run through the originals of ``expansion`` in batches.

    ``sizes``: the other input sizes of the bundle.
    """

    expansion: Expansion
    samples: torch.Tensor
    batch: int = _BATCH
    sizes: tuple[UsableSize, ...] = ()

    @property
    def free_axes(self) -> dict[str, frozenset[int]]:
        """By tensor, the axes whose extents differ between the input sizes."""
        return free_axes_at(self.expansion.cut_points, self.sizes)

    def features(self) -> Iterator[tuple[int, Features]]:
        """Each cut point, 0 to N, with its features [count, *shape], computed lazily."""
        for index, (features, *_) in self._along(self.samples):
            yield index, features

    def features_at_sizes(self) -> Iterator[tuple[int, list[Features]]]:
        """As ``features``, and behind them the features of the same samples at some of the smaller input sizes.

        Activations reach farther there, since means are over fewer pixels and more of these lie at a border: the
        smallest size is among them, and one in the middle.
        """
        chosen = dict.fromkeys((self.sizes[len(self.sizes) // 2], self.sizes[-1])) if self.sizes else ()
        smaller = [resized(self.samples, size.size) for size in chosen]
        yield from self._along(self.samples, *smaller)

    def _along(self, *samples: torch.Tensor) -> Iterator[tuple[int, list[Features]]]:
        live = [images.numpy() for images in samples]
        yield 0, live
        for block in self.expansion.originals:
            live = [self._after(block, features) for features in live]
            yield block.end, live

    def _after(self, block: TrainableBlock, features: Features) -> Features:
        with torch.no_grad():
            module = block.module.eval()
            return in_batches(lambda part: module(torch.from_numpy(part)).numpy(), features, self.batch)


def in_batches(function: Callable[[Features], Features], features: Features, batch: int) -> Features:
    """``function`` of ``features`` [count, …] in batches, written into one preallocated array."""
    answers: Features | None = None
    for first in range(0, len(features), batch):
        answer = function(features[first : first + batch])
        if answers is None:
            answers = np.empty((len(features), *answer.shape[1:]), dtype=answer.dtype)
        answers[first : first + batch] = answer
    assert answers is not None, "there are no samples"
    return answers


def fitted_and_held_back(features: Features) -> tuple[Features, Features]:
    """Split into the samples for fitting ranges, and the last quarter, for measuring errors.

    Both are views. Below 4 samples, all are used for both.
    """
    held = len(features) // _HELD_BACK
    return (features[:-held], features[-held:]) if held else (features, features)


def held_back_last(samples: torch.Tensor) -> torch.Tensor:
    """``samples`` [count, …] reordered so that the last quarter is spread evenly over the original order."""
    held = torch.arange(len(samples)) % _HELD_BACK == _HELD_BACK - 1
    return samples[torch.argsort(held.int(), stable=True)]


def relative_error(answers: Features, expected: Features) -> float:
    """Mean squared error divided by the variance of ``expected``: 0 is exact, 1 no better than the mean.

    The error metric of stored renditions, in double precision. The training's differentiable counterpart is
    ``packager.training.losses.normalised_mse``.
    """
    variance = max(float(np.var(expected, dtype=np.float64)), 1e-8)
    return squared_distance(answers, expected) / answers.size / variance


def squared_distance(answers: Features, expected: Features) -> float:
    """The sum of squared differences, sample by sample in double precision."""
    return sum(float(np.sum((a.astype(np.float64) - b) ** 2)) for a, b in zip(answers, expected, strict=True))
