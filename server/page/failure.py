"""Errors at addresses of the page, for browsers: the same words as in the JSON that programs get."""

from __future__ import annotations

from flask import Request, Response, render_template

from server.page.reply import POLICY, STYLE

_HTML, _JSON = "text/html", "application/json"


def failure_page(request: Request, status: int, text: str, hint: str | None) -> Response | None:
    """An error as a page; None where the address is none of the page's, or the client prefers JSON."""
    is_page = request.path == "/" or request.path.startswith("/page/")
    preferred = request.accept_mimetypes.best_match([_JSON, _HTML], default=_JSON)
    if not is_page or preferred != _HTML or request.args.get("format", "html") != "html":
        return None
    body = render_template("failure.html", text=text, hint=hint, status=status, style=STYLE)
    headers = {"Cache-Control": "no-store", "Vary": "Accept", "Content-Security-Policy": POLICY}
    return Response(body, status, mimetype=_HTML, headers=headers)
