"""Removes identity blocks that cost too much accuracy, judged after the training on held-out data."""

from __future__ import annotations

from collections.abc import Callable

import torch

from device_sdk.progress import Progress
from device_sdk.supernet.plan import Edge, Subnet
from packager.supernet.blocks.streams import several
from packager.supernet.expansion import Expansion
from packager.supernet.macs_ranges import MacsRanges
from packager.tasks import LearningTask
from packager.training.range_accuracy import RangeAccuracy

_SAMPLES = 512  # held-out samples on which skips are judged
_PATHS_PER_RANGE = 4
_TRIES = 3  # paths into which a skip is put to judge it


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
