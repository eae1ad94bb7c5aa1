"""Looking at a supernet while it is tuned: accuracy by ranges of cost, and whether it still grows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Alone, Ranks
from packager.training.schedule import Schedule

LOOK_EVERY = 100  # steps of tuning
_LOOK_SHARE = 0.01  # of the phase's time, for one look
_REST = 30  # times what a look took pass before the next one, so that looks take about 3 % of the time


class TuningWatch:
    """Looks every ``LOOK_EVERY`` steps; after ``patience`` looks without a better mean the tuning ends early.

    ``patience`` 0 lets it go on. Without ``judge`` there is nothing to see. Of several processes the first one looks.
    Where the time is limited (``limit``), looks take few images, and none is taken while those before it have cost more
    than a thirtieth of the time since.
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
        self._images: int | None = None  # of a look; None for all
        self._next = 0.0  # when there is time for the next look
        self._best = 0.0
        self._since = 0  # looks since the best one
        self.seen = ""  # what the last look saw, to stand behind the loss

    def limit(self, seconds: float) -> None:
        """The phase takes ``seconds``: looks fit into a small part of them."""
        self._limited = True
        if self._ranks.leads and self._judge is not None:
            self._images = self._judge.images_within(_LOOK_SHARE * seconds, device=self._device)

    def after_step(self, schedule: Schedule) -> None:
        """Look if it is time to; tell ``schedule`` to end when patience is out."""
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
        """What an interrupted run needs to go on."""
        return {"best": self._best, "since": self._since, "seen": self.seen}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from ``state``."""
        if state is not None:
            self._best, self._since, self.seen = state["best"], state["since"], state["seen"]
