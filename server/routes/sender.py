"""The device that sends a request, and its version of a bundle."""

from __future__ import annotations

from flask import request

from device_sdk.delivery.assignment import DEVICE_HEADER, TAGS_HEADER, decode_tags
from device_sdk.errors import UsageError
from server.errors import MalformedError
from server.services import Services
from server.state.catalogue import ServedBundle
from server.state.log_store import check_device


def sent_tags() -> str | None:
    """The header with the sender's tags, checked (MalformedError); None without."""
    tags = request.headers.get(TAGS_HEADER)
    try:
        decode_tags(tags or "")
    except UsageError as error:
        raise MalformedError(f"the header {TAGS_HEADER}: {error}", hint=error.hint) from error
    return tags


def bundle_for_sender(services: Services, name: str) -> ServedBundle:
    """The bundle in the version of the device that the headers name, by default that of clients that do not ask.

    Raises:
        NotFoundError, ConflictError: as ``DeviceVersions.find``. MalformedError: a header is invalid.
    """
    device = request.headers.get(DEVICE_HEADER)
    return services.rollouts.for_device(name, None if device is None else check_device(device), sent_tags())
