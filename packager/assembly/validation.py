"""The packager's own validation: accuracy of sampled subnets by range of MACs (AdaptiveNet §4.2), and of exits.

The number of samples follows from the required standard errors. Subnets are compared with the original path on the same
samples: a paired difference has a much smaller standard error than either accuracy. Common prefixes of paths run once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.bundles.manifest import MacsRangeAccuracy
from device_sdk.progress import Progress, SilentProgress, Task
from device_sdk.runtimes import Array, LoadedStretch, OnnxRuntime
from device_sdk.supernet.plan import Subnet
from packager.exporting.export import ExportedBlocks
from packager.supernet.macs_ranges import MacsRanges
from packager.tasks import Classification, LearningTask

SUBNETS_PER_RANGE = 6
FIRST_SAMPLES = 48  # pilot samples, from which the required number is computed
ORIGINAL_ERROR = 0.01  # target standard error of the original path and the exits
RANGE_ERROR = 0.03  # target standard error of the difference between a range and the original path
_LEAST_ORIGINAL = 400
_LEAST_PAIRS = 200  # of a sample and a subnet, per range
_FIRST_SHARE = 0.1  # of the progress

Batch = tuple[npt.NDArray[np.float32], npt.NDArray[np.generic]]
Batches = Callable[[int], Iterable[Batch]]
"""Returns ``count`` samples, spread evenly over the data, as batches: inputs [batch, *input] and labels [batch, …]."""


@dataclass(frozen=True)
class Validation:
    """Results of the validation: accuracies, or the task's scores; of exits by id.

    ``samples`` and ``standard_error``: of the original path and the exits. ``range_samples``: samples per range;
    ``range_errors``: standard error of each range's difference from the original path on them.
    """

    original_accuracy: float
    range_accuracy: tuple[MacsRangeAccuracy, ...]
    exit_accuracy: Mapping[str, float]
    samples: int
    standard_error: float
    range_samples: int = 0
    range_errors: tuple[float, ...] = ()


def validate(
    exported: ExportedBlocks,
    batches: Batches,
    available: int,
    *,
    seed: int,
    threads: int,
    task: LearningTask | None = None,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
    progress: Progress | None = None,
) -> Validation:
    """Accuracy of the original path, of sampled subnets in each range of MACs, and of exits, on the device's runtime.

    1. run a few of the ``available`` samples to estimate variance and time; 2. run ranges, 3. original path and exits
    on as many samples as the standard errors require and ``seconds`` allow. No range is reported without added blocks.
    The result depends on ``clock`` only if time is short.
    """
    expansion = exported.expansion
    ranges = list(MacsRanges(expansion).samples(SUBNETS_PER_RANGE, seed=seed)) if expansion.trained else []
    subnets = [found for _, _, found in ranges]
    judging = _Judging(exported, batches, subnets, task or Classification(), threads=threads)
    opened = clock()
    try:
        with (progress or SilentProgress()).task("validate", 1.0) as shown:
            judging.open(shown)
            started = clock()
            first = judging.scores(min(FIRST_SAMPLES, available), 1, shown, share=_FIRST_SHARE)
            took = clock() - started
            plan = judging.plan(first, available, took=took, left=seconds - (clock() - opened))
            found, judged = judging.rest(plan, first, shown)
    finally:
        judging.close()
    return Validation(
        original_accuracy=float(found.original.mean()),
        range_accuracy=tuple(
            MacsRangeAccuracy(
                macs_ratio_low=round(low, 4),
                macs_ratio_high=round(high, 4),
                accuracy=float(score.mean()),
                subnets=len(number),
            )
            for (low, high, _), score, number in zip(ranges, judged.ranges, judged.used, strict=True)
        ),
        exit_accuracy={name: float(score.mean()) for name, score in found.exits.items()},
        samples=len(found.original),
        standard_error=_standard_error(found.original),
        range_samples=len(judged.original) if ranges else 0,
        range_errors=tuple(_standard_error(difference) for difference in judged.differences),
    )


@dataclass(frozen=True)
class _Scores:
    """Scores of the original path and of exits per sample, and of ranges per pair of sample and subnet.

    ``differences``: of the pairs, against the original path on the same sample. ``used``: subnets of each range.
    """

    original: npt.NDArray[np.float64]
    exits: Mapping[str, npt.NDArray[np.float64]]
    ranges: Sequence[npt.NDArray[np.float64]]
    differences: Sequence[npt.NDArray[np.float64]]
    used: Sequence[set[Subnet]]


@dataclass(frozen=True)
class _Plan:
    """Samples for the ranges, subnets per range and sample, samples for the original path."""

    ranges: int
    subnets: int
    original: int


class _Judging:
    """Computes scores of paths on samples. The subnets of a range alternate from batch to batch."""

    def __init__(
        self,
        exported: ExportedBlocks,
        batches: Batches,
        ranges: Sequence[Sequence[Subnet]],
        task: LearningTask,
        *,
        threads: int,
    ) -> None:
        self._batches = batches
        self._ranges = ranges
        self._task = task
        self._original = exported.expansion.supernet().original
        self._runs = PathRuns(exported, threads=threads, ran=self._ran)
        self._shown: Task | None = None
        self._share_of_macs = 0.0  # of the progress

    def open(self, shown: Task) -> None:
        """Load all blocks that will run."""
        for name in self._runs.open([self._original, *(subnet for found in self._ranges for subnet in found)]):
            shown.note(f"loading {name}")

    def close(self) -> None:
        self._runs.close()

    def plan(self, first: _Scores, available: int, *, took: float, left: float) -> _Plan:
        """Sample counts that the standard errors of the ``first`` scores require and the seconds ``left`` allow.

        ``took``: seconds of the first samples.
        """
        pairs = max(_needed(first.differences, RANGE_ERROR), _LEAST_PAIRS) if self._ranges else 0
        subnets = min(SUBNETS_PER_RANGE, math.ceil(pairs / available))
        ranges = min(available, math.ceil(pairs / max(subnets, 1)))
        original = min(available, max(_needed([first.original], ORIGINAL_ERROR), _LEAST_ORIGINAL))
        if left == math.inf:
            return _Plan(ranges, subnets, original)
        a_mac = took / (len(first.original) * self._macs(1))
        affordable = 0.7 * max(left, 0.0) / (a_mac * self._macs(subnets))
        ranges = min(ranges, int(affordable)) if affordable > len(first.original) else 0
        left -= ranges * a_mac * self._macs(subnets)
        return _Plan(ranges, subnets, min(original, max(0, int(left / (a_mac * self._macs(0))))))

    def rest(self, plan: _Plan, first: _Scores, shown: Task) -> tuple[_Scores, _Scores]:
        """The scores of the original path and the exits, and the scores of the ranges."""
        whole = plan.ranges * self._macs(plan.subnets)
        alone = plan.original * self._macs(0) if plan.original > max(len(first.original), plan.ranges) else 0.0
        left = (1.0 - _FIRST_SHARE) / max(whole + alone, 1.0)
        original = ranges = first
        if whole:
            original = ranges = self.scores(plan.ranges, plan.subnets, shown, share=left * whole)
        if alone:
            original = self.scores(plan.original, 0, shown, share=left * alone)
        if not whole and not alone:
            shown.advance(1.0 - _FIRST_SHARE)
        return original, ranges

    def scores(self, count: int, subnets: int, shown: Task, *, share: float) -> _Scores:
        """Scores of ``count`` samples, with ``subnets`` per range and batch; ``share``: of the progress bar."""
        self._shown = shown
        ranges = self._ranges if subnets else []
        shown.note(f"{count} samples, the original path" + " and each range of cost" * bool(ranges))
        original: list[npt.NDArray[np.float64]] = []
        exits: dict[str, list[npt.NDArray[np.float64]]] = {}
        pairs: list[list[tuple[Subnet, npt.NDArray[np.float64], npt.NDArray[np.float64]]]] = [[] for _ in ranges]
        for number, (inputs, labels) in enumerate(self._batches(count)):
            turns = [[r[(number * subnets + k) % len(r)] for k in range(min(subnets, len(r)))] for r in ranges]
            paths = list(dict.fromkeys([self._original, *(path for turn in turns for path in turn)]))
            self._share_of_macs = share / count / self._runs.macs(paths)
            scores = self._of_batch(paths, inputs, labels)
            original.append(scores[self._original])
            for name in scores.keys() - set(paths):
                exits.setdefault(str(name), []).append(scores[name])
            for found, turn in zip(pairs, turns, strict=True):
                found += [(path, scores[path], scores[path] - scores[self._original]) for path in turn]
        return _Scores(
            original=np.concatenate(original),
            exits={name: np.concatenate(found) for name, found in exits.items()},
            ranges=[np.concatenate([score for _, score, _ in found]) for found in pairs],
            differences=[np.concatenate([difference for _, _, difference in found]) for found in pairs],
            used=[{path for path, _, _ in found} for found in pairs],
        )

    def _of_batch(
        self, paths: Sequence[Subnet], inputs: npt.NDArray[np.float32], labels: npt.NDArray[np.generic]
    ) -> dict[Subnet | str, npt.NDArray[np.float64]]:
        targets = torch.from_numpy(labels)
        return {
            path: self._task.score(torch.from_numpy(answer), targets).double().numpy()
            for path, answer in self._runs.answers(paths, inputs)
        }

    def _macs(self, subnets: int) -> float:
        """Mean MACs per sample with ``subnets`` per range; common prefixes count for each."""
        means = [sum(self._runs.macs([path]) for path in found) / len(found) for found in self._ranges]
        return max(1.0, self._runs.macs([self._original]) + subnets * sum(means))

    def _ran(self, macs: float) -> None:
        if self._shown is not None:
            self._shown.advance(macs * self._share_of_macs)


def _needed(samples: Sequence[npt.NDArray[np.float64]], error: float) -> int:
    """The number of samples that reduces all standard errors to ``error``.

    Two pseudo-samples, half a point above and below the mean, prevent a zero variance if few samples agree by chance.
    """
    spreads = [float(np.var([*found, *(found.mean() + np.array([-0.5, 0.5]))])) for found in samples]
    return math.ceil(max(spreads, default=0.0) / error**2)


def _standard_error(values: npt.NDArray[np.float64]) -> float:
    return float(np.std(values) / math.sqrt(len(values)))


class PathRuns:
    """Runs subnets and exits of ``exported`` block by block, in sessions that keep no memory between runs.

    ``ran`` is called after every block with its MACs for the whole batch. ``close`` frees the sessions.
    """

    def __init__(self, exported: ExportedBlocks, *, threads: int, ran: Callable[[float], None]) -> None:
        self._exported = exported
        self._runtime = OnnxRuntime(threads=threads, lean=True)
        self._ran = ran
        self._sessions: dict[str, LoadedStretch] = {}
        expansion = exported.expansion
        self._macs = {block.id: block.macs for block in expansion.blocks}
        self._macs |= {exit_.id: exit_.macs for exit_ in expansion.exits}
        self._exits: dict[int, list[str]] = {}
        for exit_ in expansion.exits:
            self._exits.setdefault(exit_.position, []).append(exit_.id)
        self._original = tuple(block.id for block in expansion.originals)
        self._with_exits = False

    def macs(self, subnets: Sequence[Subnet]) -> float:
        """MACs of ``answers`` per sample."""
        prefixes = {subnet.block_ids[: k + 1] for subnet in subnets for k in range(len(subnet.block_ids))}
        exits = [name for names in self._exits.values() for name in names]
        with_exits = any(subnet.block_ids == self._original for subnet in subnets)
        return float(
            sum(self._macs[part[-1]] for part in prefixes) + sum(self._macs[part] for part in exits) * with_exits
        )

    def open(self, subnets: Sequence[Subnet]) -> Iterator[str]:
        """Load the blocks of ``subnets`` one by one. Otherwise they are loaded when they first run."""
        for block in dict.fromkeys(block for subnet in subnets for block in subnet.block_ids):
            yield block
            self._session(block)

    def answers(self, subnets: Sequence[Subnet], inputs: Array) -> Iterator[tuple[Subnet | str, Array]]:
        """The answer [batch, …] of each subnet, and of each exit, by id, if the original path is among them.

        ``inputs``: prepared [batch, *input]. The prefix tree of the subnets is traversed depth first.
        """
        self._with_exits = any(subnet.block_ids == self._original for subnet in subnets)
        yield from self._walk([inputs], list(subnets), 0)

    def close(self) -> None:
        """Free the sessions. Idempotent."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def _walk(self, features: list[Array], subnets: list[Subnet], depth: int) -> Iterator[tuple[Subnet | str, Array]]:
        while True:
            if self._with_exits and subnets[0].block_ids[:depth] == self._original[:depth]:
                for name in self._exits.get(depth, ()):
                    yield name, self._run(name, features)[-1]
            following: dict[str, list[Subnet]] = {}
            for subnet in subnets:
                if len(subnet.block_ids) == depth:
                    yield subnet, features[-1]
                else:
                    following.setdefault(subnet.block_ids[depth], []).append(subnet)
            if not following:
                return
            *others, last = following
            for name in others:
                yield from self._walk(self._run(name, features), following[name], depth + 1)
            features, subnets, depth = self._run(last, features), following[last], depth + 1

    def _run(self, part: str, features: list[Array]) -> list[Array]:
        found = self._session(part).run(features)
        self._ran(self._macs[part] * len(features[0]))
        return found

    def _session(self, part: str) -> LoadedStretch:
        if part not in self._sessions:
            is_exit = any(part in names for names in self._exits.values())
            stretch = self._exported.stretch([], part) if is_exit else self._exported.stretch([part])
            self._sessions[part] = self._runtime.load(stretch)
        return self._sessions[part]
