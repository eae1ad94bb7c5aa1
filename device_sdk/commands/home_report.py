"""Lines and JSON of what runs at which home: latency, blocks that are fastest there, and what was refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from device_sdk.execution.home_check import HomeReport
    from device_sdk.profiling.profile import Profile
    from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class HomeRow:
    """One home: predicted latency of the full model there, None where a block does not run; blocks fastest there."""

    home: str
    full_model_ms: float | None
    blocks: int
    fastest: int


def home_rows(measured: Profile, supernet: Supernet) -> list[HomeRow]:
    """A row for each home of a profile, the first one first; none for a profile of one home."""
    names = list(dict.fromkeys(one.edge.home for one in measured.edges))
    if len(names) < 2:
        return []
    costs, original = measured.cost_model(), supernet.original
    fastest: dict[Any, tuple[float, str]] = {}
    for one in measured.edges:
        own = (costs.edge_latency_ms(one.edge), one.edge.home)
        key = one.edge.on("")
        fastest[key] = min(own, fastest.get(key, own))
    rows = []
    for name in sorted(names):
        path = msgspec.structs.replace(original, edges=tuple(edge.on(name) for edge in original.edges))
        at_own_size = [one.edge for one in measured.edges if one.edge.home == name and not one.edge.input_size]
        first_at = sum(fastest[edge.on("")][1] == name for edge in at_own_size)
        rows.append(HomeRow(name, costs.latency_ms(path) if costs.knows(path) else None, len(at_own_size), first_at))
    return rows


def homes_summary(rows: Sequence[HomeRow], reports: Sequence[HomeReport]) -> dict[str, Any]:
    """The same as JSON, with the report of each home that has a provider of its own."""
    return {
        "measured": [asdict(row) for row in rows],
        "checked": [
            {
                **msgspec.to_builtins(one),
                "works": one.works,
                "refusals": [
                    {"operator": operator, "nodes": count, "reason": reason}
                    for operator, count, reason in one.refusals()
                ],
            }
            for one in reports
        ],
    }


def print_homes(rows: Sequence[HomeRow], reports: Sequence[HomeReport]) -> None:
    """A table of homes, and a line for each operator and each block that one refuses."""
    from rich.console import Console
    from rich.table import Table

    if rows:
        table = Table("home", "full model ms", "blocks", "fastest here")
        for row in rows:
            full = "–" if row.full_model_ms is None else f"{row.full_model_ms:.3f}"
            table.add_row(row.home or "the first", full, str(row.blocks), str(row.fastest))
        Console().print(table)
    for report in reports:
        if not report.works:
            click.echo(f"{report.home} is left out: {report.why_not()}")
            continue
        for operator, count, reason in report.refusals():
            click.echo(f"{report.home}: the processor runs {count} × {operator}: {reason}")
        for block in report.blocks:
            if block.failure:
                click.echo(f"{report.home}: {block.block} does not run there: {block.failure}")
