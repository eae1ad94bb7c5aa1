"""The packager's own validation: accuracy of sampled subnets by range of cost (AdaptiveNet §4.2), and of exits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.manifest import LatencyRangeAccuracy
from device_sdk.cost import CostModel, EdgeCost
from device_sdk.graph import Edge
from device_sdk.runtimes import OnnxRuntime
from device_sdk.search.evaluation import PrefixTreeEvaluator
from packager.export import ExportedBlocks
from packager.macs_ranges import MacsRanges

SUBNETS_PER_RANGE = 6
_BATCH = 64


@dataclass(frozen=True)
class Validation:
    """What the packager's validation found: shares of right answers, 0 to 1; those of exits by their ids."""

    original_accuracy: float
    range_accuracy: tuple[LatencyRangeAccuracy, ...]
    exit_accuracy: Mapping[str, float]


def validate(
    exported: ExportedBlocks,
    inputs: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    *,
    seed: int,
    threads: int,
) -> Validation:
    """Accuracy of the original path, of sampled subnets in each range of MACs and of exits, run as a device runs them.

    ``inputs``: prepared [count, *input]; ``labels``: [count] int64. Without added blocks no range is reported.
    """
    expansion = exported.expansion
    supernet = expansion.supernet()
    # MACs stand in for latency: only the order of costs matters to the evaluator
    costs = {Edge(block.id): EdgeCost(block.macs, block.macs, 0, 0) for block in expansion.blocks}
    runtime = OnnxRuntime(threads=threads)
    evaluator = PrefixTreeEvaluator(
        supernet,
        lambda edges: runtime.load(exported.stretch([edge.block for edge in edges])),
        inputs,
        labels,
        CostModel(costs),
    )
    ranges = list(MacsRanges(expansion).samples(SUBNETS_PER_RANGE, seed=seed)) if expansion.trained else []
    try:
        evaluator.accuracies([supernet.original, *(subnet for _, _, subnets in ranges for subnet in subnets)])
        return Validation(
            original_accuracy=evaluator.accuracies([supernet.original])[0],
            range_accuracy=tuple(
                LatencyRangeAccuracy(
                    macs_ratio_low=round(low, 4),
                    macs_ratio_high=round(high, 4),
                    accuracy=float(np.mean(evaluator.accuracies(subnets))),
                    subnets=len(subnets),
                )
                for low, high, subnets in ranges
            ),
            exit_accuracy=_exit_accuracy(exported, inputs, labels, runtime),
        )
    finally:
        evaluator.close()


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
