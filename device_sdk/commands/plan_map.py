"""The map of plans: the fastest kind over uplinks, devices and allowed drops, as a picture, a table and JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from device_sdk.files.drawing import INK, SOFT, Box, Drawing, Shape, Text
from device_sdk.policies.measured_splits.region import Cell, HasLatency, Kind
from device_sdk.policies.planning.plan_region import PlannedWay
from device_sdk.policies.splitting.path_splits import SplitCost

COLOURS: dict[Kind, str] = {
    "device": "#4c72b0",
    "exits": "#8172b3",
    "cascade": "#64b5cd",
    "bottleneck": "#c44e52",
    "split": "#dd8452",
    "ask": "#937860",
    "server": "#55a868",
}
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


def legend(y: float, kinds: Collection[Kind | None]) -> Iterator[Shape]:
    """The colours of those ``kinds`` that there are, on the baseline ``y``."""
    for number, kind in enumerate(kind for kind in COLOURS if kind in kinds):
        yield Box(12 + 90 * number, y - 10, 12, 12, COLOURS[kind])
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
    title = f"Fastest kind of plan; predicted for {_server(cells)}; below: its saving over the next best kind"
    shapes: list[Shape] = [Text(12, 20, title, size=13), *legend(40, {one.kind for one in cells})]
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


def _server(cells: Sequence[Cell]) -> str:
    """The server that latencies were predicted for, in words."""
    planned = any(isinstance(one.best, PlannedWay) for one in cells)
    return "the connected server" if planned else "a server as fast as this machine"


def _way(best: HasLatency) -> str:
    """The place and the width at which a way crosses, or the samples that go on."""
    if isinstance(best, PlannedWay):
        return _plan_words(best)
    if not isinstance(best, SplitCost):
        return ""
    if not best.tail:
        return "all here"
    if best.sends != "activations":
        return "JPEG" if best.sends == "jpeg" else "pixels"
    return f"cut {best.position}, {best.coding}"


def _plan_words(best: PlannedWay) -> str:
    plan, cost = best.plan, best.cost
    if plan.split is not None and plan.split.position:
        return f"cut {plan.split.position}"
    shares = {"asked": cost.share_asked, "second path": cost.share_second, "early": cost.share_early}
    said = [f"{100 * share:.0f} % {name}" for name, share in shares.items() if share]
    return ", ".join(said) or ("inputs sent" if plan.split is not None else "all here")


def described_cells(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """The cells as JSON."""
    return [
        {
            "uplink_mbps": one.mbps,
            "device_factor": one.device_factor,
            "max_drop": one.max_drop,
            "kind": one.kind,
            "latency_ms": {kind: cost.latency_ms for kind, cost in one.fastest.items()},
            **_described(one.best),
            "saving": one.saving,
            "not_measured": one.not_measured,
        }
        for one in cells
    ]


def _described(best: HasLatency | None) -> dict[str, Any]:
    """Further facts about the best way."""
    if isinstance(best, PlannedWay):
        split, cost = best.plan.split, best.cost
        shares = {"share_early": cost.share_early, "share_second": cost.share_second, "share_asked": cost.share_asked}
        return {"plan": best.plan.kind, "position": None if split is None else split.position, **shares}
    split_cost = best if isinstance(best, SplitCost) else None
    return {
        "position": None if split_cost is None else split_cost.position,
        "bits": [] if split_cost is None else list(split_cost.bits),
        "per_channel": split_cost is not None and split_cost.per_channel,
        "compress": split_cost is not None and split_cost.compress,
    }


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
