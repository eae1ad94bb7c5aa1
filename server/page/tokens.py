"""Tokens: names, scopes and ends. Secrets are stored as hashes, which nothing shows."""

from __future__ import annotations

from dataclasses import asdict

from markupsafe import Markup

from server.page.asked import Asked, device_address
from server.page.figures import moment
from server.page.table import Column, Table, View
from server.services import Services

_MARKS = {"valid": "good", "revoked": "bad"}


def tokens(services: Services, asked: Asked) -> View:
    """The view at ``/page/tokens``: all of them, by name."""
    rows = [asdict(token) for token in services.tokens.all()]
    table = Table("tokens", "Tokens", _COLUMNS, rows, empty=_NO_TOKEN)
    return View("tokens", "Tokens", "tokens.html", (table,), {"table": table})


_COLUMNS = (
    Column("name", "Name"),
    Column("scope", "Scope"),
    Column("device", "Device", link=lambda row: device_address(row["device"]) if row["device"] else None),
    Column("state", "State", mark=lambda row: _MARKS.get(row["state"], "soft")),
    Column("created", "Made", shown=moment, style="still"),
    Column("expires", "Ends", shown=moment, style="still"),
)
_NO_TOKEN = Markup("No token yet: <code>pathweave admin token new NAME --scope device</code>.")
