"""Authentication of every request by its token, and authorization by the scope that its route requires."""

from __future__ import annotations

from collections.abc import Collection

from flask import Flask, g, request

from server.access.cross_site import check_content_type, check_host, check_origin
from server.access.scopes import Client, required_scope
from server.access.tokens import Gate
from server.errors import ForbiddenError

_FOR_PEOPLE = frozenset({"page.page", "page.jobs"})
_JSON, _FORM = "application/json", "multipart/form-data"
# Checked without tokens only. A page of another site can send a form, but not without the header Origin.
_BODY_TYPES = {"jobs.add": (_JSON, _FORM), "jobs.publish": (_JSON,)}


def ask_for_tokens(app: Flask, gate: Gate, *, allowed_hosts: Collection[str] = ()) -> None:
    """Refuse requests without the scope of their route. Sets ``client()``.

    Without tokens, refuse requests that web pages of other sites sent. ``allowed_hosts``: names of this server then.
    """

    def check() -> None:
        scope = required_scope(request.endpoint)
        if scope is None:
            return
        if not gate.closed:
            _check_page(allowed_hosts)
        g.client = gate.admit(_token(), request.remote_addr or "unknown")
        if not g.client.may(scope):
            raise ForbiddenError(
                f"this requires the scope {scope.label}; {g.client.name} has the scope {g.client.scope.label}",
                hint=f"use a token made with pathweave admin token new NAME --scope {scope.label}",
            )

    app.before_request(check)


def client() -> Client:
    """The client of the current request."""
    found: Client = g.client
    return found


def client_name() -> str:
    """The name of the client of the current request: of its token, or its address if no token is required."""
    return client().name


def _check_page(allowed_hosts: Collection[str]) -> None:
    headers = request.headers
    check_host(headers.get("Host"), allowed_hosts)
    check_origin(request.method, headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"))
    accepted = _BODY_TYPES.get(request.endpoint or "")
    if accepted is not None:
        check_content_type(request.mimetype, accepted)


def _token() -> str | None:
    sent = request.authorization
    if sent is None:
        return None
    if sent.type == "bearer":
        return sent.token
    # Basic authentication, for browsers: the password is the token. Only for the page, since browsers also attach it to
    # cross-site requests, which must not change anything.
    return sent.password if sent.type == "basic" and request.endpoint in _FOR_PEOPLE else None
