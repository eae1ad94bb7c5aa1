"""Which identity blocks are worth shipping: seen after the training, on data that it did not use."""

from __future__ import annotations

from device_sdk.supernet.plan import Edge, Subnet
from packager.supernet.expansion import Expansion
from packager.supernet.macs_ranges import MacsRanges
from packager.training.range_accuracy import RangeAccuracy

_PATHS_PER_RANGE = 4
_TRIES = 3  # paths into which a skip is put to judge it


def without_useless_skips(expansion: Expansion, judge: RangeAccuracy, *, points: float, seed: int) -> Expansion:
    """The expansion without the identities that cost too much accuracy, and a note that names them.

    Sampled paths are judged; a skip is put into the most accurate of those that it fits. It stays if the best path so
    made loses at most ``points`` (percentage points) against the best of the range of MACs in which that path lies.
    """
    skips = [Edge(block.id) for block in expansion.added if block.kind == "identity"]
    if not skips:
        return expansion
    ranges = MacsRanges(expansion)
    accuracy = _sampled(expansion, ranges, judge, seed=seed)
    best: dict[int, float] = {}
    for path, share in accuracy.items():
        number = ranges.range_of(path)
        best[number] = max(share, best.get(number, 0.0))
    lost = {skip.block: _lost(skip, accuracy, best, ranges, judge) for skip in skips}
    useless = [name for name, share in lost.items() if 100 * share > points]
    if not useless:
        return expansion
    note = f"identity blocks left out, each costs more than {points:g} points: {', '.join(useless)}"
    return expansion.without(useless).noting(note)


def _sampled(expansion: Expansion, ranges: MacsRanges, judge: RangeAccuracy, *, seed: int) -> dict[Subnet, float]:
    """Accuracy of the original path and of some of each range."""
    paths = [expansion.supernet().original]
    for _, _, sampled in ranges.samples(_PATHS_PER_RANGE, seed=seed):
        paths += sampled
    paths = list(dict.fromkeys(paths))
    return dict(zip(paths, judge.accuracies(paths), strict=True))


def _lost(
    skip: Edge, accuracy: dict[Subnet, float], best: dict[int, float], ranges: MacsRanges, judge: RangeAccuracy
) -> float:
    """Share of right answers that the best path over ``skip`` lacks against its range; negative where it is better."""
    ranked = sorted(accuracy, key=lambda path: -accuracy[path])
    fitting = [made for path in ranked if (made := ranges.with_skip(path, skip)) is not None][:_TRIES]
    return min(
        best.get(ranges.range_of(path), 0.0) - share
        for path, share in zip(fitting, judge.accuracies(fitting), strict=True)
    )
