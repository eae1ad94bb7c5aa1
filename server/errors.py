"""Every error that the server raises on purpose, besides those of the device SDK.

PathweaveError
├── RequestError               a request is answered with an error; has the HTTP status
│   ├── MalformedError         400, it is not what the address takes
│   ├── UnauthorizedError      401, the token is missing, wrong, expired or revoked
│   ├── NotFoundError          404, no such bundle, blob, model or version
│   ├── TooLargeError          413, its body is too large, as it came or decompressed
│   ├── EncodingError          415, its body is compressed in a way that is not known here
│   ├── UnprocessableError     422, well-formed, but something that it names or holds is not acceptable
│   ├── BusyClientError        429, this client has too many requests at once
│   └── OverloadedError        503, the server has too many requests at once
└── ListenError                the address cannot be listened on
"""

from __future__ import annotations

from device_sdk.errors import PathweaveError


class RequestError(PathweaveError):
    """A request is answered with an error. ``status``: the HTTP status; ``retry_after_s``: when to come again."""

    status = 400
    retry_after_s: int | None = None


class MalformedError(RequestError):
    """The request is not what the address takes."""


class UnauthorizedError(RequestError):
    """The token is missing, wrong, expired or revoked."""

    status = 401


class NotFoundError(RequestError):
    """There is no such bundle, blob, model or version."""

    status = 404


class TooLargeError(RequestError):
    """The body is too large, as it came or decompressed."""

    status = 413


class EncodingError(RequestError):
    """The body is compressed in a way that is not known here."""

    status = 415


class UnprocessableError(RequestError):
    """The request is well-formed, but something that it names or holds is not acceptable."""

    status = 422


class BusyClientError(RequestError):
    """This client has too many requests at once."""

    status = 429
    retry_after_s = 1


class OverloadedError(RequestError):
    """The server has too many requests at once, or is about to stop."""

    status = 503
    retry_after_s = 1


class ListenError(PathweaveError):
    """The address cannot be listened on."""
