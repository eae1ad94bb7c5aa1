"""The picture of ``split``: in which cells device, server or a split is the fastest that loses at most a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from device_sdk.files.atomic import write_atomically

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
    write_atomically(path, _svg(cells).encode())


def _svg(cells: Sequence[Cell]) -> str:
    names = list(dict.fromkeys(cell.network for cell in cells))
    uplinks = sorted({cell.mbps for cell in cells})
    factors = sorted({cell.factor for cell in cells})
    block = len(factors) * _CELL_HEIGHT + _GAP
    width, height = _LEFT + len(uplinks) * _CELL_WIDTH + 16, _TOP + len(names) * block
    parts = [_text(12, 20, "Fastest way at no more than one point lost, measured end to end", size=14)]
    for number, (kind, colour) in enumerate(COLOURS.items()):
        parts += [_box(12 + 90 * number, 30, 12, 12, colour), _text(28 + 90 * number, 40, kind)]
    for row, name in enumerate(names):
        top = _TOP + row * block
        parts.append(_text(12, top - 16, name, size=13))
        for column, mbps in enumerate(uplinks):
            parts.append(_text(_LEFT + column * _CELL_WIDTH + 4, top, f"{mbps:g} Mbit/s"))
        for line, factor in enumerate(factors):
            y = top + 8 + line * _CELL_HEIGHT
            parts.append(_text(12, y + 24, f"device × {factor:g}"))
            for column, mbps in enumerate(uplinks):
                found = [one for one in cells if (one.network, one.mbps, one.factor) == (name, mbps, factor)]
                parts += [part for cell in found for part in _cell(cell, _LEFT + column * _CELL_WIDTH, y)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>", ""])


def _cell(cell: Cell, x: float, y: float) -> list[str]:
    return [
        _box(x, y, _CELL_WIDTH - 4, _CELL_HEIGHT - 4, COLOURS[cell.kind]),
        _text(x + 6, y + 17, f"{cell.latency_ms:.3g} ms", size=12, colour="white"),
        _text(x + 6, y + 32, cell.way, size=9, colour="white"),
    ]


def _box(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, *, size: int = 11, colour: str = "#222222") -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
