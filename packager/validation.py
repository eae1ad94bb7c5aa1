"""The packager's own validation: accuracy of sampled subnets by range of cost (AdaptiveNet §4.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.cost import CostModel, EdgeCost
from device_sdk.graph import Edge
from device_sdk.manifest import LatencyRangeAccuracy
from device_sdk.runtimes import OnnxRuntime
from device_sdk.search.evaluation import PrefixTreeEvaluator
from packager.export import ExportedBlocks
from packager.training import MacsRanges

SUBNETS_PER_RANGE = 6


@dataclass(frozen=True)
class Validation:
    """What the packager's validation found: shares of right answers, 0 to 1."""

    original_accuracy: float
    range_accuracy: tuple[LatencyRangeAccuracy, ...]


def validate(
    exported: ExportedBlocks,
    inputs: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    *,
    seed: int,
    threads: int,
) -> Validation:
    """Accuracy of the original path and of sampled subnets in each range of MACs, run as a device runs them.

    ``inputs``: prepared [count, *input]; ``labels``: [count] int64.
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
    ranges = list(MacsRanges(expansion).samples(SUBNETS_PER_RANGE, seed=seed))
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
        )
    finally:
        evaluator.close()
