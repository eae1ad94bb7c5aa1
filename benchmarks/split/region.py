"""The picture of ``split``: in which cells device, server or a split is the fastest that loses at most a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.commands.plan_map import CELL_HEIGHT, CELL_WIDTH, LEFT, Tile, legend, tiles
from device_sdk.files.drawing import Drawing, Shape, Text, write_drawing
from device_sdk.policies.measured_splits.region import Kind

_TOP, _GAP = 82, 60  # pixels


@dataclass(frozen=True)
class Cell:
    """One uplink and one device factor of a network: who computes on the fastest way, its latency and a few words."""

    network: str
    mbps: float
    factor: float
    kind: Kind
    latency_ms: float
    way: str


def write_region(path: Path, cells: Sequence[Cell]) -> None:
    """Write the picture, one block of cells for each network."""
    write_drawing(path, _drawn(cells))


def _drawn(cells: Sequence[Cell]) -> Drawing:
    names = list(dict.fromkeys(cell.network for cell in cells))
    block = len({cell.factor for cell in cells}) * CELL_HEIGHT + _GAP
    width = LEFT + len({cell.mbps for cell in cells}) * CELL_WIDTH + 16
    title = "Fastest way at no more than one point lost, measured end to end"
    shapes: list[Shape] = [Text(12, 20, title, size=14), *legend(40, {one.kind for one in cells})]
    for row, name in enumerate(names):
        top = _TOP + row * block
        shapes.append(Text(12, top - 16, name, size=13))
        of_network = (cell for cell in cells if cell.network == name)
        found = [Tile(one.mbps, one.factor, one.kind, (f"{one.latency_ms:.3g} ms", one.way)) for one in of_network]
        shapes += tiles(found, top)
    return Drawing(width, _TOP + len(names) * block, tuple(shapes))
