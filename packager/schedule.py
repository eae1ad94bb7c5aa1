"""How long a training phase lasts: a number of steps, or a share of a time budget, across interruptions."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Schedule:
    """Tells how far a phase is, from 0 to 1, and when it is over.

    With ``steps`` the same steps are done whatever the machine; with ``seconds`` as many as fit, counting the
    ``elapsed`` seconds of earlier runs.
    """

    def __init__(
        self,
        *,
        steps: int | None,
        seconds: float | None,
        done: int = 0,
        elapsed: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = steps
        self._seconds = seconds
        self._earlier = elapsed
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
        if self._steps is not None:
            return min(1.0, self.done / self._steps) if self._steps else 1.0
        assert self._seconds is not None
        return min(1.0, self.elapsed / self._seconds) if self._seconds else 1.0

    @property
    def over(self) -> bool:
        """Whether the phase has had its steps or its time."""
        return self.progress >= 1.0

    def rate(self, highest: float, *, warmup: float = 0.03) -> float:
        """The learning rate now: a short linear warm-up, then a cosine down to almost nothing."""
        if self.progress < warmup:
            return highest * max(self.progress / warmup, 0.05)
        return highest * max(0.5 * (1 + math.cos(math.pi * (self.progress - warmup) / (1 - warmup))), 1e-3)
