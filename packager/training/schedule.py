"""How long a training phase lasts: a number of steps, or a share of a time budget, across interruptions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

_WINDING = 0.1  # of the steps done: how long a phase that is cut short still takes
_LOWEST = 1e-3  # of the highest rate


class Schedule:
    """Tells how far a phase is, from 0 to 1, and when it is over.

    With ``steps`` the same steps are done whatever the machine; with ``seconds`` as many as fit, counting the
    ``elapsed`` seconds of earlier runs. ``winding_from``: the step and the progress at which ``wind_down`` was called.
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
        """The share that is done, in [0, 1]."""
        if self.winding_from is None:
            return self._planned
        step, progress = self.winding_from
        wound = (self.done - step) / max(1, round(_WINDING * step))
        return 1.0 if wound >= 1.0 else max(self._planned, progress + (1.0 - progress) * wound)

    @property
    def _planned(self) -> float:
        """What would be done if the phase was not cut short."""
        if self._steps is not None:
            return min(1.0, self.done / self._steps) if self._steps else 1.0
        assert self._seconds is not None
        return min(1.0, self.elapsed / self._seconds) if self._seconds else 1.0

    @property
    def over(self) -> bool:
        """Whether the phase has had its steps or its time."""
        return self.progress >= 1.0

    def wind_down(self) -> None:
        """End early: a tenth of the steps done so far follow, in which the rate falls to almost nothing."""
        if self.winding_from is None:
            self.winding_from = (self.done, self.progress)

    def rate(self, highest: float, *, warmup: float = 0.03) -> float:
        """The learning rate now: a short linear warm-up, then a cosine down to almost nothing; linear if cut short."""
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
