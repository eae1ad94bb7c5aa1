"""Accuracy of sampled paths by range of MACs, run in torch (AdaptiveNet §4.2): watched during tuning, and by which
skips that cost too much are removed afterwards.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from device_sdk.progress import Progress
from device_sdk.supernet.plan import Edge, Subnet
from packager.supernet.blocks.streams import several
from packager.supernet.expansion import Expansion
from packager.supernet.macs_ranges import MacsRanges
from packager.tasks import Classification, LearningTask
from packager.training.losses import imitation_error
from packager.training.ranks import Alone, Ranks
from packager.training.schedule import Schedule

_BATCH = 64
_FEATURES_BATCH = 16  # small, since the features of all cut points are in memory together
_TIMED = 8  # images
_SAMPLES = 512  # held-out samples on which skips are judged
_PATHS_PER_RANGE = 4
_TRIES = 3  # paths into which a skip is put to judge it
LOOK_EVERY = 100  # steps of tuning
_LOOK_SHARE = 0.01  # of the phase's time, for one evaluation
_REST = 30  # an evaluation is followed by a pause of so many times its duration: about 3 % of the time in total


class RangeAccuracy:
    """Evaluates paths of a supernet in training on held-out ``images`` [count, *input] with ``labels`` [count, …].

    ``ranges``: sampled paths of each range of MACs, the cheapest range first. ``task``: scores the answers.
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
        """Mean accuracy, or task score, of each range on the first ``count`` images.

        ``device``: of the modules.
        """
        with self._judging():
            return [sum(self._share(path, count, device) for path in paths) / len(paths) for paths in self._ranges]

    def images_within(self, seconds: float, *, device: torch.device | None = None) -> int:
        """The number of images on which all ranges can be evaluated in ``seconds``; at least 1."""
        count = sum(len(paths) for paths in self._ranges)
        return max(1, int(seconds / max(1e-9, count * self.seconds_per_image(device=device))))

    def accuracies(self, paths: Sequence[Subnet]) -> list[float]:
        """Accuracy of each path, 0 to 1."""
        with self._judging():
            return [self._share(path, None, None) for path in paths]

    def answers_of(
        self, paths: Sequence[Subnet], count: int | None = None, *, device: torch.device | None = None
    ) -> tuple[torch.Tensor, float]:
        """Scores [paths · count] of the paths on the first ``count`` images, and their distance from the teacher.

        The distance is the mean squared error against the full model's answers.
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
        """Time of the original path per image."""
        original = self._expansion.supernet().original
        count = min(_TIMED, len(self._labels))
        list(self._answers(original, 1, device))
        started = time.perf_counter()
        list(self._answers(original, count, device))
        return (time.perf_counter() - started) / count

    def imitation_errors(self, count: int, *, device: torch.device | None = None) -> dict[str, float]:
        """``imitation_error`` of each trained block, on up to ``count`` images."""
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
        """Error rate of each exit behind the original path, 0 to 1.

        Ties are broken by a small term in proportion to the loss.
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
                layout = torch.channels_last if images.dim() == 4 else torch.contiguous_format
                images = images.contiguous(memory_format=layout).to(device)
                yield self._expansion.run(path, images).float().cpu()

    def _share(self, path: Subnet, count: int | None, device: torch.device | None) -> float:
        count = min(count or len(self._labels), len(self._labels))
        answers = torch.cat(list(self._answers(path, count, device)))
        return float(self._task.score(answers, self._labels[:count]).sum()) / count

    @contextlib.contextmanager
    def _judging(self) -> Iterator[None]:
        """Inside the context, the added blocks and the exits are in evaluation mode."""
        modules = [block.module for block in self._expansion.added]
        modules += [exit_.module for exit_ in self._expansion.exits]
        training = [module for module in modules if module.training]
        for module in training:
            module.eval()
        with torch.no_grad():
            yield
        for module in training:
            module.train()


def judge_skips(
    expansion: Expansion,
    held_out: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    *,
    task: LearningTask,
    points: float,
    seed: int,
    progress: Progress,
) -> Expansion:
    """Remove useless skips where the fit has not done so: from a model with cut points of several tensors.

    Args:
        held_out: returns up to so many images [count, *input] and targets [count, …] that training did not use.
        points: see ``without_useless_skips``.
    """
    skips = [block for block in expansion.added if block.properties.skip]
    if not skips or not several(expansion.traced.cuts):
        return expansion
    judge = RangeAccuracy(expansion, *held_out(_SAMPLES), task=task)
    with progress.task("judge identities", len(skips)) as shown:
        return without_useless_skips(expansion, judge, points=points, seed=seed, judged=shown.advance)


def without_useless_skips(
    expansion: Expansion, judge: RangeAccuracy, *, points: float, seed: int, judged: Callable[[], None] = lambda: None
) -> Expansion:
    """The expansion without identity blocks that cost too much accuracy, and with a note that names them.

    Sampled paths are evaluated; a skip is inserted into the most accurate ones that it fits. It is kept if the best
    resulting path loses at most ``points`` percentage points against the best path in the same range of MACs.
    ``judged`` is called after each skip.
    """
    skips = [Edge(block.id) for block in expansion.added if block.properties.skip]
    if not skips:
        return expansion
    ranges = MacsRanges(expansion)
    accuracy = _sampled(expansion, ranges, judge, seed=seed)
    best: dict[int, float] = {}
    for path, share in accuracy.items():
        number = ranges.range_of(path)
        best[number] = max(share, best.get(number, 0.0))
    lost: dict[str, float] = {}
    for skip in skips:
        lost[skip.block] = _lost(skip, accuracy, best, ranges, judge)
        judged()
    useless = [name for name, share in lost.items() if 100 * share > points]
    if not useless:
        return expansion
    note = f"identity blocks left out, each costs more than {points:g} points: {', '.join(useless)}"
    return expansion.without(useless).noting(note)


def _sampled(expansion: Expansion, ranges: MacsRanges, judge: RangeAccuracy, *, seed: int) -> dict[Subnet, float]:
    """Accuracy of the original path and of sampled paths of each range."""
    paths = [expansion.supernet().original]
    for _, _, sampled in ranges.samples(_PATHS_PER_RANGE, seed=seed):
        paths += sampled
    paths = list(dict.fromkeys(paths))
    return dict(zip(paths, judge.accuracies(paths), strict=True))


def _lost(
    skip: Edge, accuracy: dict[Subnet, float], best: dict[int, float], ranges: MacsRanges, judge: RangeAccuracy
) -> float:
    """Accuracy lost by using ``skip``: the best of its range less the best path over it. Negative if that is better."""
    ranked = sorted(accuracy, key=lambda path: -accuracy[path])
    fitting = [made for path in ranked if (made := ranges.with_skip(path, skip)) is not None][:_TRIES]
    return min(
        best.get(ranges.range_of(path), 0.0) - share
        for path, share in zip(fitting, judge.accuracies(fitting), strict=True)
    )


class TuningWatch:
    """Evaluates every ``LOOK_EVERY`` steps; ends tuning after ``patience`` evaluations without a better mean.

    ``patience`` 0 disables early stopping, ``judge`` None disables evaluation. Only rank 0 evaluates. With a time limit
    (``limit``) evaluations use fewer images, and one is skipped if the last one took more than a thirtieth of the time
    since.
    """

    def __init__(
        self,
        judge: RangeAccuracy | None,
        *,
        patience: int,
        device: torch.device,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._judge = judge
        self._patience = patience
        self._device = device
        self._ranks = ranks or Alone()
        self._clock = clock
        self._limited = False
        self._images: int | None = None  # per evaluation; None for all
        self._next = 0.0  # earliest time of the next evaluation
        self._best = 0.0
        self._since = 0  # evaluations since the best one
        self.seen = ""  # result of the last evaluation, shown behind the loss

    def limit(self, seconds: float) -> None:
        """The phase takes ``seconds``: evaluations are limited to a small part of them."""
        self._limited = True
        if self._ranks.leads and self._judge is not None:
            self._images = self._judge.images_within(_LOOK_SHARE * seconds, device=self._device)

    def after_step(self, schedule: Schedule) -> None:
        """Evaluate if due; wind ``schedule`` down when patience is exhausted."""
        if schedule.done % LOOK_EVERY:
            return
        if self._ranks.leads and self._judge is not None and self._clock() >= self._next:
            began = self._clock()
            self._look(self._judge)
            ended = self._clock()
            self._next = ended + _REST * (ended - began) if self._limited else 0.0
        if self._ranks.from_lead(float(self._patience and self._since >= self._patience)):
            schedule.wind_down()

    def _look(self, judge: RangeAccuracy) -> None:
        shares = judge.look(self._images, device=self._device)
        if not shares:
            return
        self.seen = f", accuracy by cost {' '.join(f'{100 * share:.0f}' for share in shares)} %"
        mean = sum(shares) / len(shares)
        self._since = 0 if mean > self._best else self._since + 1
        self._best = max(mean, self._best)

    @property
    def state(self) -> dict[str, Any]:
        """State for resuming."""
        return {"best": self._best, "since": self._since, "seen": self.seen}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Resume from ``state``."""
        if state is not None:
            self._best, self._since, self.seen = state["best"], state["since"], state["seen"]
