"""Tokens: names, scopes and ends. Secrets are stored as hashes, which nothing shows."""

from __future__ import annotations

from dataclasses import asdict

from markupsafe import Markup

from server.page.asked import ROWS, Asked, device_address
from server.page.figures import moment
from server.page.table import Column, Table, View
from server.services import Services

_MARKS = {"valid": "good", "revoked": "bad"}


def tokens(services: Services, asked: Asked) -> View:
    """The view at ``/page/tokens``: by name, page by page, since every device of a fleet has one."""
    after = asked.text("after")
    found = services.tokens.page(most=ROWS + 1, after=after)
    rows = [asdict(token) for token in found[:ROWS]]
    table = Table(
        "tokens",
        "Tokens",
        _COLUMNS,
        rows,
        empty=_NO_TOKEN if after is None else "No token is behind this name.",
        every=lambda: (asdict(token) for token in services.tokens.all()),
    )
    values = {
        "table": table,
        "first": asked.address(after=None) if after else None,
        "next": asked.address(after=found[ROWS - 1].name) if len(found) > ROWS else None,
    }
    return View("tokens", "Tokens", "tokens.html", (table,), values)


_COLUMNS = (
    Column("name", "Name"),
    Column("scope", "Scope"),
    Column("device", "Device", link=lambda row: device_address(row["device"]) if row["device"] else None),
    Column("state", "State", mark=lambda row: _MARKS.get(row["state"], "soft")),
    Column("created", "Made", shown=moment, style="still"),
    Column("expires", "Ends", shown=moment, style="still"),
)
_NO_TOKEN = Markup("No token yet: <code>pathweave admin token new NAME --scope device</code>.")
