"""Draws a plan as text: its blocks over the cut points, its exits below; and a sparkline. Pure.

``│────o0────│══════════m1-4══════════│╌╌╌s4╌╌╌│``: original blocks, merged ones, shrunk ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_sdk.supernet.plan import Plan
from device_sdk.supernet.supernet import Supernet

FILLS = {"original": "─", "merged": "═", "shrunk": "╌"}
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class PlacedBlock:
    """A block of the plan's subnet, from one cut point to another."""

    name: str
    kind: str
    start: int
    end: int


@dataclass(frozen=True)
class PlanOutline:
    """The drawable parts of a plan: its blocks in order, and its exits (id, ``?`` if it asks a server; cut point)."""

    blocks: tuple[PlacedBlock, ...]
    exits: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, supernet: Supernet, plan: Plan) -> PlanOutline:
        """The outline of ``plan``."""
        blocks = [
            PlacedBlock(str(edge), block.kind, block.start, block.end) for edge, block in supernet.walk(plan.subnet)
        ]
        exits = [
            (f"{one.exit}?" if one.ask_below else one.exit, supernet.exit(one.exit).position) for one in plan.exits
        ]
        return cls(tuple(blocks), tuple(exits))

    def column(self, cut_point: int, *, width: int) -> int:
        """The column of a cut point in a row of ``width`` columns."""
        return round(cut_point * (width - 1) / self.blocks[-1].end)


def draw_blocks(outline: PlanOutline, *, width: int) -> list[tuple[str, str]]:
    """One row of ``width`` columns as pieces (text, kind of block); names that do not fit are left out."""
    pieces = []
    for block in outline.blocks:
        room = outline.column(block.end, width=width) - outline.column(block.start, width=width) - 1
        if room >= 0:  # else it shares its column with its neighbour
            name = block.name if len(block.name) <= room else ""
            pieces.append(("│" + name.center(room, FILLS[block.kind]), block.kind))
    return [*pieces, ("│", "")]


def draw_cut_points(outline: PlanOutline, *, width: int) -> str:
    """The numbers of the subnet's cut points, below the block borders; those that do not fit are left out."""
    return _row([(str(at), at) for at in (0, *(block.end for block in outline.blocks))], outline, width=width)


def draw_exits(outline: PlanOutline, *, width: int) -> str:
    """The exits below the cut points where they are: ``▲`` and the id."""
    return _row([(f"▲{exit_}", at) for exit_, at in outline.exits], outline, width=width)


def _row(marks: Sequence[tuple[str, int]], outline: PlanOutline, *, width: int) -> str:
    row = ""
    for text, cut_point in marks:
        column = min(outline.column(cut_point, width=width), width - len(text))
        if column > len(row) or column == 0 == len(row):
            row = row.ljust(column) + text
    return row


def sparkline(values: Sequence[float], *, width: int) -> str:
    """The last ``width`` values as bars between the lowest and the highest of them."""
    shown = values[-width:]
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    step = (high - low) / (len(BARS) - 1)
    return "".join(BARS[round((value - low) / step) if step > 0 else 0] for value in shown)
