"""Looking at a supernet while it is tuned: accuracy by ranges of cost, and whether it still grows."""

from __future__ import annotations

from typing import Any

import torch

from packager.training.range_accuracy import RangeAccuracy
from packager.training.ranks import Alone, Ranks
from packager.training.schedule import Schedule

LOOK_EVERY = 100  # steps of tuning


class TuningWatch:
    """Looks every ``LOOK_EVERY`` steps; after ``patience`` looks without a better mean the tuning ends early.

    ``patience`` 0 lets it go on. Without ``judge`` there is nothing to see. Of several processes the first one looks.
    """

    def __init__(
        self, judge: RangeAccuracy | None, *, patience: int, device: torch.device, ranks: Ranks | None = None
    ) -> None:
        self._judge = judge
        self._patience = patience
        self._device = device
        self._ranks = ranks or Alone()
        self._best = 0.0
        self._since = 0  # looks since the best one
        self.seen = ""  # what the last look saw, to stand behind the loss

    def after_step(self, schedule: Schedule) -> None:
        """Look if it is time to; tell ``schedule`` to end when patience is out."""
        if schedule.done % LOOK_EVERY:
            return
        if self._ranks.leads and self._judge is not None:
            self._look(self._judge)
        if self._ranks.from_lead(float(self._patience and self._since >= self._patience)):
            schedule.wind_down()

    def _look(self, judge: RangeAccuracy) -> None:
        shares = judge.look(device=self._device)
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
