"""Every error as JSON: ``{"error": "one line", "hint": "what to do"}``; no hint under /v2, whose protocol has none."""

from __future__ import annotations

import logging

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from device_sdk.errors import InputError, PathweaveError, ProtocolError, StorageError, UsageError
from server.errors import PublishError, RequestError, UnauthorizedError

_log = logging.getLogger(__name__)

_INTERNAL = "the server failed; its log says why"
# Other errors that are caused by the request. All others are server errors.
_STATUS_OF: dict[type[PathweaveError], int] = {
    **dict.fromkeys((ProtocolError, InputError, UsageError), 400),
    PublishError: 409,
}
_RETRY_AFTER_S = 5  # for storage errors


def answer_errors(app: Flask) -> None:
    """Register error handlers on ``app`` that reply in JSON."""
    app.register_error_handler(PathweaveError, _ours)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)
    app.after_request(_nothing_to_guess)


def _ours(error: PathweaveError) -> Response:
    if isinstance(error, RequestError):
        reply = _reply(str(error), error.hint, error.status)
        if error.retry_after_s is not None:
            reply.headers["Retry-After"] = str(error.retry_after_s)
        if isinstance(error, UnauthorizedError):
            reply.headers["WWW-Authenticate"] = 'Basic realm="Pathweave"' if request.path == "/" else "Bearer"
        return reply
    if isinstance(error, StorageError):
        _log.error("%s", error)
        reply = _reply("the server cannot store anything now", None, 503)
        reply.headers["Retry-After"] = str(_RETRY_AFTER_S)
        return reply
    for kind, status in _STATUS_OF.items():
        if isinstance(error, kind):
            return _reply(str(error), error.hint, status)
    return _unexpected(error)


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
    if hint and not request.path.startswith("/v2"):
        body["hint"] = hint
    reply = jsonify(body)
    reply.status_code = status
    return reply


def _nothing_to_guess(reply: Response) -> Response:
    reply.headers["X-Content-Type-Options"] = "nosniff"
    return reply
