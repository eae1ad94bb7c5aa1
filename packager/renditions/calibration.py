"""Calibration data: features of real samples along the original path, for fitting and measuring quantisation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

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
Live: TypeAlias = tuple[Features, ...]  # what is live at a cut point: its own tensor, and behind it those of taps


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

    def features(self) -> Iterator[tuple[int, Live]]:
        """Each cut point, 0 to N, with its features [count, *shape], computed lazily."""
        for index, (live, *_) in self._along(self.samples):
            yield index, live

    def features_at_sizes(self) -> Iterator[tuple[int, list[Live]]]:
        """As ``features``, and behind them the features of the same samples at some of the smaller input sizes.

        Activations reach farther there, since means are over fewer pixels and more of these lie at a border: the
        smallest size is among them, and one in the middle.
        """
        chosen = dict.fromkeys((self.sizes[len(self.sizes) // 2], self.sizes[-1])) if self.sizes else ()
        smaller = [resized(self.samples, size.size) for size in chosen]
        yield from self._along(self.samples, *smaller)

    def _along(self, *samples: torch.Tensor) -> Iterator[tuple[int, list[Live]]]:
        at_sizes: list[Live] = [(images.numpy(),) for images in samples]
        yield 0, at_sizes
        for block in self.expansion.originals:
            at_sizes = [self._after(block, live) for live in at_sizes]
            yield block.end, at_sizes

    def _after(self, block: TrainableBlock, live: Live) -> Live:
        own, *tapped = live
        module = block.module.eval()
        with torch.no_grad():
            end = in_batches(
                lambda *some: module(*map(torch.from_numpy, some)).numpy(), read_by(block, live), self.batch
            )
        if block.taps:  # the head is the last to read them
            return (end,)
        return (end, *tapped, *([own] if block.start in self.expansion.traced.taps else []))


def read_by(block: TrainableBlock, live: Live) -> Live:
    """The tensors that ``block`` reads of those ``live`` at its start, in the order of its arguments."""
    own, *tapped = live
    return (*tapped, own) if block.taps else (own,)


def in_batches(function: Callable[..., Features], live: Live, batch: int) -> Features:
    """``function`` of tensors [count, …], in batches, written into one preallocated array."""
    answers: Features | None = None
    count = len(live[0])
    for first in range(0, count, batch):
        answer = function(*(features[first : first + batch] for features in live))
        if answers is None:
            answers = np.empty((count, *answer.shape[1:]), dtype=answer.dtype)
        answers[first : first + batch] = answer
    assert answers is not None, "there are no samples"
    return answers


def fitted_and_held_back(live: Live) -> tuple[Live, Live]:
    """Split into the samples for fitting ranges, and the last quarter, for measuring errors.

    Both are views. Below 4 samples, all are used for both.
    """
    held = len(live[0]) // _HELD_BACK
    if not held:
        return live, live
    return tuple(features[:-held] for features in live), tuple(features[-held:] for features in live)


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
