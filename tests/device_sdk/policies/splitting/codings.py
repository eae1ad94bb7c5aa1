"""Codings of packets for tests."""

from __future__ import annotations

from device_sdk.policies.splitting.path_splits import PacketCoding


def coded(*, error=0.0, saved_bytes=0.0, deflating_ms=0.0, packing_factor=1.0):
    """A coding of this error, of which the lossless stage saves ``saved_bytes``."""
    return PacketCoding(error, packing_factor, 1.0, saved_bytes, 0.0, deflating_ms, 0.0)
