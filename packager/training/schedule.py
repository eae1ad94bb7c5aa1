"""Length, learning rate and batch of a training phase, in steps or in seconds across interruptions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

_WINDING = 0.1  # of the steps done: length of the decay after early stopping
_LOWEST = 1e-3  # of the peak rate
WANTED = 300
USUAL = 2_000
LEAST_BATCH = 8
_USUAL_BATCH = 128


class Schedule:
    """Progress of a phase, from 0 to 1.

    With ``steps`` the number of steps is fixed; with ``seconds`` as many run as fit, counting the ``elapsed`` seconds
    of interrupted runs. ``winding_from``: the step and the progress at which ``wind_down`` was called.
    """

    def __init__(
        self,
        *,
        steps: int | None,
        seconds: float | None,
        done: int = 0,
        elapsed: float = 0.0,
        winding_from: tuple[int, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = steps
        self._seconds = seconds
        self._earlier = elapsed
        self.winding_from = winding_from
        self._clock = clock
        self._started = clock()
        self.done = done

    @property
    def elapsed(self) -> float:
        """Seconds spent in this phase, earlier runs included."""
        return self._earlier + self._clock() - self._started

    @property
    def progress(self) -> float:
        """The fraction that is done, in [0, 1]."""
        if self.winding_from is None:
            return self._planned
        step, progress = self.winding_from
        wound = (self.done - step) / max(1, round(_WINDING * step))
        return 1.0 if wound >= 1.0 else max(self._planned, progress + (1.0 - progress) * wound)

    @property
    def _planned(self) -> float:
        """The progress without early stopping."""
        if self._steps is not None:
            return min(1.0, self.done / self._steps) if self._steps else 1.0
        assert self._seconds is not None
        return min(1.0, self.elapsed / self._seconds) if self._seconds else 1.0

    @property
    def over(self) -> bool:
        """True if the phase's steps or time are used up."""
        return self.progress >= 1.0

    def wind_down(self) -> None:
        """Stop early: the rate decays over a further tenth of the steps done so far."""
        if self.winding_from is None:
            self.winding_from = (self.done, self.progress)

    def rate(self, highest: float, *, warmup: float = 0.03) -> float:
        """The current learning rate: linear warm-up, then cosine decay; linear decay after ``wind_down``."""
        if self.winding_from is not None:
            _, started = self.winding_from
            left = (1.0 - self.progress) / max(1.0 - started, 1e-9)
            return max(self._cosine(highest, started, warmup) * left, highest * _LOWEST)
        return self._cosine(highest, self.progress, warmup)

    @staticmethod
    def _cosine(highest: float, progress: float, warmup: float) -> float:
        if progress < warmup:
            return highest * max(progress / warmup, 0.05)
        return highest * max(0.5 * (1 + math.cos(math.pi * (progress - warmup) / (1 - warmup))), _LOWEST)


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

    The reference rates hold for thousands of updates with batches of 128. With fewer updates:

    1. The batch is the largest power of two, from 8 to the recipe's, with at least ``WANTED`` updates; else the
       smallest. 2. The rate is scaled down with the batch, since gradients of small batches are noisier: linearly for
       SGD (Goyal et al. 2017, "Accurate, large minibatch SGD"), by its square root for Adam (Malladi et al. 2022, "On
       the SDEs and scaling rules for adaptive gradient algorithms"). 3. It is scaled by the square root of ``updates /
       USUAL`` below ``USUAL`` updates: few can neither recover from the first steps nor average out their noise.

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
