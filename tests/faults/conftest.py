"""The tiny bundle of the device's tests."""

from __future__ import annotations

from tests.device_sdk.conftest import own_bundle, tiny_bundle

__all__ = ["own_bundle", "tiny_bundle"]
