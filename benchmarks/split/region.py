"""The picture of ``split``: in which cells device, server or a split is the fastest that loses at most a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.files.drawing import Box, Drawing, Shape, Text, write_drawing

COLOURS = {"device": "#4c72b0", "server": "#55a868", "split": "#dd8452"}
_CELL_WIDTH, _CELL_HEIGHT, _LEFT, _TOP, _GAP = 124, 44, 96, 82, 60  # pixels


@dataclass(frozen=True)
class Cell:
    """One uplink and one device factor of a network: who computes on the fastest way, its latency and a few words."""

    network: str
    mbps: float
    factor: float
    kind: str
    latency_ms: float
    way: str


def write_region(path: Path, cells: Sequence[Cell]) -> None:
    """Write the picture, one block of cells for each network."""
    write_drawing(path, _drawn(cells))


def _drawn(cells: Sequence[Cell]) -> Drawing:
    names = list(dict.fromkeys(cell.network for cell in cells))
    uplinks = sorted({cell.mbps for cell in cells})
    factors = sorted({cell.factor for cell in cells})
    block = len(factors) * _CELL_HEIGHT + _GAP
    width, height = _LEFT + len(uplinks) * _CELL_WIDTH + 16, _TOP + len(names) * block
    shapes: list[Shape] = [Text(12, 20, "Fastest way at no more than one point lost, measured end to end", size=14)]
    for number, (kind, colour) in enumerate(COLOURS.items()):
        shapes += [Box(12 + 90 * number, 30, 12, 12, colour), Text(28 + 90 * number, 40, kind)]
    for row, name in enumerate(names):
        top = _TOP + row * block
        shapes.append(Text(12, top - 16, name, size=13))
        for column, mbps in enumerate(uplinks):
            shapes.append(Text(_LEFT + column * _CELL_WIDTH + 4, top, f"{mbps:g} Mbit/s"))
        for line, factor in enumerate(factors):
            y = top + 8 + line * _CELL_HEIGHT
            shapes.append(Text(12, y + 24, f"device × {factor:g}"))
            for column, mbps in enumerate(uplinks):
                found = [one for one in cells if (one.network, one.mbps, one.factor) == (name, mbps, factor)]
                shapes += [shape for cell in found for shape in _cell(cell, _LEFT + column * _CELL_WIDTH, y)]
    return Drawing(width, height, tuple(shapes))


def _cell(cell: Cell, x: float, y: float) -> list[Shape]:
    return [
        Box(x, y, _CELL_WIDTH - 4, _CELL_HEIGHT - 4, COLOURS[cell.kind]),
        Text(x + 6, y + 17, f"{cell.latency_ms:.3g} ms", "white", 12),
        Text(x + 6, y + 32, cell.way, "white", 9),
    ]
