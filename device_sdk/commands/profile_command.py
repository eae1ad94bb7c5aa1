"""``pathweave profile``: what each block costs on this device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from device_sdk.commands.command_line import emit, progress
from device_sdk.commands.command_options import ChosenTrust, bundle_options, open_model
from device_sdk.commands.home_report import HomeRow, home_rows, homes_summary, print_homes

if TYPE_CHECKING:
    from device_sdk.execution.home_check import HomeReport
    from device_sdk.profiling.profile import Profile


@click.command()
@bundle_options
@click.option("--again", is_flag=True, help="Measure even if this device was profiled before.")
def profile(
    bundle: str,
    trust: ChosenTrust,
    token: str | None,
    threads: int,
    homes: tuple[str, ...],
    state: Path | None,
    again: bool,
    as_json: bool,
) -> None:
    """Measure the latency and memory of every block on this device."""
    with open_model(
        bundle, trust=trust, token=token, threads=threads, homes=homes, state=state, as_json=as_json
    ) as model:
        measured, reports = model.profile(again=again, progress=progress(as_json)), model.home_reports
        rows = home_rows(measured, model.bundle.supernet)
    summary = {**_profile_summary(measured), "homes": homes_summary(rows, reports)}
    emit(summary, as_json=as_json, text=lambda: _print_profile(measured, rows, reports))


def _profile_summary(measured: Profile) -> dict[str, Any]:
    return {
        "device": measured.device,
        "runtime": measured.runtime,
        "original_ms": measured.original_ms,
        "nodes_by_provider": measured.nodes_by_provider,
        "scale": measured.scale,
        "offset_ms": measured.offset_ms,
        "blocks": {
            str(one.edge): {
                "latency_ms": one.cost.latency_ms,
                "p95_latency_ms": one.cost.p95_latency_ms,
                "peak_bytes": one.cost.resident_bytes + one.cost.working_bytes,
            }
            for one in measured.edges
        },
        "exits": {
            one.exit: {"latency_ms": one.cost.latency_ms, "memory_bytes": one.cost.resident_bytes}
            for one in measured.exits
        },
        "subnets": [
            {"subnet": str(one.subnet), "predicted_ms": predicted, "measured_ms": one.measured_ms}
            for one in measured.fitted
            for predicted in [measured.cost_model().latency_ms(one.subnet)]
        ],
    }


def _print_profile(measured: Profile, homes: Sequence[HomeRow], reports: Sequence[HomeReport]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("block", "median ms", "p95 ms", "peak kB")
    for one in measured.edges:
        peak = one.cost.resident_bytes + one.cost.working_bytes
        cells = (f"{one.cost.latency_ms:.4f}", f"{one.cost.p95_latency_ms:.4f}", f"{peak / 1e3:.0f}")
        table.add_row(str(one.edge), *cells)
    Console().print(table)
    click.echo(f"full model: {measured.original_ms:.3f} ms on {measured.device}")
    total = sum(measured.nodes_by_provider.values())
    for provider, nodes in measured.nodes_by_provider.items():
        click.echo(f"{provider} runs {nodes} of its {total} nodes")
    print_homes(homes, reports)
