"""The map of splits: who runs the model fastest, over uplinks and devices, as a picture, a table and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from device_sdk.files.drawing import INK, SOFT, Box, Drawing, Shape, Text
from device_sdk.policies.measured_splits.region import Cell, Kind
from device_sdk.policies.splitting.path_splits import SplitCost

COLOURS: dict[Kind, str] = {"device": "#4c72b0", "split": "#dd8452", "server": "#55a868"}
CELL_WIDTH, CELL_HEIGHT, LEFT, LABELS = 124, 44, 96, 8  # pixels: of a cell, to the left of all, below the uplinks
_TOP, _PANEL_TITLE, _BOTTOM, _NARROWEST = 66, 20, 28, 560
_LIGHT = "white"


@dataclass(frozen=True)
class Tile:
    """One uplink and one device in a map, with the kind that is fastest there (None: there is none) and two lines."""

    mbps: float
    device_factor: float
    kind: Kind | None
    lines: tuple[str, str]


def legend(y: float) -> Iterator[Shape]:
    """The colours of the kinds, on the baseline ``y``."""
    for number, (kind, colour) in enumerate(COLOURS.items()):
        yield Box(12 + 90 * number, y - 10, 12, 12, colour)
        yield Text(28 + 90 * number, y, kind)


def tiles(found: Sequence[Tile], top: float) -> Iterator[Shape]:
    """A map: uplinks to the right, their labels on the baseline ``top``, and slower devices below."""
    uplinks = sorted({one.mbps for one in found})
    factors = sorted({one.device_factor for one in found})
    for column, mbps in enumerate(uplinks):
        yield Text(LEFT + column * CELL_WIDTH + 4, top, f"{mbps:g} Mbit/s")
    for line, factor in enumerate(factors):
        yield Text(12, top + LABELS + line * CELL_HEIGHT + 24, f"device × {factor:g}")
    for one in found:
        x = LEFT + uplinks.index(one.mbps) * CELL_WIDTH
        y = top + LABELS + factors.index(one.device_factor) * CELL_HEIGHT
        ink, colour = (INK, SOFT) if one.kind is None else (_LIGHT, COLOURS[one.kind])
        yield Box(x, y, CELL_WIDTH - 4, CELL_HEIGHT - 4, colour)
        yield Text(x + 6, y + 17, one.lines[0], ink, 12)
        yield Text(x + 6, y + 32, one.lines[1], ink, 9)


def map_drawing(cells: Sequence[Cell]) -> Drawing:
    """A map of ``cells`` for each allowed drop: the fastest kind of each, its latency, what it saves and how."""
    title = "Fastest way; predicted for a server as fast as this machine"
    shapes: list[Shape] = [Text(12, 20, title, size=14), *legend(40)]
    shapes.append(Text(290, 40, "below: what it saves over the next best kind"))
    top = float(_TOP)
    for drop, of_drop in by_drop(cells):
        shapes.append(Text(12, top, drop_words(drop), size=13))
        shapes += tiles([_tile(one) for one in of_drop], top + _PANEL_TITLE)
        top += _PANEL_TITLE + LABELS + len({one.device_factor for one in of_drop}) * CELL_HEIGHT + _BOTTOM
    width = max(LEFT + len({one.mbps for one in cells}) * CELL_WIDTH + 16, _NARROWEST)
    return Drawing(width, round(top), tuple(shapes))


def by_drop(cells: Sequence[Cell]) -> list[tuple[float | None, list[Cell]]]:
    """The cells of each allowed drop, in their order."""
    drops = dict.fromkeys(one.max_drop for one in cells)
    return [(drop, [one for one in cells if one.max_drop == drop]) for drop in drops]


def drop_words(drop: float | None) -> str:
    """The allowed drop of a map in words."""
    return "in 8 bits, losses not measured" if drop is None else f"at a loss of at most {100 * drop:g} points"


def _tile(cell: Cell) -> Tile:
    lines = ("", "nothing keeps it")
    if cell.best is not None:
        saving = "the only kind" if cell.saving is None else f"−{100 * cell.saving:.0f} %"
        lines = (f"{cell.best.latency_ms:.3g} ms", f"{saving}, {_way(cell.best)}")
    return Tile(cell.mbps, cell.device_factor, cell.kind, lines)


def _way(best: SplitCost) -> str:
    """The place and the width at which a way crosses."""
    if not best.tail:
        return "all here"
    return "JPEG" if best.sends == "jpeg" else f"cut {best.position}, {best.coding}"


def described_cells(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells as JSON."""
    return [
        {
            "uplink_mbps": one.mbps,
            "device_factor": one.device_factor,
            "max_drop": one.max_drop,
            "kind": one.kind,
            "latency_ms": {kind: cost.latency_ms for kind, cost in one.fastest.items()},
            "position": None if one.best is None else one.best.position,
            "bits": [] if one.best is None else list(one.best.bits),
            "per_channel": one.best is not None and one.best.per_channel,
            "compress": one.best is not None and one.best.compress,
            "saving": one.saving,
            "not_measured": one.not_measured,
        }
        for one in cells
    ]


def print_map(cells: Sequence[Cell]) -> None:
    """Print a table for each allowed drop, with a line for each device."""
    from rich.console import Console
    from rich.table import Table

    for drop, of_drop in by_drop(cells):
        uplinks = sorted({one.mbps for one in of_drop})
        table = Table("device", *(f"{mbps:g} Mbit/s" for mbps in uplinks))
        for factor in sorted({one.device_factor for one in of_drop}):
            row = {one.mbps: one for one in of_drop if one.device_factor == factor}
            table.add_row(f"× {factor:g}", *(_said(row[mbps]) for mbps in uplinks))
        click.echo(f"fastest {drop_words(drop)}:")
        Console().print(table)
    unknown = sum(one.not_measured > 0 for one in cells)
    if unknown:
        click.echo(f"in {unknown} of {len(cells)} cells ways that may be faster were not measured for lack of time")


def _said(cell: Cell) -> str:
    if cell.kind is None or cell.best is None:
        return "nothing keeps the drop"
    saving = "" if cell.saving is None else f", −{100 * cell.saving:.0f} %"
    return f"{cell.kind} {cell.best.latency_ms:.3g} ms{saving}"
