"""A generated branch zoo of CIFAR-10's ResNet-56: true MACs and parameters, modelled accuracies.

No trained zoo is measured here. Structures follow MEEdge §3.2.1: 15 convolution parts times 7 fully connected parts are
105 branches per cut point. Accuracy is a seeded model: it rises with depth and, with falling returns, with a branch's
parameters, and has normal noise per structure and per branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from device_sdk.policies.placement import ExitCandidate

CLASSES = 10
POOLED = 4  # height and width before the fully connected layers
BYTES = 4  # per parameter
FULL_ACCURACY = 0.93

# (kind, kernel, layers): none, four kinds with three kernels, and two of two layers
CONVOLUTIONS = (
    ("none", 1, 0),
    *((kind, kernel, 1) for kind in ("depthwise", "separable", "spatial", "dilated") for kernel in (3, 5, 7)),
    ("separable", 3, 2),
    ("separable", 5, 2),
)
HIDDEN = ((), (128,), (512,), (2048,), (512, 128), (2048, 512), (4096, 2048))

# what is stored of a branch, as (share of the bytes, accuracy lost): whole, self-merged twice (§3.5.1), in int8
VARIANTS = ((1.0, 0.0), (2 / 3, 0.002), (0.5, 0.005), (0.25, 0.003))


@dataclass(frozen=True)
class Stage:
    """A cut point's tensor [channels, side, side], and the MACs of the block before it."""

    channels: int
    side: int
    macs: int


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


def branch_cost(stage: Stage, convolution: tuple[str, int, int], hidden: tuple[int, ...]) -> tuple[int, int]:
    """MACs and parameters. Every convolution halves the side; two layers of one kind halve it once each."""
    kind, kernel, layers = convolution
    channels, side = stage.channels, stage.side
    macs = parameters = 0
    taps = {"spatial": 2 * kernel}.get(kind, kernel**2)  # k x 1 and 1 x k, per channel
    for _ in range(layers):
        side = max(side // 2, POOLED)
        weights = channels * taps + (channels * channels if kind == "separable" else 0)
        macs, parameters = macs + weights * side**2, parameters + weights + 2 * channels
    widths = (channels * POOLED**2, *hidden, CLASSES)
    for inputs, outputs in pairwise(widths):
        macs, parameters = macs + inputs * outputs, parameters + (inputs + 1) * outputs
    return macs, parameters


def generated_zoo(count: int, *, cuts: int, seed: int) -> tuple[list[ExitCandidate], float]:
    """``count`` candidates drawn from the zoo at ``cuts`` evenly spaced cut points, and the full model's MACs.

    Variants join, in the order of ``VARIANTS``, once the structures alone are fewer than ``count``.
    """
    random = np.random.default_rng(seed)
    stages = resnet56()
    reached = list(accumulate(stage.macs for stage in stages))
    positions = np.linspace(1, len(stages) - 1, cuts).round().astype(int)
    structures = [(convolution, hidden) for convolution in CONVOLUTIONS for hidden in HIDDEN]
    luck = random.normal(0.0, 0.01, len(structures))
    variants = VARIANTS[: -(-count // (cuts * len(structures)))]
    candidates = []
    for position in map(int, positions):
        depth = reached[position - 1] / reached[-1]
        for number, (convolution, hidden) in enumerate(structures):
            macs, parameters = branch_cost(stages[position - 1], convolution, hidden)
            size = min(np.log(parameters / 1e3) / np.log(1e4), 1.0)  # 0 at a thousand, 1 at ten million
            share = 0.4 + 0.5 * depth**0.7 + 0.25 * (1.0 - depth) * size**0.7
            accuracy = FULL_ACCURACY * share + luck[number] + random.normal(0.0, 0.01)
            for variant, (kept, lost) in enumerate(variants):
                name = f"x{position}-{number}-{variant}"
                found = float(np.clip(accuracy - lost, 0.1, FULL_ACCURACY))
                bytes_ = int(parameters * BYTES * kept)
                candidates.append(ExitCandidate(name, position, found, reached[position - 1], macs, bytes_))
    chosen = sorted(random.choice(len(candidates), count, replace=False))
    return [candidates[number] for number in chosen], float(reached[-1] + 64 * CLASSES)
