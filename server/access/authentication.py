"""Authentication of every request by its token, and authorization by the scope that its route requires."""

from __future__ import annotations

from collections.abc import Collection

from flask import Flask, g, request

from server.access.cross_site import check_content_type, check_host, check_origin
from server.access.route import Route, declared
from server.access.scopes import Client, Scope
from server.access.tokens import Gate
from server.errors import ForbiddenError


def ask_for_tokens(app: Flask, gate: Gate, *, allowed_hosts: Collection[str] = ()) -> None:
    """Refuse requests without the scope of their route, at unknown addresses without a token. Sets ``client()``.

    Without tokens, refuse requests that web pages of other sites sent. ``allowed_hosts``: names of this server then.
    """

    def check() -> None:
        route = declared(app, request.endpoint)
        unknown = Scope.DEVICE if request.endpoint is None else Scope.ADMIN
        scope = unknown if route is None else route.scope
        if scope is None:
            return
        if not gate.closed:
            _check_page(allowed_hosts, () if route is None else route.body_types)
        g.client = gate.admit(_token(route), request.remote_addr or "unknown")
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


def _check_page(allowed_hosts: Collection[str], body_types: Collection[str]) -> None:
    headers = request.headers
    check_host(headers.get("Host"), allowed_hosts)
    check_origin(request.method, headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"))
    if body_types:
        check_content_type(request.mimetype, body_types)


def _token(route: Route | None) -> str | None:
    sent = request.authorization
    if sent is None:
        return None
    if sent.type == "bearer":
        return sent.token
    return sent.password if sent.type == "basic" and route is not None and route.for_people else None
