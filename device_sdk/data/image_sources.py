"""The reader of single images under the name that scripts have known it by: see ``image_files``."""

from __future__ import annotations

from device_sdk.data.image_files import read_image

__all__ = ["read_image"]
