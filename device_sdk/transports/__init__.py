"""Transports behind one port, by URL scheme. To add one: a file here, a line in ``TRANSPORTS``, the shared tests."""

from __future__ import annotations

from collections.abc import Callable

from device_sdk.errors import UsageError
from device_sdk.transports.port import Clock, Deadlines, Reply, Transport, origin


def _http(url: str, token: str | None) -> Transport:
    from device_sdk.transports.http import HttpTransport  # urllib3 takes 0.2 s to import

    return HttpTransport(token=token, origin=url)


TRANSPORTS: dict[str, Callable[[str, str | None], Transport]] = {
    "http": _http,
    "https": _http,
}


def make_transport(url: str, *, token: str | None = None) -> Transport:
    """The transport for the scheme of ``url``. ``token`` is sent to that server only.

    Raises:
        UsageError: an unknown scheme, ``url`` is not an address, or the token has invalid characters.
    """
    scheme = origin(url).partition(":")[0]
    if scheme not in TRANSPORTS:
        raise UsageError(f"there is no transport for {scheme}://", hint="known: " + ", ".join(sorted(TRANSPORTS)))
    return TRANSPORTS[scheme](url, token)


__all__ = ["TRANSPORTS", "Clock", "Deadlines", "Reply", "Transport", "make_transport"]
