"""Accuracy of sampled paths by their cost, run in torch: the training's progress indicator (AdaptiveNet §4.2)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from device_sdk.graph import Subnet
from packager.expansion import Expansion
from packager.tasks import Classification, LearningTask

_BATCH = 64


class RangeAccuracy:
    """Judges paths of a supernet in training on ``images`` [count, *input] with ``labels`` [count, …] held out from it.

    ``ranges``: the paths that stand for each range of costs, the cheapest first. ``task``: what an answer is worth.
    """

    def __init__(
        self,
        expansion: Expansion,
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        ranges: Sequence[Sequence[Subnet]] = (),
        task: LearningTask | None = None,
    ) -> None:
        self._expansion = expansion
        self._images, self._labels = images, labels
        self._ranges = ranges
        self._task = task or Classification()

    def look(self, *, device: torch.device | None = None) -> list[float]:
        """Mean share of right answers, or the task's scores, in each range. ``device``: where the modules are."""
        with self._judging():
            return [sum(self._share(path, device) for path in paths) / len(paths) for paths in self._ranges]

    def accuracies(self, paths: Sequence[Subnet]) -> list[float]:
        """Share of right answers of each path."""
        with self._judging():
            return [self._share(path, None) for path in paths]

    def _share(self, path: Subnet, device: torch.device | None) -> float:
        right = 0.0
        for first in range(0, len(self._labels), _BATCH):
            images = self._images[first : first + _BATCH].contiguous(memory_format=_layout(self._images)).to(device)
            answers = self._expansion.run(path, images).cpu()
            right += float(self._task.score(answers, self._labels[first : first + _BATCH]).sum())
        return right / len(self._labels)

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """While open, the added blocks are in evaluation mode."""
        training = [block.module for block in self._expansion.added if block.module.training]
        for module in training:
            module.eval()
        with torch.no_grad():
            yield
        for module in training:
            module.train()


def _layout(images: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if images.dim() == 4 else torch.contiguous_format
