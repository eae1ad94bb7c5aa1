"""The map of splits: who runs the model fastest, over uplinks and devices, as a picture, a table and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from device_sdk.files.drawing import INK, SOFT, Box, Drawing, Shape, Text
from device_sdk.policies.measured_splits.region import Cell, Kind

COLOURS: dict[Kind, str] = {"device": "#4c72b0", "split": "#dd8452", "server": "#55a868"}
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 124, 44, 96, 82, 16  # pixels of a cell and around all
_LIGHT = "white"


def map_drawing(cells: Sequence[Cell]) -> Drawing:
    """Uplinks to the right, slower devices below; a cell has the fastest kind, its latency and what it saves."""
    uplinks = sorted({one.mbps for one in cells})
    factors = sorted({one.device_factor for one in cells})
    drops = {one.max_drop for one in cells if one.max_drop is not None}
    loss = f"at a loss of at most {100 * max(drops):g} points" if drops else "in 8 bits, losses not measured"
    title = f"Fastest way, {loss}; predicted for a server as fast as this machine"
    shapes: list[Shape] = [Text(12, 20, title, size=14)]
    for number, (kind, colour) in enumerate(COLOURS.items()):
        shapes += [Box(12 + 90 * number, 30, 12, 12, colour), Text(28 + 90 * number, 40, kind)]
    shapes.append(Text(290, 40, "below: what it saves over the next best kind"))
    for column, mbps in enumerate(uplinks):
        shapes.append(Text(_LEFT + column * _WIDTH + 4, _TOP - 8, f"{mbps:g} Mbit/s"))
    for line, factor in enumerate(factors):
        y = _TOP + line * _HEIGHT
        shapes.append(Text(12, y + 24, f"device × {factor:g}"))
        for column, mbps in enumerate(uplinks):
            found = (one for one in cells if (one.mbps, one.device_factor) == (mbps, factor))
            shapes += [shape for cell in found for shape in _cell(cell, _LEFT + column * _WIDTH, y)]
    width = max(_LEFT + len(uplinks) * _WIDTH + 16, 560)
    return Drawing(width, _TOP + len(factors) * _HEIGHT + _BOTTOM, tuple(shapes))


def _cell(cell: Cell, x: float, y: float) -> list[Shape]:
    if cell.kind is None or cell.best is None:
        return [Box(x, y, _WIDTH - 4, _HEIGHT - 4, SOFT), Text(x + 6, y + 24, "nothing keeps it", INK, 10)]
    saving = "the only kind" if cell.saving is None else f"−{100 * cell.saving:.0f} %"
    return [
        Box(x, y, _WIDTH - 4, _HEIGHT - 4, COLOURS[cell.kind]),
        Text(x + 6, y + 17, f"{cell.best.latency_ms:.3g} ms", _LIGHT, 12),
        Text(x + 6, y + 32, f"{saving}, {_way(cell)}", _LIGHT, 9),
    ]


def _way(cell: Cell) -> str:
    """The place and the width at which the best way crosses."""
    best = cell.best
    assert best is not None
    if not best.tail:
        return "all here"
    if best.sends == "jpeg":
        return "JPEG"
    return f"cut {best.position}, {best.bits[0]} bits"


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
            "saving": one.saving,
            "not_measured": one.not_measured,
        }
        for one in cells
    ]


def print_map(cells: Sequence[Cell]) -> None:
    """Print the map as a table, a line for each device."""
    from rich.console import Console
    from rich.table import Table

    uplinks = sorted({one.mbps for one in cells})
    table = Table("device", *(f"{mbps:g} Mbit/s" for mbps in uplinks))
    for factor in sorted({one.device_factor for one in cells}):
        row = {one.mbps: one for one in cells if one.device_factor == factor}
        table.add_row(f"× {factor:g}", *(_said(row[mbps]) for mbps in uplinks))
    Console().print(table)
    unknown = sum(one.not_measured > 0 for one in cells)
    if unknown:
        click.echo(f"in {unknown} of {len(cells)} cells ways that may be faster were not measured for lack of time")


def _said(cell: Cell) -> str:
    if cell.kind is None or cell.best is None:
        return "nothing keeps the drop"
    saving = "" if cell.saving is None else f", −{100 * cell.saving:.0f} %"
    return f"{cell.kind} {cell.best.latency_ms:.3g} ms{saving}"
