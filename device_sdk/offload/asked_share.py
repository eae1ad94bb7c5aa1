"""Keeps the share of samples that go to a server constant, whatever samples come."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import ease, hard
from device_sdk.supernet.plan import Decider

_REMEMBERED = 4096  # eases
_FEWEST = 64  # below, they say less than the limit that was calibrated
_HORIZON = 128  # samples over which what was asked too much or too little is made up for


class AskedShare:
    """Selects hard samples, so that ``share`` of all samples are hard. Thread-safe.

    A sample is hard if its ease lies below a quantile of the eases seen last, its own batch's among them; until there
    are ``_FEWEST`` eases, the decider's own threshold holds. The quantile is the share, corrected to make up for an
    excess or a deficit so far over ``_HORIZON`` samples. No labels are needed. Logits that are no answer are hard.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._lock = threading.Lock()  # guards all that follows
        self._decider: Decider | None = None
        self._eases = np.empty(0)
        self._owed = 0.0  # samples

    def hard(self, decider: Decider, logits: Array) -> npt.NDArray[np.bool_]:
        """Mask of hard samples: logits [batch, classes] -> [batch]. Another decider begins anew."""
        eases = ease(decider, logits)
        with self._lock:
            if decider != self._decider:
                self._decider, self._eases, self._owed = decider, np.empty(0), 0.0
            known = np.isfinite(eases)
            self._eases = np.concatenate([self._eases, eases[known]])[-_REMEMBERED:]
            found = hard(decider, logits) if len(self._eases) < _FEWEST else ~known | (eases < self._limit())
            self._owed += self._share * len(eases) - float(np.count_nonzero(found))
        return found

    def _limit(self) -> float:
        share = self._share + self._owed / _HORIZON
        if share <= 0:
            return -np.inf
        return np.inf if share >= 1 else float(np.quantile(self._eases, share))
