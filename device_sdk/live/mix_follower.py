"""A thread that follows the mix of classes of the answers, and has the plan take another prior when it has changed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from device_sdk.errors import ClosedError, ForkedError, PathweaveError
from device_sdk.live.looking_thread import LookingThread
from device_sdk.live.running_mix import MixSettings, RunningMix
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Prior

_log = logging.getLogger(__name__)

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
