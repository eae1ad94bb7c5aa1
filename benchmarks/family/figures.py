"""The figures of ``family``, computed from what was chosen and how it was judged.

Array legend: latency l, sample s. ``right``: correctness of one path's answers, [s].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.support.judged import Right
from benchmarks.support.paired import bootstrap_points
from benchmarks.sure.ladder import keeps
from device_sdk.supernet.plan import Subnet

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Duel:
    """A latency, as a ratio to the full model's: what adaptation chose, None where it refused, and the rival rung."""

    limit_ratio: float
    ours: Subnet | None
    rival: Subnet


@dataclass(frozen=True)
class JudgedFamily:
    """The duels of a family, and what its paths are.

    ``ratios``: latencies over the full model's, of rungs and choices in one run. ``right``: on #report, of rivals and
    choices. ``stitched``: choices with a stitch. ``path_bytes``: of the blobs of choices and rungs.
    """

    duels: Sequence[Duel]
    rungs: Sequence[Subnet]
    ratios: Mapping[Subnet, float]
    right: Mapping[Subnet, Right]
    stitched: Collection[Subnet]
    path_bytes: Mapping[Subnet, int]

    @property
    def chosen(self) -> list[Subnet]:
        """The choices, each once."""
        return list(dict.fromkeys(one.ours for one in self.duels if one.ours is not None))

    @property
    def on_front(self) -> set[Subnet]:
        """The paths on the joint front of latency and accuracy of rivals and choices."""
        paths = list(dict.fromkeys([*self.chosen, *(one.rival for one in self.duels)]))
        latencies = np.array([self.ratios[one] for one in paths])
        accuracies = np.array([self.right[one].mean() for one in paths])
        flags = front(latencies, accuracies)
        return {one for one, is_on_front in zip(paths, flags, strict=True) if is_on_front}

    def bytes_over_member(self, path: Subnet) -> float:
        """Bytes of ``path`` over those of the member nearest to it."""
        return self.path_bytes[path] / self.path_bytes[nearest_member(path, self.rungs, self.ratios)]


def figures_of(judged: JudgedFamily) -> dict[str, float]:
    """All figures but those of packaging and adapting; one that cannot be computed is left out, and so misses."""
    pairs = [(one, one.ours) for one in judged.duels if one.ours is not None]
    figures = {"refused_runs": float(len(judged.duels) - len(pairs))}
    if not pairs:
        return figures
    ours = np.array([judged.right[path] for _, path in pairs], dtype=np.float64)
    rivals = np.array([judged.right[duel.rival] for duel, _ in pairs], dtype=np.float64)
    mean, low = gain_points(ours, rivals)
    rungs, on_front = set(judged.rungs), judged.on_front
    new = [one for one in judged.chosen if one not in rungs and one in on_front]
    return figures | {
        "mean_gain_points": mean,
        "mean_gain_low_points": low,
        "worst_gap_points": worst_gap_points(ours, rivals),
        "front_points": float(len(new)),
        "stitched_points": float(sum(one in judged.stitched for one in new)),
        "over_budget_share": float(np.mean([not keeps(judged.ratios[path], duel.limit_ratio) for duel, path in pairs])),
        "part_bytes_over_member": max(map(judged.bytes_over_member, judged.chosen)),
    }


def evenly_spaced(ratios: Sequence[float], count: int) -> list[float]:
    """Latencies from the fastest to the slowest of ``ratios``, evenly spaced in their logarithm."""
    return [float(one) for one in np.geomspace(min(ratios), max(ratios), count)]


def rival(latencies: Floats, accuracies: Floats, limit: float) -> int:
    """The place of the most accurate rung that measures at most ``limit``, of equals the slowest.

    Where none does, that of the fastest rung.
    """
    fitting = np.flatnonzero(latencies <= limit)
    if not fitting.size:
        return int(latencies.argmin())
    return int(max(fitting, key=lambda place: (accuracies[place], latencies[place])))


def gain_points(ours: Floats, rivals: Floats) -> tuple[float, float]:
    """Mean of ours − rival [l, s] in points, and the lower end of its 95 % interval over the samples."""
    difference = (ours - rivals).mean(axis=0)
    low, _ = bootstrap_points(difference)
    return 100 * float(difference.mean()), low


def worst_gap_points(ours: Floats, rivals: Floats) -> float:
    """The largest rival − ours [l, s] over the latencies, in points; negative where ours is always better."""
    return 100 * float((rivals - ours).mean(axis=1).max())


def front(latencies: Floats, accuracies: Floats) -> npt.NDArray[np.bool_]:
    """Flags of the points that no other dominates: faster or more accurate, and in neither worse."""
    faster, slower = latencies[:, None] < latencies, latencies[:, None] > latencies
    better, worse = accuracies[:, None] > accuracies, accuracies[:, None] < accuracies
    dominates = (faster | better) & ~slower & ~worse
    return np.logical_not(np.any(dominates, axis=0))


def rendition_of(path: Subnet) -> str:
    """The rendition of most blocks of ``path``."""
    return Counter(edge.rendition for edge in path.edges).most_common(1)[0][0]


def nearest_member(path: Subnet, rungs: Sequence[Subnet], ratios: Mapping[Subnet, float]) -> Subnet:
    """The rung of the member nearest to ``path`` in latency, in the same rendition and at the same input size."""
    alike = [one for one in rungs if rendition_of(one) == rendition_of(path) and one.input_size == path.input_size]
    return min(alike or rungs, key=lambda one: abs(float(np.log(ratios[one] / ratios[path]))))
