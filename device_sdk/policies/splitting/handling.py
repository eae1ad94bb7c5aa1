"""What a call to a server takes beside sending bytes and running the tail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from device_sdk.supernet.cost import Uplink


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


NO_HANDLING = Handling()


@dataclass(frozen=True)
class TimedCall:
    """A real call: bytes sent, and by how much it exceeded its prediction."""

    size_bytes: int
    excess_ms: float


def fit_calls(calls: Sequence[TimedCall], *, least_per_byte: float = 0.0) -> tuple[float, float]:
    """Milliseconds per call, not negative, and per byte, at least ``least_per_byte``, that explain the excess best."""
    if not calls:
        return 0.0, 0.0
    sizes, excess = np.array([(call.size_bytes, call.excess_ms) for call in calls], dtype=np.float64).T
    slope = float(np.polyfit(sizes, excess, 1)[0]) if np.ptp(sizes) > 0 else 0.0
    per_byte = max(slope, least_per_byte)
    per_call = float((excess - per_byte * sizes).mean())
    if per_call >= 0:
        return per_call, per_byte
    return 0.0, max(float((excess * sizes).sum() / np.square(sizes).sum()), least_per_byte)


def corrected(uplink: Uplink, handling: Handling) -> tuple[Uplink, Handling]:
    """The same with the time per byte of real calls in the uplink's bandwidth, where it belongs."""
    per_byte_ms = ms_per_byte(uplink) + handling.ms_per_byte
    mbps = uplink.mbps * ms_per_byte(uplink) / per_byte_ms
    return Uplink(mbps, uplink.round_trip_ms), replace(handling, ms_per_byte=0.0)


def ms_per_byte(uplink: Uplink) -> float:
    """How long a byte is under way, beside the round trip."""
    return uplink.transfer_ms(1) - uplink.transfer_ms(0)
