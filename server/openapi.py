"""The OpenAPI document of an application, generated from its routes and from the types that bodies are checked by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from flask import Flask
from werkzeug.routing import Rule

from device_sdk import __version__
from server.access.route import FORM, JSON, Route, declared

_ERROR = "Error"
_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
_PREFIX = "#/components/schemas/"


def document(app: Flask) -> dict[str, Any]:
    """An OpenAPI 3.1 document of all routes of ``app``: paths, parameters, bodies, tokens, and the form of errors."""
    rules = [(rule, found) for rule in app.url_map.iter_rules() if (found := declared(app, rule.endpoint)) is not None]
    types = list(dict.fromkeys(route.takes for _, route in rules if route.takes is not None))
    schemas, components = msgspec.json.schema_components(types, ref_template=_PREFIX + "{name}")
    by_type = dict(zip(types, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for rule, route in sorted(rules, key=lambda pair: pair[0].rule):
        path = paths.setdefault(_PARAMETER.sub(r"{\1}", rule.rule), {})
        for method in sorted(set(route.methods)):
            path[method.lower()] = _operation(rule.rule, rule.endpoint, route, by_type)
            if links := _links(route, rules):
                path[method.lower()]["responses"]["2XX"]["links"] = links
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}, "hint": {"type": "string"}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pathweave server", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**components, _ERROR: error},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(rule: str, endpoint: str, route: Route, schemas: dict[type[Any], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": _id(endpoint, route),
        "tags": [endpoint.partition(".")[0]],
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(rule)
        ],
        "responses": {"2XX": {"description": "done"}, "default": _problem()},
        "security": [] if route.scope is None else [{"token": []}],
    }
    if route.scope is not None:
        found["description"] = f"A token of the scope {route.scope.label}, where tokens are required."
    content: dict[str, Any] = {}
    if route.takes is not None:
        content[JSON] = {"schema": schemas[route.takes]}
    elif JSON in route.body_types:
        content[JSON] = {"schema": {"type": "object"}}
    if FORM in route.body_types:
        content[FORM] = {"schema": {"type": "object"}}
    if "POST" in route.methods:
        found["requestBody"] = {"content": content or {"*/*": {"schema": {}}}}
    return found


def _id(endpoint: str, route: Route) -> str:
    return f"{endpoint}.{'-'.join(sorted(route.methods)).lower()}"


def _links(route: Route, rules: Iterable[tuple[Rule, Route]]) -> dict[str, Any]:
    """Operations whose parameters are all in the reply of ``route``."""
    links = {}
    for rule, other in rules:
        wanted = _PARAMETER.findall(rule.rule)
        if wanted and set(wanted) <= route.gives.keys():
            values = {name: f"$response.body#{route.gives[name]}" for name in wanted}
            links[rule.endpoint] = {"operationId": _id(rule.endpoint, other), "parameters": values}
    return links


def _problem() -> dict[str, Any]:
    return {
        "description": "refused, with one line that says why",
        "content": {JSON: {"schema": {"$ref": _PREFIX + _ERROR}}},
    }
