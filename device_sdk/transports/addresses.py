"""Validation and normalisation of server addresses."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from device_sdk.errors import UsageError

_NOT_PRINTABLE = re.compile(r"[^\x21-\x7e]")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin(url: str) -> str:
    """The normalised origin of ``url`` (scheme, host and port), to which a token is bound.

    Raises:
        UsageError: not an absolute URL, or one with a user name or a password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise UsageError(f"{shown(url)!r} is not an address", hint=_HINT) from None
    if not parts.scheme or not host or _NOT_PRINTABLE.search(url):
        raise UsageError(f"{shown(url)!r} is not an address", hint=_HINT)
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the address of {host} contains a user name or a password", hint="give a token instead")
    name = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{name}:{port or _DEFAULT_PORTS.get(parts.scheme, 0)}"


def shown(url: str) -> str:
    """``url`` for messages and logs: without user name, password, query and fragment, which may be secrets."""
    scheme, separator, rest = url.rpartition("://") if url.count("://") == 1 else ("", "", url)
    _, at, place = rest.rpartition("@")  # first: a password may have any of / ? #
    place = re.split(r"[?#]", place, maxsplit=1)[0]
    return f"{scheme}{separator}{'…@' if at else ''}{place}"[:200]


def base(url: str) -> str:
    """``url`` without a trailing slash, for appending paths.

    Raises:
        UsageError: as ``origin``, or it has a query or a fragment.
    """
    origin(url)
    if "?" in url or "#" in url:
        raise UsageError(f"{shown(url)!r} has a query or a fragment", hint=_HINT)
    return url.rstrip("/")


_HINT = "an address looks like https://models.example.org/v1/bundles/NAME"
