"""Explains why the device has become slower, by readings of the system: one before, two while it is slow."""

from __future__ import annotations

import math
from collections.abc import Callable

from device_sdk.profiling.slow_cause import Cause, lasting_cause, slow_cause
from device_sdk.profiling.speed_reading import SpeedReading, SpeedSignals

_WINDOW_S = 0.05  # over which load is counted: the system counts ticks of 10 ms
_AGAIN_S = 0.25  # a stated cause is not read again sooner


class SpeedWatch:
    """Reads ``signals`` in the thread of live update, which waits by ``wait`` (seconds). For one thread.

    Readings are compared with that of ``begin``: the device as it was when its speed was as estimated.
    """

    def __init__(self, signals: SpeedSignals, *, clock: Callable[[], float], wait: Callable[[float], object]) -> None:
        self._signals, self._clock, self._wait = signals, clock, wait
        self._before = SpeedReading()
        self._stated: Cause = "unknown"
        self._read_s = -math.inf

    def begin(self) -> None:
        """Compare with the device as it is now, from now on."""
        self._before = self._signals.read()

    def stated(self) -> Cause:
        """The lasting cause that the system states by itself now, or unknown; read a few times a second at most."""
        now_s = self._clock()
        if not 0 <= now_s - self._read_s < _AGAIN_S:
            self._stated = lasting_cause(self._before, self._signals.read())
            self._read_s = now_s
        return self._stated

    def explained(self) -> Cause:
        """The cause by what happens now, which takes a moment; unknown where the system tells nothing that fits."""
        recent = self._signals.read()
        self._wait(_WINDOW_S)
        return slow_cause(self._before, recent, self._signals.read())
