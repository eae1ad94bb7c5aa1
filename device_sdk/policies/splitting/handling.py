"""Overhead of a call to a server, beyond sending bytes and running the tail. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from device_sdk.supernet.cost import Uplink


@dataclass(frozen=True)
class Handling:
    """``packing_ms_per_value`` here, ``unpacking_ms_per_value`` there; per call ``call_ms`` and ``ms_per_byte``.

    The last two are the time of real calls beyond all that is predicted for them: HTTP, queueing, framing.
    """

    packing_ms_per_value: float = 0.0
    unpacking_ms_per_value: float = 0.0
    call_ms: float = 0.0
    ms_per_byte: float = 0.0

    def beside_codec_ms(self, size_bytes: int) -> float:
        """Overhead of a call that sends ``size_bytes``, without packing and unpacking."""
        return self.call_ms + self.ms_per_byte * size_bytes

    def slowed(self, factor: float) -> Handling:
        """The same for a device ``factor`` times slower: it packs so much slower."""
        return replace(self, packing_ms_per_value=factor * self.packing_ms_per_value)


NO_HANDLING = Handling()


@dataclass(frozen=True)
class JpegCoding:
    """An input sent as JPEG: its mean size, and the time to encode it here and to decode and prepare it there."""

    size_bytes: int
    encoding_ms: float = 0.0
    decoding_ms: float = 0.0

    def slowed(self, factor: float) -> JpegCoding:
        """The same for a device ``factor`` times slower."""
        return replace(self, encoding_ms=factor * self.encoding_ms)


@dataclass(frozen=True)
class TimedCall:
    """A real call: bytes sent, excess over its predicted time, and its time in all."""

    size_bytes: int
    excess_ms: float
    took_ms: float = 1.0


def fit_calls(calls: Sequence[TimedCall], *, least_per_byte: float = 0.0) -> tuple[float, float]:
    """Milliseconds per call, not negative, and per byte, at least ``least_per_byte``, that explain the excess best.

    Errors count relative to the time of the calls.
    """
    if not calls:
        return 0.0, 0.0
    sizes, excess, took = np.array([(one.size_bytes, one.excess_ms, one.took_ms) for one in calls], dtype=np.float64).T
    weights = 1 / took
    slope = float(np.polyfit(sizes, excess, 1, w=weights)[0]) if np.ptp(sizes) > 0 else 0.0
    per_byte = max(slope, least_per_byte)
    per_call = float(np.average(excess - per_byte * sizes, weights=np.square(weights)))
    if per_call >= 0:
        return per_call, per_byte
    weighted = sizes * np.square(weights)
    return 0.0, max(float((excess * weighted).sum() / (sizes * weighted).sum()), least_per_byte)


def corrected(uplink: Uplink, handling: Handling) -> tuple[Uplink, Handling]:
    """The same with the handling's time per byte moved into the uplink's bandwidth, where it belongs."""
    per_byte_ms = ms_per_byte(uplink) + handling.ms_per_byte
    mbps = uplink.mbps * ms_per_byte(uplink) / per_byte_ms
    return Uplink(mbps, uplink.round_trip_ms), replace(handling, ms_per_byte=0.0)


def ms_per_byte(uplink: Uplink) -> float:
    """Milliseconds that each byte adds to a transfer."""
    return uplink.transfer_ms(1) - uplink.transfer_ms(0)
