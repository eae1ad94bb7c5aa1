"""Errors of the server. A RequestError is what a request is answered with."""

from __future__ import annotations

from device_sdk.errors import PathweaveError


class RequestError(PathweaveError):
    """A request is answered with an error. ``status``: the HTTP status; ``retry_after_s``: for Retry-After."""

    status = 400
    retry_after_s: int | None = None


class MalformedError(RequestError):
    """The request does not have the expected format."""


class UnauthorizedError(RequestError):
    """The token is missing, wrong, expired or revoked."""

    status = 401


class ForbiddenError(RequestError):
    """The token does not permit this, or a web page of another site sent the request."""

    status = 403


class NotFoundError(RequestError):
    """There is no such bundle, blob, model or version."""

    status = 404


class ConflictError(RequestError):
    """Not possible in this server's configuration or state."""

    status = 409


class TooLargeError(RequestError):
    """The body is too large, as received or decompressed."""

    status = 413


class EncodingError(RequestError):
    """The body has an unsupported content encoding or type."""

    status = 415


class UnprocessableError(RequestError):
    """The request is well-formed, but has unacceptable content."""

    status = 422


class BusyClientError(RequestError):
    """This client has too many requests at once."""

    status = 429
    retry_after_s = 1


class AttemptsError(RequestError):
    """This address sent too many wrong enrolment codes."""

    status = 429
    retry_after_s = 900


class ConfigurationError(RequestError):
    """The server's configuration is wrong."""

    status = 500


class NotInstalledError(RequestError):
    """An optional part is not installed."""

    status = 501


class OverloadedError(RequestError):
    """The server has too many requests at once, or is shutting down."""

    status = 503
    retry_after_s = 1


class QueueFullError(OverloadedError):
    """Too many jobs are waiting."""

    retry_after_s = 60


class PublishError(PathweaveError):
    """A finished bundle cannot be put into the served folder."""


class ListenError(PathweaveError):
    """The address cannot be listened on."""
