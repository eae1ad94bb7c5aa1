"""Images of one location, for scripts that are written against the packager: ``device_sdk.data.sources`` reads them."""

from __future__ import annotations

from device_sdk.data.records import Records
from device_sdk.data.sources import open_records as open_reference


def open_records(location: str, *, split: str | None = None) -> tuple[Records, bool]:
    """The images at ``location``, or of its part ``split``; and whether a part was taken.

    Raises:
        DataError, MissingExtraError: as ``device_sdk.data.sources.open_records``.
    """
    return open_reference(location if split is None else f"{location}#{split}"), split is not None
