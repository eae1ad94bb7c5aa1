"""Validation during tuning: accuracy by range of MACs, and early stopping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Alone, Ranks
from packager.training.schedule import Schedule

LOOK_EVERY = 100  # steps of tuning
_LOOK_SHARE = 0.01  # of the phase's time, for one evaluation
_REST = 30  # an evaluation is followed by a pause of so many times its duration: about 3 % of the time in total


class TuningWatch:
    """Evaluates every ``LOOK_EVERY`` steps; ends tuning after ``patience`` evaluations without a better mean.

    ``patience`` 0 disables early stopping, ``judge`` None disables evaluation. Only rank 0 evaluates. With a time limit
    (``limit``) evaluations use fewer images, and one is skipped if the last one took more than a thirtieth of the time
    since.
    """

    def __init__(
        self,
        judge: RangeAccuracy | None,
        *,
        patience: int,
        device: torch.device,
        ranks: Ranks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._judge = judge
        self._patience = patience
        self._device = device
        self._ranks = ranks or Alone()
        self._clock = clock
        self._limited = False
        self._images: int | None = None  # per evaluation; None for all
        self._next = 0.0  # earliest time of the next evaluation
        self._best = 0.0
        self._since = 0  # evaluations since the best one
        self.seen = ""  # result of the last evaluation, shown behind the loss

    def limit(self, seconds: float) -> None:
        """The phase takes ``seconds``: evaluations are limited to a small part of them."""
        self._limited = True
        if self._ranks.leads and self._judge is not None:
            self._images = self._judge.images_within(_LOOK_SHARE * seconds, device=self._device)

    def after_step(self, schedule: Schedule) -> None:
        """Evaluate if due; wind ``schedule`` down when patience is exhausted."""
        if schedule.done % LOOK_EVERY:
            return
        if self._ranks.leads and self._judge is not None and self._clock() >= self._next:
            began = self._clock()
            self._look(self._judge)
            ended = self._clock()
            self._next = ended + _REST * (ended - began) if self._limited else 0.0
        if self._ranks.from_lead(float(self._patience and self._since >= self._patience)):
            schedule.wind_down()

    def _look(self, judge: RangeAccuracy) -> None:
        shares = judge.look(self._images, device=self._device)
        if not shares:
            return
        self.seen = f", accuracy by cost {' '.join(f'{100 * share:.0f}' for share in shares)} %"
        mean = sum(shares) / len(shares)
        self._since = 0 if mean > self._best else self._since + 1
        self._best = max(mean, self._best)

    @property
    def state(self) -> dict[str, Any]:
        """State for resuming."""
        return {"best": self._best, "since": self._since, "seen": self.seen}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Resume from ``state``."""
        if state is not None:
            self._best, self._since, self.seen = state["best"], state["since"], state["seen"]
