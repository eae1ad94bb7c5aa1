"""Token authentication of every request."""

from __future__ import annotations

from flask import Flask, g, request

from server.tokens import Gate

# Without authentication, for load balancers; these routes reveal nothing about the bundles.
_OPEN = frozenset({"health.health", "inference.live", "inference.ready", "page.script"})
_FOR_PEOPLE = frozenset({"page.page", "page.jobs"})


def ask_for_tokens(app: Flask, gate: Gate) -> None:
    """Refuse requests without a valid token if ``gate`` is closed. Sets ``client_name()``."""

    def check() -> None:
        if request.endpoint not in _OPEN:
            g.client = gate.admit(_token()) or request.remote_addr or "unknown"

    app.before_request(check)


def client_name() -> str:
    """The client of the current request: the name of its token, or its address if no token is required."""
    return str(g.client)


def _token() -> str | None:
    sent = request.authorization
    if sent is None:
        return None
    if sent.type == "bearer":
        return sent.token
    # Basic authentication, for browsers: the password is the token. Only for the page, since browsers also attach it to
    # cross-site requests, which must not change anything.
    return sent.password if sent.type == "basic" and request.endpoint in _FOR_PEOPLE else None
