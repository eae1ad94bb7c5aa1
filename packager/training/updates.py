"""Batch and learning rate for the number of updates that a phase can make (recipe: ``auto``).

The reference rates hold for thousands of updates with batches of 128. With fewer updates:

1. The batch is the largest power of two, from 8 to the recipe's, with at least ``WANTED`` updates; else the smallest.
2. The rate is scaled down with the batch, since gradients of small batches are noisier: linearly for SGD (Goyal et al.
   2017, "Accurate, large minibatch SGD"), by its square root for Adam (Malladi et al. 2022, "On the SDEs and scaling
   rules for adaptive gradient algorithms").
3. It is scaled by the square root of ``updates / USUAL`` below ``USUAL`` updates: few updates can neither recover from
   the first steps at a high rate nor average out their noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WANTED = 300
USUAL = 2_000
LEAST_BATCH = 8
_USUAL_BATCH = 128


@dataclass(frozen=True)
class Updates:
    """Samples per update, and the peak learning rate."""

    batch: int
    rate: float


def fitting_updates(
    *,
    highest_rate: float,
    largest_batch: int,
    adaptive: bool,
    seconds_per_sample: float | None = None,
    seconds: float | None = None,
    updates: int | None = None,
    least_batch: int = LEAST_BATCH,
) -> Updates:
    """Batch and rate for the updates that fit into ``seconds``, or for a given number of ``updates``.

    Args:
        highest_rate: peak rate for thousands of updates with batches of 128.
        largest_batch: the recipe's batch; used as it is if ``updates`` is given.
        adaptive: scale as for Adam, else as for SGD.
        seconds_per_sample: time of an update per sample.
    """
    batch = largest_batch
    if updates is None:
        assert seconds is not None
        assert seconds_per_sample is not None
        samples = seconds / max(seconds_per_sample, 1e-9)
        smaller = [2**k for k in range(largest_batch.bit_length()) if least_batch <= 2**k <= largest_batch]
        fitting = [size for size in smaller if samples / size >= WANTED]
        batch = max(fitting, default=min(smaller, default=largest_batch))
        updates = max(1, round(samples / batch))
    relative = batch / _USUAL_BATCH
    by_batch = math.sqrt(relative) if adaptive else relative
    return Updates(batch, highest_rate * by_batch * math.sqrt(min(1.0, updates / USUAL)))
