"""Every error as JSON: ``{"error": "one line", "hint": "what to do"}``; no hint under /v2, whose protocol has none.

Another form, such as a page for browsers, is given by ``Shown``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from flask import Flask, Request, Response, current_app, jsonify, request
from werkzeug.exceptions import HTTPException

from device_sdk.errors import InputError, PathweaveError, ProtocolError, StorageError, UsageError
from server.errors import PublishError, RequestError, UnauthorizedError

_log = logging.getLogger(__name__)

Shown = Callable[[Request, int, str, str | None], Response | None]
"""The reply to an error, by status, text and hint, in another form than JSON; None for JSON."""

_SHOWN = "pathweave-shown"  # in the extensions of an app
_INTERNAL = "the server failed; its log says why"


def described(error: PathweaveError) -> tuple[int, str, str | None, dict[str, str]]:
    """Status, text, hint and headers of the reply to an error. The server's own errors are logged, not told."""
    if isinstance(error, RequestError):
        headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        if isinstance(error, UnauthorizedError):
            headers["WWW-Authenticate"] = "Bearer"
        return error.status, str(error), error.hint, headers
    if isinstance(error, (ProtocolError, InputError, UsageError)):  # caused by the request
        return 400, str(error), error.hint, {}
    if isinstance(error, PublishError):
        return 409, str(error), error.hint, {}
    _log.error("%s", error, exc_info=None if isinstance(error, StorageError) else error)
    if isinstance(error, StorageError):
        return 503, "the server cannot store anything now", None, {"Retry-After": "5"}
    return 500, _INTERNAL, None, {}


def answer_errors(
    app: Flask, *, refused: Callable[[RequestError], None] = lambda error: None, shown: Shown = lambda *of: None
) -> None:
    """Register error handlers on ``app`` that reply in JSON, or as ``shown``. ``refused``: told what is refused."""
    app.extensions[_SHOWN] = shown

    def ours(error: PathweaveError) -> Response:
        if isinstance(error, RequestError):
            refused(error)
        return _ours(error)

    app.register_error_handler(PathweaveError, ours)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)
    app.after_request(_nothing_to_guess)


def _ours(error: PathweaveError) -> Response:
    status, text, hint, headers = described(error)
    reply = _reply(text, hint, status)
    reply.headers.update(headers)
    if status == 401 and (request.path == "/" or request.path.startswith("/page/")):  # browsers ask for a password
        reply.headers["WWW-Authenticate"] = 'Basic realm="Pathweave"'
    return reply


def _http(error: HTTPException) -> Response:
    """Flask's own errors: unknown address, method not allowed, body too large, invalid range."""
    status = error.code or 500
    texts = {404: "there is nothing at this address", 405: f"this address does not take {request.method}"}
    reply = _reply(texts.get(status, error.description or error.name), None, status)
    for name, value in error.get_headers(request.environ):  # Allow, Content-Range and the like
        if name != "Content-Type":
            reply.headers[name] = value
    return reply


def _unexpected(error: Exception) -> Response:
    _log.error("%s %s failed", request.method, request.path, exc_info=error)
    return _reply(_INTERNAL, None, 500)


def _reply(text: str, hint: str | None, status: int) -> Response:
    body = {"error": " ".join(text.split())}
    shown: Response | None = current_app.extensions[_SHOWN](request, status, body["error"], hint)
    if shown is not None:
        return shown
    if hint and not request.path.startswith("/v2"):
        body["hint"] = hint
    reply = jsonify(body)
    reply.status_code = status
    return reply


def _nothing_to_guess(reply: Response) -> Response:
    reply.headers["X-Content-Type-Options"] = "nosniff"
    return reply
