"""Candidates for placement: of a trained branch zoo, and generated ones of CIFAR-10's ResNet-56 in any number.

Generated are the specs of the packager's branch zoo, with their true MACs and parameters. Their accuracy is a seeded
model: it rises with depth and, with falling returns, with a branch's parameters, and has normal noise per structure and
per branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from benchmarks.exits.networks import RESNET56
from benchmarks.exits.sets import zoo_bundle
from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import CHECKOUT
from device_sdk.bundles.bundle import Bundle
from device_sdk.policies.placement import ExitCandidate, candidates_by_macs
from packager.branch_zoo.specs import GRID, branch_cost, specs_for

CLASSES = 10
FULL_ACCURACY = 0.93
TRAINED = CHECKOUT / "zoo" / "resnet56-cifar10-exits.safetensors"

# what is stored of a branch, as (share of the bytes, accuracy lost): whole, self-merged twice (§3.5.1), in int8
VARIANTS = ((1.0, 0.0), (2 / 3, 0.002), (0.5, 0.005), (0.25, 0.003))


@dataclass(frozen=True)
class Stage:
    """A cut point's tensor [channels, side, side], and the MACs of the block before it."""

    channels: int
    side: int
    macs: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the tensor."""
        return (self.channels, self.side, self.side)


def resnet56() -> list[Stage]:
    """Behind each of the 27 blocks; the stem's MACs count to the first."""
    stages = []
    channels = 16
    for width, side in ((16, 32), (32, 16), (64, 8)):
        for _ in range(9):
            stages.append(Stage(width, side, 9 * side**2 * width * (channels + width)))
            channels = width
    stem = 9 * 32**2 * 3 * 16
    return [Stage(16, 32, stages[0].macs + stem), *stages[1:]]


def trained_zoo(options: BenchOptions) -> tuple[list[ExitCandidate], float] | None:
    """The exits of zoo/ by their accuracy on test.zip#calibration, and the full model's MACs; None without them."""
    if not TRAINED.exists():
        return None
    return candidates_by_macs(Bundle.open(zoo_bundle(options, RESNET56).folder).supernet)


def generated_zoo(count: int, *, cuts: int, seed: int) -> tuple[list[ExitCandidate], float]:
    """``count`` candidates drawn from the zoo at ``cuts`` evenly spaced cut points, and the full model's MACs.

    Variants join, in the order of ``VARIANTS``, once the structures alone are fewer than ``count``.
    """
    random = np.random.default_rng(seed)
    stages = resnet56()
    reached = list(accumulate(stage.macs for stage in stages))
    positions = np.linspace(1, len(stages) - 1, cuts).round().astype(int)
    luck = {spec.name: random.normal(0.0, 0.01) for spec in GRID}
    variants = VARIANTS[: -(-count // (cuts * len(GRID)))]
    candidates = []
    for position in map(int, positions):
        depth = reached[position - 1] / reached[-1]
        for spec in specs_for(stages[position - 1].shape):
            cost = branch_cost(spec, stages[position - 1].shape, classes=CLASSES)
            size = min(np.log(cost.parameters / 1e2) / np.log(1e4), 1.0)  # 0 at a hundred, 1 at a million
            share = 0.4 + 0.5 * depth**0.7 + 0.25 * (1.0 - depth) * size**0.7
            accuracy = FULL_ACCURACY * share + luck[spec.name] + random.normal(0.0, 0.01)
            for variant, (kept, lost) in enumerate(variants):
                name = f"{spec.exit_id(position)}-{variant}"
                found = float(np.clip(accuracy - lost, 0.1, FULL_ACCURACY))
                reach = float(reached[position - 1])
                candidates.append(
                    ExitCandidate(name, position, found, reach, float(cost.macs), int(cost.nbytes * kept))
                )
    chosen = sorted(random.choice(len(candidates), count, replace=False))
    return [candidates[number] for number in chosen], float(reached[-1] + 64 * CLASSES)
