"""Tables of a view: one description for HTML, CSV and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

Row = Mapping[str, Any]


def _nothing(row: Row) -> None:
    return None


@dataclass(frozen=True)
class Column:
    """A column. ``name``: of its values in rows, CSV and JSON; ``shown``: a value as text, "–" for None.

    ``link``: where a cell leads; ``mark``: its class; ``bar``: a share in [0, 1] to draw, with a ``tick``; ``hint``:
    shown under the pointer. ``style``: a class of all cells, ``still`` for short texts, ``long`` for such that break.
    None: nothing.
    """

    name: str
    label: str
    unit: str = ""
    shown: Callable[[Any], str] = str
    is_number: bool = False
    is_code: bool = False
    style: str = ""
    link: Callable[[Row], str | None] = _nothing
    mark: Callable[[Row], str | None] = _nothing
    bar: Callable[[Row], float | None] = _nothing
    tick: float | None = None
    hint: Callable[[Row], str | None] = _nothing

    def text(self, row: Row) -> str:
        """The cell of a row."""
        value = row[self.name]
        return "–" if value is None or value == "" else self.shown(value)


@dataclass(frozen=True)
class Table:
    """Rows under a caption. ``empty``: to say without any; ``every``: all rows for CSV and JSON, if there are more."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: Markup | str = "None yet."
    every: Callable[[], Iterable[Row]] | None = None

    def exported(self) -> Iterable[Row]:
        """All rows."""
        return self.rows if self.every is None else self.every()


@dataclass(frozen=True)
class View:
    """A page. ``tab``: its name among the tabs; ``values``: for its template; ``refresh_s``: seconds between looks."""

    tab: str
    title: str
    template: str
    tables: tuple[Table, ...]
    values: Mapping[str, Any] = field(default_factory=dict)
    refresh_s: int = 5
