"""The packager's own validation: accuracy of sampled subnets by range of cost (AdaptiveNet §4.2), and of exits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from device_sdk.bundles.manifest import LatencyRangeAccuracy
from device_sdk.cost import CostModel, EdgeCost
from device_sdk.graph import Edge, Subnet
from device_sdk.runtimes import OnnxRuntime
from device_sdk.search.evaluation import PrefixTreeEvaluator
from packager.exporting.export import ExportedBlocks
from packager.macs_ranges import MacsRanges
from packager.tasks import LearningTask

SUBNETS_PER_RANGE = 6
_BATCH = 64


@dataclass(frozen=True)
class Validation:
    """What the packager's validation found: shares of right answers, or the task's scores; those of exits by ids."""

    original_accuracy: float
    range_accuracy: tuple[LatencyRangeAccuracy, ...]
    exit_accuracy: Mapping[str, float]


def validate(
    exported: ExportedBlocks,
    inputs: npt.NDArray[np.float32],
    labels: npt.NDArray[np.generic],
    *,
    seed: int,
    threads: int,
    task: LearningTask | None = None,
) -> Validation:
    """Accuracy of the original path, of sampled subnets in each range of MACs and of exits, run as a device runs them.

    ``inputs``: prepared [count, *input]; ``labels``: [count, …] as the task has them (default: classification). Without
    added blocks no range is reported.
    """
    expansion, runtime = exported.expansion, OnnxRuntime(threads=threads)
    original = expansion.supernet().original
    ranges = list(MacsRanges(expansion).samples(SUBNETS_PER_RANGE, seed=seed)) if expansion.trained else []
    subnets = list(dict.fromkeys([original, *(subnet for _, _, found in ranges for subnet in found)]))
    classes = labels.astype(np.int64)
    if task is None or task.kind == "classification":
        accuracies = _shares_right(exported, runtime, subnets, inputs, classes)
    else:
        accuracies = _scores(exported, runtime, subnets, inputs, labels, task)
    accuracy = dict(zip(subnets, accuracies, strict=True))
    return Validation(
        original_accuracy=accuracy[original],
        range_accuracy=tuple(
            LatencyRangeAccuracy(
                macs_ratio_low=round(low, 4),
                macs_ratio_high=round(high, 4),
                accuracy=float(np.mean([accuracy[subnet] for subnet in found])),
                subnets=len(found),
            )
            for low, high, found in ranges
        ),
        exit_accuracy=_exit_accuracy(exported, inputs, classes, runtime) if expansion.exits else {},
    )


def _shares_right(
    exported: ExportedBlocks,
    runtime: OnnxRuntime,
    subnets: Sequence[Subnet],
    inputs: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
) -> list[float]:
    """Accuracies of classifiers, what they share computed once."""
    expansion = exported.expansion
    # MACs stand in for latency: only the order of costs matters to the evaluator
    costs = {Edge(block.id): EdgeCost(block.macs, block.macs, 0, 0) for block in expansion.blocks}
    evaluator = PrefixTreeEvaluator(
        expansion.supernet(),
        lambda edges: runtime.load(exported.stretch([edge.block for edge in edges])),
        inputs,
        labels,
        CostModel(costs),
    )
    try:
        return evaluator.accuracies(subnets)
    finally:
        evaluator.close()


def _scores(
    exported: ExportedBlocks,
    runtime: OnnxRuntime,
    subnets: Sequence[Subnet],
    inputs: npt.NDArray[np.float32],
    labels: npt.NDArray[np.generic],
    task: LearningTask,
) -> list[float]:
    """The task's mean scores of whole subnets."""
    found = []
    for subnet in subnets:
        loaded, total = runtime.load(exported.stretch(subnet.block_ids)), 0.0
        for first in range(0, len(inputs), _BATCH):
            batch = slice(first, first + _BATCH)
            answers = torch.from_numpy(loaded.run([inputs[batch]])[-1])
            total += float(task.score(answers, torch.from_numpy(labels[batch])).sum())
        loaded.close()
        found.append(total / len(inputs))
    return found


def _exit_accuracy(
    exported: ExportedBlocks, inputs: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], runtime: OnnxRuntime
) -> dict[str, float]:
    """Accuracy of each exit behind the original path, which is run once, in stretches from exit to exit."""
    expansion = exported.expansion
    originals = [block.id for block in expansion.originals]
    exits = sorted(expansion.exits, key=lambda exit_: exit_.position)
    positions = sorted({exit_.position for exit_ in exits})
    stretches = {
        end: runtime.load(exported.stretch(originals[start:end])) for start, end in itertools.pairwise([0, *positions])
    }
    branches = {exit_.id: runtime.load(exported.stretch([], exit_.id)) for exit_ in exits}
    right = dict.fromkeys(branches, 0)
    try:
        for first in range(0, len(inputs), _BATCH):
            features = [inputs[first : first + _BATCH]]
            for position, stretch in stretches.items():
                features = stretch.run(features)
                for exit_ in exits:
                    if exit_.position == position:
                        answers = branches[exit_.id].run(features)[-1].argmax(axis=-1)
                        right[exit_.id] += int(np.count_nonzero(answers == labels[first : first + _BATCH]))
    finally:
        for loaded in (*stretches.values(), *branches.values()):
            loaded.close()
    return {name: count / len(labels) for name, count in right.items()}
