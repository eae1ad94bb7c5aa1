"""A route's handler with what its requests need; found by address before a request's body is received."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from flask import Flask, Response
from werkzeug.exceptions import HTTPException

from server.access.scopes import Scope
from server.http.serving import Lane

JSON, FORM = "application/json", "multipart/form-data"

FindRoute = Callable[[str, str], "Route | None"]  # by method and path


class Route:
    """Calls ``handler(*parts, **values)``, with the values in the address.

    ``scope``: that a client needs; None: public, so it must reveal nothing about bundles, devices, jobs and tokens.
    ``body_types``: that a server without tokens takes, empty for any: a page of another site can send a form, but not
    without the header Origin. Forms are received into files. ``for_people``: also takes the token as a browser's
    password. Browsers attach it to cross-site requests too, so such a route must change nothing. ``takes``: the type
    that a JSON body is checked by, and ``gives``: values of its reply, by JSON pointer, that parameters of other
    addresses take, both for the OpenAPI document.
    """

    def __init__(
        self,
        handler: Callable[..., Response],
        *parts: object,
        scope: Scope | None,
        lane: Lane = Lane.OTHER,
        methods: Collection[str] = ("GET",),
        body_types: Collection[str] = (),
        for_people: bool = False,
        takes: type[Any] | None = None,
        gives: Mapping[str, str] | None = None,
    ) -> None:
        self._handler = partial(handler, *parts)
        self.scope, self.lane, self.methods = scope, lane, methods  # Flask reads the methods
        self.body_types, self.for_people, self.takes = body_types, for_people, takes
        self.gives = dict(gives or {})

    def __call__(self, **values: Any) -> Response:
        """The reply to the current request."""
        return self._handler(**values)


def find_routes(app: Flask) -> FindRoute:
    """A function that finds the route of a method and a path, None if there is none."""
    addresses = app.url_map.bind("")

    def find(method: str, path: str) -> Route | None:
        try:
            endpoint, _ = addresses.match(path, method)
        except HTTPException:
            return None
        return declared(app, endpoint)

    return find


def declared(app: Flask, endpoint: str | None) -> Route | None:
    """The route of an endpoint; None where there is nothing."""
    found = app.view_functions.get(endpoint or "")
    return found if isinstance(found, Route) else None
