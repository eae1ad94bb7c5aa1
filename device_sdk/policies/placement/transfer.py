"""Number of bytes of branches that arrive within a latency budget."""

from __future__ import annotations

from math import floor, isfinite

from device_sdk.errors import UsageError

_BITS_PER_MS_AND_MBPS = 1000.0
REQUEST_BYTES = 16  # the latency budget and the memory budget, a float64 and an int64


def transferable_bytes(
    *,
    latency_budget_ms: float,
    search_ms: float,
    uplink_mbps: float,
    downlink_mbps: float,
    request_bytes: int = REQUEST_BYTES,
) -> int:
    """Bytes of branches that still arrive once the request was sent and the search took ``search_ms``; at least 0.

    Source: MEEdge Eq. 1, solved for the size of the selected branches; it has one rate for both directions.

    Raises:
        UsageError: a rate that is not above zero, or a time or size that is negative or not finite.
    """
    for name, rate in (("uplink_mbps", uplink_mbps), ("downlink_mbps", downlink_mbps)):
        if not (isfinite(rate) and rate > 0):
            raise UsageError(f"{name} is {rate:g}; it must be above zero")
    for name, cost in (("latency_budget_ms", latency_budget_ms), ("search_ms", search_ms), ("request", request_bytes)):
        if not (isfinite(cost) and cost >= 0):
            raise UsageError(f"{name} is {cost:g}; it cannot be negative")
    request_ms = 8 * request_bytes / (uplink_mbps * _BITS_PER_MS_AND_MBPS)
    left_ms = latency_budget_ms - search_ms - request_ms
    return max(floor(left_ms * downlink_mbps * _BITS_PER_MS_AND_MBPS / 8), 0)
