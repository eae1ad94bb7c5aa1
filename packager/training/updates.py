"""How many updates a phase can make, and the batch and learning rate that suit so many (recipe: ``auto``).

Rates and batches that are known to work were found with thousands of updates of 128 samples. With fewer updates:

1. The batch is the largest power of two, from 8 to the recipe's, that leaves ``WANTED`` updates; else the least.
2. The rate falls with the batch, since gradients of small batches are noisier: in proportion to it for plain descent
   (Goyal et al. 2017, "Accurate, large minibatch SGD"), with its square root for Adam, whose updates have the length
   of the rate whatever the gradient (Malladi et al. 2022, "On the SDEs and scaling rules for adaptive gradient
   algorithms").
3. It falls with the square root of the share that there is of ``USUAL`` updates: a few updates can neither correct
   what high rates do at first nor average over their noise.
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
    """The samples of an update, and the highest learning rate."""

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
    """Batch and rate for what fits in ``seconds`` at ``seconds_per_sample`` of an update, or for so many ``updates``.

    ``highest_rate``: for thousands of updates with batches of 128. ``adaptive``: of Adam, else of plain descent.
    ``updates`` given: the batch stays.
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
