"""The mix of classes of the answers, and a thread that has the plan take another prior when it has changed."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from device_sdk.errors import ClosedError, ForkedError, PathweaveError
from device_sdk.policies.gathering import LEAST_SAMPLES, PSEUDO_SAMPLES, probabilities
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Prior

Floats = npt.NDArray[np.float64]

_CERTAINTY = 3.0  # standard errors: more than for one decision, since this one is made again and again


@dataclass(frozen=True)
class MixSettings:
    """``window``: answers after which one counts 1/e of a new one. ``least_answers``: between two priors.

    ``least_move``: share of the answers (0 to 1) that have another class under a new prior than under the old one.
    """

    window: int = 500
    least_answers: int = 100
    least_move: float = 0.1


class RunningMix:
    """The estimated mix, and the gain that a prior made of it would have had over the ``prior`` in use.

    Holds one count per class and three sums, no answers.
    """

    def __init__(self, classes: int, prior: Prior | None, settings: MixSettings) -> None:
        self.prior, self._settings = prior, settings
        self.answers = 0  # since this prior is in use
        self._temperature = 1.0 if prior is None else prior.temperature
        self._ratios_in_use = np.ones(classes) if prior is None else np.exp(prior.log_ratios)
        self._fading = math.exp(-1 / settings.window)
        self._counts: Floats = LEAST_SAMPLES * self._ratios_in_use / self._ratios_in_use.sum()
        self._weight = self._gain = self._squared_gain = 0.0  # sums over the answers, which fade

    @property
    def shares(self) -> Floats:
        """The estimated share of each class: [classes], summing to 1."""
        classes = len(self._counts)
        shares: Floats = (self._counts + PSEUDO_SAMPLES / classes) / (self._counts.sum() + PSEUDO_SAMPLES)
        return shares

    def take(self, logits: npt.NDArray[np.floating]) -> None:
        """Count answers: ``logits`` [count, classes] as the prior in use has corrected them. Others are left out."""
        wide = logits[np.isfinite(logits).all(axis=1)].astype(np.float64) / self._temperature
        for posterior in probabilities(wide):
            likely = posterior / self._ratios_in_use
            likely /= likely.sum()
            self._take(likely)

    def due(self) -> Prior | None:
        """The prior to take now, None while the one in use does."""
        if self.answers < self._settings.least_answers:
            return None
        mean = self._gain / self._weight
        deviation = math.sqrt(max(self._squared_gain / self._weight - mean * mean, 0.0))
        if mean <= _CERTAINTY * deviation / math.sqrt(self._weight):
            return None
        log_ratios = np.log(self.shares * len(self._counts))
        prior = Prior(tuple(log_ratios.tolist()), self._temperature)
        return prior if self.moved_to(prior) >= self._settings.least_move else None

    def moved_to(self, prior: Prior) -> float:
        """The share of answers that have another class under the mix of ``prior``: 0 to 1 (total variation)."""
        before, after = self._ratios_in_use / self._ratios_in_use.sum(), np.exp(prior.log_ratios)
        return float(np.abs(after / after.sum() - before).sum() / 2)

    def _take(self, likely: Floats) -> None:
        """``likely`` [classes]: probabilities of one answer under the mix of the training data."""
        shares = self.shares
        gain = math.log(likely @ shares * len(shares)) - math.log(likely @ self._ratios_in_use)
        self._weight = self._fading * self._weight + 1.0
        self._gain = self._fading * self._gain + gain
        self._squared_gain = self._fading * self._squared_gain + gain * gain
        responsible = likely * shares
        self._counts = self._fading * self._counts + responsible / responsible.sum()
        self.answers += 1


_log = logging.getLogger(__name__)

_JOIN_S = 10.0


class LookingThread:
    """Calls ``look`` every ``pause_s`` seconds, from ``start`` to ``stop``, or until the model is closed.

    An error of ``look`` is logged and does not end the thread. ``subject``: the condition followed, for the log.
    """

    def __init__(self, look: Callable[[], None], *, subject: str, pause_s: float) -> None:
        self._look, self._subject, self._pause_s = look, subject, pause_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pathweave-{subject}", daemon=True)

    @property
    def stopped(self) -> bool:
        """True once ``stop`` was called."""
        return self._stopped.is_set()

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. May be called twice, and from ``look``."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._pause_s):
            try:
                self._look()
            except (ClosedError, ForkedError):
                break
            except Exception:  # a thread that ends would leave the plan behind without a word
                _log.exception("following the %s met an error and goes on", self._subject)


PAUSE_S = 0.5  # between two looks
_KEPT, _KEPT_ROWS = 256, 16  # batches between two looks, of which the oldest go, and answers of each

Adopt = Callable[[Prior, int, float], None]
"""Takes a prior, the answers that it was estimated on, and how far the mix moved (0 to 1)."""


class MixFollower:
    """Keeps the prior of the plan in use true, from ``start`` to ``stop``: ``adopt`` is called with a new one."""

    def __init__(self, adopt: Adopt, settings: MixSettings | None = None) -> None:
        self._adopt, self._settings = adopt, settings or MixSettings()
        self._answers: deque[tuple[Array, Prior | None]] = deque(maxlen=_KEPT)
        self._mix: RunningMix | None = None
        self._thread = LookingThread(self.look, subject="classes", pause_s=PAUSE_S)

    def start(self) -> None:
        """Follow from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; the prior in use stays. May be called twice."""
        self._thread.stop()

    def note(self, logits: Array, prior: Prior | None) -> None:
        """An answer [batch, classes], corrected by ``prior``. This runs in every call, and only appends."""
        self._answers.append((logits if len(logits) <= _KEPT_ROWS else logits[:_KEPT_ROWS].copy(), prior))

    def look(self) -> None:
        """Count what was answered, and have a new prior taken if one is due."""
        while self._answers:
            logits, prior = self._answers.popleft()
            if self._mix is None or self._mix.prior != prior:
                self._mix = RunningMix(logits.shape[-1], prior, self._settings)
            self._mix.take(logits)
        due = None if self._mix is None else self._mix.due()
        if self._mix is not None and due is not None:
            try:
                self._adopt(due, self._mix.answers, self._mix.moved_to(due))
            except (ClosedError, ForkedError):
                raise
            except PathweaveError as error:
                _log.warning("the prior of a changed mix of classes cannot be taken: %s", error)
