"""Every error that the server raises on purpose, besides those of the device SDK.

PathweaveError
├── RequestError               a request is answered with an error; has the HTTP status
│   ├── MalformedError         400, it is not what the address takes
│   ├── UnauthorizedError      401, the token is missing, wrong, expired or revoked
│   ├── NotFoundError          404, no such bundle, blob, model or version
│   ├── ConflictError          409, not as this server is set up, or not here now
│   ├── TooLargeError          413, its body is too large, as it came or decompressed
│   ├── EncodingError          415, its body is compressed in a way that is not known here
│   ├── UnprocessableError     422, well-formed, but something that it names or holds is not acceptable
│   ├── BusyClientError        429, this client has too many requests at once
│   ├── ConfigurationError     500, something that the operator wrote is wrong
│   ├── NotInstalledError      501, an optional part is not installed here
│   └── OverloadedError        503, the server has too many requests at once
│       └── QueueFullError     503, too many jobs wait
├── PublishError               a finished bundle cannot be put into the served folder
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


class ConflictError(RequestError):
    """The server cannot do this as it is set up, or another one does it."""

    status = 409


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


class ConfigurationError(RequestError):
    """Something that the operator of the server wrote is wrong."""

    status = 500


class NotInstalledError(RequestError):
    """An optional part is not installed here."""

    status = 501


class OverloadedError(RequestError):
    """The server has too many requests at once, or is about to stop."""

    status = 503
    retry_after_s = 1


class QueueFullError(OverloadedError):
    """Too many jobs wait already."""

    retry_after_s = 60


class PublishError(PathweaveError):
    """A finished bundle cannot be put into the served folder."""


class ListenError(PathweaveError):
    """The address cannot be listened on."""
