"""Accuracy of sampled paths by their cost, run in torch: the training's progress indicator (AdaptiveNet §4.2)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence

import torch

from device_sdk.supernet.plan import Subnet
from packager.supernet.expansion import Expansion
from packager.tasks import Classification, LearningTask
from packager.training.losses import imitation_error

_BATCH = 64
_FEATURES_BATCH = 16  # features of all cut points are held at once
_TIMED = 8  # images


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
        self._teacher: torch.Tensor | None = None  # its answers [count, *output], on the processor

    def look(self, count: int | None = None, *, device: torch.device | None = None) -> list[float]:
        """Mean share of right answers, or the task's scores, in each range, on the first ``count`` images.

        ``device``: where the modules are.
        """
        with self._judging():
            return [sum(self._share(path, count, device) for path in paths) / len(paths) for paths in self._ranges]

    def images_within(self, seconds: float, *, device: torch.device | None = None) -> int:
        """How many images a look at all ranges can take in ``seconds``; at least 1."""
        count = sum(len(paths) for paths in self._ranges)
        return max(1, int(seconds / max(1e-9, count * self.seconds_per_image(device=device))))

    def accuracies(self, paths: Sequence[Subnet]) -> list[float]:
        """Share of right answers of each path."""
        with self._judging():
            return [self._share(path, None, None) for path in paths]

    def answers_of(
        self, paths: Sequence[Subnet], count: int | None = None, *, device: torch.device | None = None
    ) -> tuple[torch.Tensor, float]:
        """The scores [paths · count] of the paths' answers to the first ``count`` images, and their distance.

        The distance is the mean squared one from the full model's answers.
        """
        count = min(count or len(self._labels), len(self._labels))
        if self._teacher is None or len(self._teacher) < count:
            original = self._expansion.supernet().original
            self._teacher = torch.cat(list(self._answers(original, count, device)))
        scores, distance = [], 0.0
        for path in paths:
            with self._judging():
                answers = torch.cat(list(self._answers(path, count, device)))
            scores.append(self._task.score(answers, self._labels[:count]).float())
            distance += float((answers - self._teacher[:count]).square().mean()) / len(paths)
        return torch.cat(scores), distance

    def seconds_per_image(self, *, device: torch.device | None = None) -> float:
        """What the original path takes for one image."""
        original = self._expansion.supernet().original
        count = min(_TIMED, len(self._labels))
        list(self._answers(original, 1, device))
        started = time.perf_counter()
        list(self._answers(original, count, device))
        return (time.perf_counter() - started) / count

    def imitation_errors(self, count: int, *, device: torch.device | None = None) -> dict[str, float]:
        """For each trained block its error behind the teacher's features, on up to ``count`` images."""
        blocks = self._expansion.trained
        errors = dict.fromkeys((block.id for block in blocks), 0.0)
        with self._judging():
            batches = self._images[:count].split(_FEATURES_BATCH)
            for images in batches:
                features = self._expansion.traced.features(images.to(device))
                for block in blocks:
                    errors[block.id] += float(imitation_error(block, features)) / len(batches)
        return errors

    def exit_errors(self, *, device: torch.device | None = None) -> dict[str, float]:
        """For each exit the share of answers behind the original path that are wrong, to the answer.

        Among exits of equal shares that whose answers are nearer to the labels has a slightly smaller error.
        """
        exits = self._expansion.exits
        wrong = dict.fromkeys((exit_.id for exit_ in exits), 0.0)
        with self._judging():
            for first in range(0, len(self._labels), _FEATURES_BATCH):
                labels = self._labels[first : first + _FEATURES_BATCH]
                features = self._expansion.traced.features(self._images[first : first + _FEATURES_BATCH].to(device))
                for exit_ in exits:
                    answers = exit_.module(features[exit_.position]).float().cpu()
                    loss = float(self._task.target_loss(answers, labels).clamp(0, 1e3)) * len(labels)
                    missed = len(labels) - float(self._task.score(answers, labels).sum())
                    wrong[exit_.id] += (missed + 1e-6 * loss) / len(self._labels)
        return wrong

    def _answers(self, path: Subnet, count: int, device: torch.device | None) -> Iterator[torch.Tensor]:
        """A path's answers, batch by batch."""
        with torch.no_grad():
            for first in range(0, count, _BATCH):
                images = self._images[first : min(first + _BATCH, count)]
                images = images.contiguous(memory_format=_layout(images)).to(device)
                yield self._expansion.run(path, images).float().cpu()

    def _share(self, path: Subnet, count: int | None, device: torch.device | None) -> float:
        count = min(count or len(self._labels), len(self._labels))
        answers = torch.cat(list(self._answers(path, count, device)))
        return float(self._task.score(answers, self._labels[:count]).sum()) / count

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """While open, the added blocks and the exits are in evaluation mode."""
        modules = [block.module for block in self._expansion.added]
        modules += [exit_.module for exit_ in self._expansion.exits]
        training = [module for module in modules if module.training]
        for module in training:
            module.eval()
        with torch.no_grad():
            yield
        for module in training:
            module.train()


def _layout(images: torch.Tensor) -> torch.memory_format:
    return torch.channels_last if images.dim() == 4 else torch.contiguous_format
