"""Asking every request for its token."""

from __future__ import annotations

from flask import Flask, g, request

from server.tokens import Gate

# A load balancer has no token, and these tell nothing about what is served.
_OPEN = frozenset({"health.health", "inference.live", "inference.ready", "page.script"})
_FOR_PEOPLE = frozenset({"page.page", "page.jobs"})


def ask_for_tokens(app: Flask, gate: Gate) -> None:
    """Have ``app`` refuse requests without a token where ``gate`` is closed; ``client_name()`` is who asks."""

    def check() -> None:
        if request.endpoint not in _OPEN:
            g.client = gate.admit(_token()) or request.remote_addr or "unknown"

    app.before_request(check)


def client_name() -> str:
    """Who asks: the name of the token, the address where none is needed."""
    return str(g.client)


def _token() -> str | None:
    sent = request.authorization
    if sent is None:
        return None
    if sent.type == "bearer":
        return sent.token
    # Browsers ask people for a name and a password: the password is the token. Only for the page that people read:
    # browsers send it along with whatever another site has them ask for, which may change nothing here.
    return sent.password if sent.type == "basic" and request.endpoint in _FOR_PEOPLE else None
