"""Authentication of every request by its token, and authorization by the scope that its route requires.

A server without tokens is protected from web pages: DNS rebinding and cross-site requests. A page cannot choose the
header Host, and browsers add Origin to every POST of a page. Programs other than browsers send no Origin.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from flask import Flask, g, request

from server.access.recent import RecentDecisions
from server.access.route import Route, declared
from server.access.scopes import Client, Scope
from server.access.tokens import Decision, Gate
from server.errors import EncodingError, ForbiddenError
from server.http.connections import parsed_address
from server.http.serving import Lane

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = (None, "same-origin", "none")


def ask_for_tokens(app: Flask, gate: Gate, recent: RecentDecisions, *, allowed_hosts: Collection[str] = ()) -> None:
    """Refuse requests without the scope of their route, at unknown addresses without a token. Sets ``client()``.

    Without tokens, refuse requests that web pages of other sites sent. ``allowed_hosts``: names of this server then.
    Inference goes by ``recent`` decisions: a revoked token is refused there within a second, elsewhere at once.
    """

    def check() -> None:
        route = declared(app, request.endpoint)
        unknown = Scope.DEVICE if request.endpoint is None else Scope.ADMIN
        scope = unknown if route is None else route.scope
        if scope is None:
            return
        asked = recent if route is not None and route.lane is Lane.INFERENCE else gate
        decision = _decide(asked, route)
        if not decision.closed:
            _check_page(allowed_hosts, () if route is None else route.body_types)
        g.client = decision.client
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


def _decide(gate: Gate | RecentDecisions, route: Route | None) -> Decision:
    return gate.decide(_token(route), request.remote_addr or "unknown")


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


def check_host(host: str | None, allowed: Collection[str]) -> None:
    """Check that ``host`` cannot be a name that an attacker's DNS server resolves to this machine.

    IP addresses, names without a dot, and those in ``allowed`` cannot. Browsers never leave the header out.

    Raises:
        ForbiddenError: another name.
    """
    if host is None:
        return
    name = _name_of(host)
    is_address = name is not None and "%" not in name and parsed_address(name) is not None
    if name is None or not (is_address or "." not in name or name in allowed):
        raise ForbiddenError(
            f"the header Host is {host[:80]!r}, which is not known to be this server",
            hint="use its IP address or localhost, start it with --allow-host NAME, or require a token",
        )


def check_origin(method: str, host: str | None, origin: str | None, fetch_site: str | None) -> None:
    """Check that no web page of another site sent the request (Origin, and for changes Sec-Fetch-Site).

    Raises:
        ForbiddenError: one did.
    """
    foreign = origin is not None and urlsplit(origin).netloc.lower() != (host or "").lower()
    if foreign or (method not in _SAFE and fetch_site not in _OWN_SITES):
        raise ForbiddenError(
            "a web page of another site sent this request", hint="send it from a program, or require a token"
        )


def check_content_type(mimetype: str, accepted: Collection[str]) -> None:
    """Check the type of a body. Pages of other sites can only send forms and text without the server's consent.

    Raises:
        EncodingError: not in ``accepted``.
    """
    if mimetype not in accepted:
        raise EncodingError(
            f"a server without tokens does not accept {mimetype[:80] or 'a body without a type'!r} here",
            hint="send the header Content-Type: " + " or ".join(accepted),
        )


def _name_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
