"""What a call to a server takes beside sending bytes and running the tail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Handling:
    """``packing_ms_per_value`` here, ``unpacking_ms_per_value`` there; per call ``call_ms`` and ``ms_per_byte``.

    The last two are what real calls took beyond everything that is predicted for them: HTTP, queueing, framing.
    """

    packing_ms_per_value: float = 0.0
    unpacking_ms_per_value: float = 0.0
    call_ms: float = 0.0
    ms_per_byte: float = 0.0

    def beside_codec_ms(self, size_bytes: int) -> float:
        """Of a call that sends ``size_bytes``, without packing and unpacking."""
        return self.call_ms + self.ms_per_byte * size_bytes


@dataclass(frozen=True)
class TimedCall:
    """A real call: bytes sent, and by how much it exceeded its prediction."""

    size_bytes: int
    excess_ms: float


def fit_calls(calls: Sequence[TimedCall]) -> tuple[float, float]:
    """Milliseconds per call and per byte that explain the excess of ``calls`` best; neither is negative."""
    if not calls:
        return 0.0, 0.0
    sizes, excess = np.array([(call.size_bytes, call.excess_ms) for call in calls], dtype=np.float64).T
    per_byte = float(np.polyfit(sizes, excess, 1)[0]) if np.ptp(sizes) > 0 else 0.0
    per_call = float((excess - per_byte * sizes).mean())
    if per_byte < 0:
        return max(float(excess.mean()), 0.0), 0.0
    if per_call < 0:
        return 0.0, max(float((excess * sizes).sum() / np.square(sizes).sum()), 0.0)
    return per_call, per_byte
