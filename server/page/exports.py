"""Tables as CSV and JSON, row by row: a fleet does not fit in a reply's memory. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import msgspec

from server.page.table import Table

# Spreadsheets take a cell that begins with one of these for a formula; an apostrophe makes it text.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def csv_text(table: Table) -> Iterator[str]:
    """The rows under a line of names (RFC 4180). Texts that a spreadsheet would run begin with an apostrophe."""
    names = [column.name for column in table.columns]
    yield _line(names)
    for row in table.exported():
        yield _line([_cell(row[name]) for name in names])


def json_text(tables: tuple[Table, ...]) -> Iterator[str]:
    """An object with the rows of each table by its name."""
    for number, table in enumerate(tables):
        names = [column.name for column in table.columns]
        yield f"{'{' if number == 0 else ','}{_encoded(table.name)}:["
        for place, row in enumerate(table.exported()):
            yield f"{',' if place else ''}\n{_encoded({name: row[name] for name in names})}"
        yield "]"
    yield "}\n" if tables else "{}\n"


def _encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value.startswith(_FORMULAS):
        return f"'{value}"
    return value


def _line(cells: list[object] | list[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()
